"""The second kernel of a product whose K is split: it adds the slices up, and finishes the result.

What is computed from the product (bias, activation, the cast) is done there, element by element,
on sums that a thread holds in registers.
"""

from __future__ import annotations

from math import ceil, gcd, prod
from typing import Any

import numpy as np
from tvm import tirx

from tvm_layout_ext.gpu.hardware import (
    MAX_ACCESS_BYTES,
    MULTIPROCESSORS,
    SECTOR_BYTES,
    Architecture,
    mma_sync_rate,
)
from tvm_layout_ext.gpu.measured import H200
from tvm_layout_ext.schedule.merge_iterators import merge_result
from tvm_layout_ext.tune.space.knobs import Config

__all__ = ["SLICES", "add_up", "best_slices", "cycles", "fit", "workspace_bytes"]

#: Slices that the GEMM's knob offers.
SLICES = (1, 2, 4, 8)
#: Threads of a block; a small result is spread over more blocks by fewer of them.
THREADS, FEW_THREADS = 256, 64
#: Elements of a result below which blocks are small: two blocks of four-element vectors for each
#: multiprocessor.
SMALL = 2 * MULTIPROCESSORS * THREADS * 4
#: Share of the modelled cycles of one slice that more slices may take, or they are not the default.
SAVED = 0.9


def add_up(sch: Any, block: Any) -> None:
    """Schedule the sum over slices that ``sch.split_k`` leaves, and what reads it, as a kernel.

    Each thread adds a vector of neighbours of a row, slice after slice, in vectors of 16 bytes.
    Batches are blocks of their own: TVM vectorizes no sum whose threads count through three dims,
    the last of them not filling a block.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
    block : SBlockRV
        ``sum`` of :class:`.split_k.SplitK`.
    """
    out = _finished(sch, block)
    sums = sch.get(block).writes[0].source
    merge_result(sch, out, sums)
    sch.set_scope(block, 0, "local")
    loops = sch.get_loops(out)
    extents = [sch.get(loop).extent for loop in loops]
    itemsize = np.dtype(str(sums.dtype)).itemsize
    row = int(sch.get(out).writes[0].source.shape[-1])
    vector = gcd(row, int(extents[-1]), MAX_ACCESS_BYTES // itemsize)
    right, lanes = sch.split(loops[-1], [None, vector])
    # Of a symbolic number of rows K is split where they are few.
    is_known = all(isinstance(one, tirx.IntImm) for one in extents)
    threads = THREADS if is_known and prod(map(int, extents)) > SMALL else FEW_THREADS
    blocks, thread = sch.split(sch.fuse(*loops[-2:-1], right), [None, threads])
    batch = loops[:-2]
    if batch:
        sch.bind(sch.fuse(*batch), "blockIdx.y")
    sch.bind(blocks, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    if vector > 1:
        sch.vectorize(lanes)
    sch.compute_at(block, thread, preserve_unit_loops=True)
    slices, *_, one = sch.get_loops(block)[2 + bool(batch) :]
    if vector > 1:
        sch.vectorize(one)
    start = sch.decompose_reduction(block, slices)
    sch.unroll(slices)
    if vector > 1:
        sch.vectorize(sch.get_loops(start)[-1])


def _finished(sch: Any, block: Any) -> Any:
    """The block that writes the result; those between it and the sum are inlined."""
    readers = sch.get_consumers(block)
    if len(readers) != 1:
        sch.cache_write(block, 0, "local")
        (readers,) = (sch.get_consumers(block),)
    while len(after := sch.get_consumers(readers[0])) == 1:
        sch.compute_inline(readers[0])
        readers = after
    return readers[0]


def workspace_bytes(shape: tuple[int, ...], slices: int) -> int:
    """Bytes of the partial results in 32 bits; none where K is not split."""
    return slices * shape[0] * shape[1] * 4 if slices > 1 else 0


def cycles(shape: tuple[int, ...], config: Config, slices: int, dtype: str = "float16") -> float:
    """Modelled cycles of the multiprocessor with the most blocks, by which slices are chosen.

    It has ``n = ceil(tiles * slices / 132)`` blocks of ``ceil(steps / slices)`` steps. A step takes
    its products at the tensor cores' rate of the type for each block, and no less than the share of
    the memory's latency that the copies ahead leave. More than one slice costs a launch, and the
    workspace, which goes to the L2 cache and comes back. A model, not measured.

    Parameters
    ----------
    shape : tuple of int
        M, N, K.
    config : dict
        Tiles and stages.
    slices : int
    dtype : str
        Of the operands.
    """
    tile_m, tile_n, tile_k = (int(config[f"tile_{dim}"]) for dim in "mnk")
    tiles = ceil(shape[0] / tile_m) * ceil(shape[1] / tile_n)
    steps = ceil(ceil(shape[2] / tile_k) / slices)
    each = 2 * tile_m * tile_n * tile_k / (H200.tensor * mma_sync_rate(dtype))
    products = ceil(tiles * slices / MULTIPROCESSORS) * each
    waiting = H200.memory_latency / max(1, int(config["stages"]) - 1)
    return steps * max(products, waiting) + H200.memory_latency + second_kernel(shape, slices)


def second_kernel(shape: tuple[int, ...], slices: int) -> float:
    """Modelled cycles of what adds slices up: a launch, and the workspace there and back."""
    if slices == 1:
        return 0.0
    moved = 2 * workspace_bytes(shape, slices) / (H200.l2_sectors * SECTOR_BYTES)
    return H200.launch * H200.clock + moved


def best_slices(
    shape: tuple[int, ...], config: Config, values: tuple[int, ...], dtype: str = "float16"
) -> int:
    """The slices of the fewest modelled :func:`cycles`, if they save a tenth of them; else 1.

    Examples
    --------
    32 tiles leave a hundred multiprocessors idle, 1,024 none:

    >>> tile = {"tile_m": 128, "tile_n": 128, "tile_k": 32, "stages": 4}
    >>> best_slices((128, 4096, 4096), tile, (1, 2, 4, 8))
    4
    >>> best_slices((4096, 4096, 4096), tile, (1, 2, 4, 8))
    1
    """
    found = {slices: cycles(shape, config, slices, dtype) for slices in (1, *values)}
    best = min(values, key=lambda slices: (found[slices], slices))
    return best if found[best] <= SAVED * found[1] else 1


def fit(
    shape: tuple[int, ...], dtype: str, config: Config, architecture: Architecture
) -> dict[str, int]:
    """Split K by default where that is modelled to pay: :func:`best_slices` of those with steps."""
    del architecture
    steps = ceil(shape[2] / int(config["tile_k"]))
    return {"split_k": best_slices(shape, config, tuple(s for s in SLICES if s <= steps), dtype)}
