"""Sums of the rows of a matrix, in 32 bits: lanes read along a row and add up their sums.

By default ``auto_coalesce`` maps the rows. Where ``lanes`` says how many threads share a row, the
mapping is laid out here: a block of ``threads`` threads sums as many rows as it has groups of
lanes, and a thread has ``loads`` vectors on their way before it adds the first of them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import s_tir, tirx

from tvm_layout_ext import te
from tvm_layout_ext.gpu.hardware import Architecture
from tvm_layout_ext.schedules import _coalesced
from tvm_layout_ext.tune.space.knobs import Config, Refusal, knob
from tvm_layout_ext.tune.space.operator import Operator, Tolerance

KNOBS = (
    *_coalesced.KNOBS,
    knob("lanes", (0, 16, 32, 64, 128, 256, 512), default=0),
    knob("loads", (0, 1, 2, 4, 8, 16), default=0),
)
#: Sums of thousands of halves: the order of the additions shows in the last bits.
TOLERANCE = Tolerance(rtol=1e-4, atol=1e-3)


def compute(shape: tuple[int, ...], dtype: str) -> list[Any]:
    """What is computed."""
    rows, columns = shape
    A = te.placeholder((rows, columns), dtype, name="A")
    k = te.reduce_axis((0, columns), name="k")
    B = te.compute((rows,), lambda i: te.sum(A[i, k].astype("float32"), axis=k), name="B")
    return [A, B]


def schedule(tensors: Sequence[Any], config: Config) -> te.Schedule | s_tir.Schedule:
    """How: as ``auto_coalesce`` maps it, or ``lanes`` threads a row."""
    lanes = int(config["lanes"])
    if not lanes:
        return _coalesced.coalesced(tensors, config)
    vector = int(config["vector_bytes"]) // np.dtype(str(tensors[0].dtype)).itemsize
    sch = s_tir.Schedule(te.create_prim_func(list(tensors)).with_attr("global_symbol", "main"))
    total = sch.get_sblock("B")
    i, loops = _split_row(sch, total, lanes, int(config["loads"]), vector)
    grid, row = sch.split(i, [None, int(config["threads"]) // lanes])
    lane = loops.pop("lane")
    sch.reorder(grid, row, lane, *loops.values())
    for loop, thread in ((grid, "blockIdx.x"), (row, "threadIdx.y"), (lane, "threadIdx.x")):
        sch.bind(loop, thread)
    # A buffer that has these loops as dims: all vectors of a step are loaded before the sums.
    iterators = len(loops) + 2
    same = tirx.IndexMap.from_func(lambda *at: list(at), ndim=iterators)
    registers = sch.reindex_cache_read(total, 0, "local", same)
    sch.compute_at(registers, loops.pop("step", lane), preserve_unit_loops=True)
    copies = sch.get_loops(registers)[-iterators:]
    if vector > 1:
        sch.vectorize(copies.pop())
    for loop in (*loops.values(), *copies):
        sch.unroll(loop)
    return sch


def _split_row(
    sch: s_tir.Schedule, total: Any, lanes: int, loads: int, vector: int
) -> tuple[Any, dict[str, Any]]:
    """Make iterators of the steps of a row, their loads, the lanes and the parts of a vector.

    Those of one iteration are left out: TVM's LowerCrossThreadReduction takes no such loop between
    the others.
    """
    columns = int(sch.get(total).iter_vars[1].dom.extent)
    sizes = {"step": columns // (lanes * loads * vector), "load": loads, "lane": lanes}
    sizes = {name: n for name, n in (sizes | {"part": vector}).items() if n > 1}

    def index_map(i: Any, k: Any) -> list[Any]:
        inside = columns
        parts = []
        for size in sizes.values():
            inside //= size
            parts.append(k // inside % size)
        return [i, *parts]

    sch.transform_block_layout(total, index_map)
    i, *loops = sch.get_loops(total)
    return i, dict(zip(sizes, loops, strict=True))


def check(
    shape: tuple[int, ...], dtype: str, config: Config, architecture: Architecture
) -> Refusal | None:
    """Why a configuration is not legal, or None."""
    threads, width, lanes, loads = (int(config[k.name]) for k in KNOBS)
    if not lanes:
        if loads:
            return Refusal("loads are auto's", "Without lanes, loads must be 0: auto chooses them.")
        return None
    if not loads or threads < lanes:
        return Refusal(
            "threads idle", f"{threads} threads with {loads} loads each do not hold {lanes} lanes."
        )
    vector = width // np.dtype(dtype).itemsize
    rows, columns = shape
    if not vector or columns % vector:
        return Refusal(
            "vector misaligned", f"Rows of {columns} have no whole vectors of {width} bytes."
        )
    if columns % (lanes * vector * loads):
        return Refusal(
            "row too short",
            f"{lanes} lanes with {loads} vectors of {vector} do not share out {columns} columns.",
        )
    if rows % (threads // lanes):
        return Refusal("rows idle", f"Blocks of {threads // lanes} rows do not share out {rows}.")
    return None


OPERATOR = Operator(
    name="row_sum",
    dims=("M", "N"),
    parallel=("M",),
    dtypes=("float16", "float32"),
    knobs=KNOBS,
    compute=compute,
    schedule=schedule,
    check=check,
    reference=lambda a: a.sum(1, dtype=np.float32),
    flops=lambda shape: shape[0] * shape[1],
    tolerance=lambda shape, dtype: TOLERANCE,
)
