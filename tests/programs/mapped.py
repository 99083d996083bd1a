"""Programs of one block, and how its iterations are shared out among threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tvm import s_tir, te


def computed(
    shape: Any, rule: Callable[..., Any], dtype: str = "float32", out: Any = None
) -> s_tir.Schedule:
    """B, whose elements are ``rule(A, *indices)``; its shape is that of A unless ``out`` says."""
    a = te.placeholder(shape, dtype, "A")
    b = te.compute(a.shape if out is None else out, partial(rule, a), "B")
    return s_tir.Schedule(te.create_prim_func([a, b]))


def share(sch: s_tir.Schedule, threads: int, vector: int = 1, block: str = "B") -> Any:
    """Share a block's iterations out to threads, each a vector; the loop over thread blocks."""
    loops = sch.get_loops(block)
    fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    grid, thread, *lanes = sch.split(fused, [None, threads, vector][: 2 + (vector > 1)])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    for loop in lanes:
        sch.vectorize(loop)
    return grid
