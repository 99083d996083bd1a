"""The second kernel of a product whose K is split: it adds the slices up, and finishes the result.

What is computed from the product (bias, activation, the cast) is done there, element by element,
on sums that a thread holds in registers.
"""

from __future__ import annotations

from math import gcd, prod
from typing import Any

import numpy as np

from tvm_layout_ext.hardware import MAX_ACCESS_BYTES

__all__ = ["add_up"]

#: Threads of a block; a small result is spread over more blocks by fewer of them.
THREADS, FEW_THREADS = 256, 64
#: Elements of a result below which blocks are small: two blocks of four-element vectors for each of
#: 132 multiprocessors.
SMALL = 2 * 132 * THREADS * 4


def add_up(sch: Any, block: Any) -> None:
    """Schedule the sum over slices that ``sch.split_k`` leaves, and what reads it, as a kernel.

    Each thread adds a vector of neighbours of a row, slice after slice, in vectors of 16 bytes.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
    block : SBlockRV
        ``sum`` of :class:`~tvm_layout_ext.schedule.split_k.SplitK`.
    """
    out = _finished(sch, block)
    sums = sch.get(block).writes[0].source
    sch.set_scope(block, 0, "local")
    loops = sch.get_loops(out)
    extents = [int(sch.get(loop).extent) for loop in loops]
    itemsize = np.dtype(str(sums.dtype)).itemsize
    vector = gcd(extents[-1], MAX_ACCESS_BYTES // itemsize)
    right, lanes = sch.split(loops[-1], [None, vector])
    threads = THREADS if prod(extents) > SMALL else FEW_THREADS
    blocks, thread = sch.split(sch.fuse(*loops[:-1], right), [None, threads])
    sch.bind(blocks, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    if vector > 1:
        sch.vectorize(lanes)
    sch.compute_at(block, thread, preserve_unit_loops=True)
    _, _, slices, *_, one = sch.get_loops(block)
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
