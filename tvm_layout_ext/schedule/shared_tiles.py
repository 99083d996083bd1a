"""How warps share out the rows of tiles in shared memory, so that no access meets a bank twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import tirx

from ..gpu.hardware import BANK_BYTES, NUM_BANKS, WARP_SIZE

__all__ = ["Copy", "copy_of", "dealt", "fetch", "staged", "store"]


@dataclass(frozen=True)
class Copy:
    """How threads copy a tile to shared memory.

    Under a swizzle, and where rows are multiples of 128 bytes, neighbouring lanes copy neighbouring
    vectors. Other padded rows need more: a quarter of a warp (a half, for 8-byte accesses) must
    meet each bank once, whether it writes the tile or reads fragments from it, so it has to write
    as many rows as it reads.

    * ``ldmatrix`` reads 8 rows of 16 bytes: a pad of 16 bytes, and phases of 8 rows.
    * Plain loads of 32-bit elements read 4 rows of 8: a pad of 32 bytes, and phases of 4 rows by
      2 neighbouring vectors.
    * Plain loads of 8-bit elements read every fourth of 16 rows: a pad of 8 bytes, which leaves
      vectors of 8 bytes, and phases of 16 rows.

    An asynchronous copy takes a wavefront for each pair of a global line and a shared row of 128
    bytes. So it moves whole rows, and costs least where these have 128 bytes and are swizzled.

    ``vector`` and ``pad`` count elements; a phase has ``rows`` of ``neighbours`` vectors.
    """

    vector: int
    pad: int = 0
    rows: int = 1
    neighbours: int = 1


def copy_of(bits: int, k_major: bool, row: int, swizzle: str) -> Copy:
    """Choose the copy of an operand whose rows in global memory have ``row`` elements."""
    width, pad, rows, neighbours = 16, 0, 1, 1
    if swizzle == "pad":
        if k_major or bits == 16:
            pad, rows = 16, 8
        elif bits == 32:
            pad, rows, neighbours = 32, 4, 2
        else:
            width, pad, rows = 8, 8, 16
    vector = width * 8 // bits
    while row % vector:
        vector //= 2
    return Copy(vector, pad * 8 // bits, rows, neighbours)


def dealt(vectors: int, size: int, gap: int) -> tuple[int, int, int]:
    """Deal rows to lanes that read them, so that no phase of a request meets a bank twice.

    Phases that lie in one row meet none. Where rows are shorter, as many as fill a phase are taken
    so far apart that they lie side by side in the banks; some lanes of a ragged row stay idle.

    A row has ``vectors`` of ``size`` bytes and is shifted by ``gap`` bytes against the banks. The
    result is the lanes for a row, the rows of a phase, and how far apart these are in rows.
    Rows of 16 vectors; of 25 vectors of 4 bytes; of 3 vectors of 16 bytes:

    >>> dealt(16, 16, 16), dealt(25, 4, 16), dealt(3, 16, 32)
    ((16, 1, 1), (32, 1, 1), (4, 2, 2))
    """
    phase = WARP_SIZE * BANK_BYTES // max(size, BANK_BYTES)
    if vectors > phase // 2:
        return -(-vectors // phase) * phase, 1, 1
    across = max(1 << (vectors - 1).bit_length(), gap // max(size, BANK_BYTES))
    return across, phase // across, max(1, across * size // gap)


def fetch(sch: Any, block: Any, k_major: bool, warps: Sequence[int], swizzle: str) -> None:
    """Copy a tile of an operand to shared memory, all warps together."""
    source = sch.get(block).reads[0].source
    copy = copy_of(_bits(source), k_major, _row(sch.get(block), source, "reads"), swizzle)
    sch.swizzle(block, 0, swizzle)
    i, j = sch.get_loops(block)[-2:]
    columns = int(sch.get(j).extent)
    if columns * _bits(source) % (8 * NUM_BANKS * BANK_BYTES) == 0:
        copy = replace(copy, rows=1, neighbours=1)
    vectors = columns // copy.vector
    near = max(1, min(vectors, WARP_SIZE // copy.rows) // copy.neighbours)
    down, rows = sch.split(i, [None, copy.rows])
    right, *across, lanes = sch.split(j, [None, near, copy.neighbours, copy.vector])
    sch.reorder(down, right, across[0], rows, across[1], lanes)
    sch.unroll(spread(sch, sch.fuse(down, right, across[0], rows, across[1]), warps))
    if copy.vector > 1:
        sch.vectorize(lanes)


def spread(sch: Any, loop: Any, warps: Sequence[int]) -> Any:
    """Share a loop out to all threads, neighbours to neighbouring lanes; return what is left."""
    rest, y, z, x = sch.split(loop, [None, *warps, WARP_SIZE])
    sch.bind(y, "threadIdx.y")
    sch.bind(z, "threadIdx.z")
    sch.bind(x, "threadIdx.x")
    return rest


def _bits(buffer: Any) -> int:
    return np.dtype(str(buffer.dtype)).itemsize * 8


def _row(block: Any, buffer: Any, kind: str) -> int:
    """Elements of a buffer that are neighbours along the innermost iterator of a copy."""
    (region,) = (one for one in getattr(block, kind) if one.source.same_as(buffer))
    inner = block.iter_vars[-1]
    for at, extent in reversed(list(zip(region.region, buffer.shape, strict=True))):
        if int(extent) > 1 or int(inner.dom.extent) == 1:
            along = at.min.a if isinstance(at.min, tirx.FloorMod) else at.min
            return int(extent) if inner.var.same_as(along) else 1
    return 1


def staged(sch: Any, result: Any, warp_loop: Any) -> Any:
    """Stage a warp's part of the result in shared memory; the copy to where it belongs."""
    node = sch.get(result)
    indices, own = node.body.indices, [one.var for one in node.iter_vars]
    same = (index.same_as(var) for index, var in zip(indices, own, strict=False))
    if len(indices) == len(own) and all(same):
        out = sch.cache_write(result, 0, "shared.dyn")
    else:
        out = sch.reindex(result, ("write", 0))
        sch.set_scope(result, 0, "shared.dyn")
    sch.reverse_compute_at(result, warp_loop, preserve_unit_loops=True)
    return out


def store(sch: Any, result: Any, out: Any, warps: Sequence[int]) -> None:
    """Bring results from registers to shared memory, and from there to global rows."""
    target = sch.get(out).writes[0].source
    bits = _bits(target)
    i, j = sch.get_loops(out)[-2:]
    # Lanes hold two neighbours of a row; an odd multiple of 16 bytes (32 bytes where two take 8)
    # between rows keeps a warp's rows in different banks. Ragged rows are rounded up to all banks.
    line = NUM_BANKS * BANK_BYTES * 8 // bits
    row = -(-int(sch.get(j).extent) // line) * line
    pad = (16 if bits <= 16 else 32) * 8 // bits
    sch.storage_align(result, 0, -2, factor=row + pad, offset=0)
    vector = copy_of(bits, True, _row(sch.get(out), target, "writes"), "none").vector
    across, rows, step = dealt(
        int(sch.get(j).extent) // vector, vector * bits // 8, pad * bits // 8
    )
    far, near, apart = sch.split(i, [None, rows, step])
    right, lanes = sch.split(j, [across, vector])
    sch.reorder(far, apart, near, right, lanes)
    spread(sch, sch.fuse(far, apart, near, right), warps)
    if vector > 1:
        sch.vectorize(lanes)
    for loop in sch.distribute_epilogue(result):
        sch.unroll(loop)
