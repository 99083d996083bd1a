"""How warps share out the rows of tiles in shared memory, so that no access meets a bank twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from ..gpu.hardware import BANK_BYTES, NUM_BANKS, WARP_SIZE
from ..gpu.tile_copies import copy_of, dealt
from ..ir.evaluate import placeholder_extent
from ..ir.queries import uses
from .primitives.distribute_epilogue import distribute_epilogue
from .primitives.swizzle import swizzle as set_swizzle


def fetch(
    sch: Any, block: Any, k_major: bool, warps: Sequence[int], swizzle: str
) -> tuple[Any, Any, Any, Any, Any]:
    """Copy a tile of an operand to shared memory, all warps together.

    What is left of the loop for each thread comes first, then the threads and a vector's lanes.
    """
    source = sch.get(block).reads[0].source
    bits = _bits(source)
    set_swizzle(sch, block, 0, swizzle)
    copy = copy_of(bits, k_major, row_of(sch.get(block), source, "reads"), swizzle)
    i, j = sch.get_loops(block)[-2:]
    columns = int(sch.get(j).extent)
    if columns * bits % (8 * NUM_BANKS * BANK_BYTES) == 0:
        copy = replace(copy, rows=1, neighbours=1)
    vectors = columns // copy.vector
    near = max(1, min(vectors, WARP_SIZE // copy.rows) // copy.neighbours)
    down, rows = sch.split(i, [None, copy.rows])
    right, *across, lanes = sch.split(j, [None, near, copy.neighbours, copy.vector])
    sch.reorder(down, right, across[0], rows, across[1], lanes)
    found = spread(sch, sch.fuse(down, right, across[0], rows, across[1]), warps)
    sch.unroll(found[0])
    if copy.vector > 1:
        sch.vectorize(lanes)
    return *found, lanes


def spread(sch: Any, loop: Any, warps: Sequence[int]) -> tuple[Any, Any, Any, Any]:
    """Share a loop out to all threads, neighbours to neighbouring lanes; the rest goes first."""
    rest, y, z, x = sch.split(loop, [None, *warps, WARP_SIZE])
    sch.bind(y, "threadIdx.y")
    sch.bind(z, "threadIdx.z")
    sch.bind(x, "threadIdx.x")
    return rest, y, z, x


def _bits(buffer: Any) -> int:
    return np.dtype(str(buffer.dtype)).itemsize * 8


def row_of(block: Any, buffer: Any, kind: str) -> int:
    """Elements of a buffer that are neighbours along the innermost iterator of a copy."""
    (region,) = (one for one in getattr(block, kind) if one.source.same_as(buffer))
    inner = block.iter_vars[-1]
    for at, extent in reversed(list(zip(region.region, buffer.shape, strict=True))):
        if placeholder_extent(extent) > 1 or placeholder_extent(inner.dom.extent) == 1:
            along = at.min.a if isinstance(at.min, tirx.FloorMod) else at.min
            return gcd(placeholder_extent(extent), _first_of(along, inner.var))
    return 1


def _first_of(index: Any, inner: Any) -> int:
    """What the elements before those that an iterator counts are a multiple of; 1 if none are.

    A slice of K begins at ``slice * length``.
    """
    analyzer = tvm.sym.Analyzer()
    first = analyzer.simplify(index - inner)
    if uses(first, inner):
        return 1
    known = analyzer.modular_set(first)
    return gcd(int(known.coeff), int(known.base))


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
    vector = copy_of(bits, True, row_of(sch.get(out), target, "writes"), "none").vector
    across, rows, step = dealt(
        int(sch.get(j).extent) // vector, vector * bits // 8, pad * bits // 8
    )
    far, near, apart = sch.split(i, [None, rows, step])
    right, lanes = sch.split(j, [across, vector])
    sch.reorder(far, apart, near, right, lanes)
    spread(sch, sch.fuse(far, apart, near, right), warps)
    if vector > 1:
        sch.vectorize(lanes)
    for loop in distribute_epilogue(sch, result):
        sch.unroll(loop)
