"""Schedules and device programs that the simulator's tests run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.s_tir import Schedule

from tests.programs.mapped import computed
from tests.programs.products import multiplied
from tvm_layout_ext.build import DeviceProgram, device_program

_ML = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, dtype)) if dtype in _ML else np.dtype(dtype)


def random(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    if dtype.startswith(("int", "uint")):
        return rng.integers(1, 100, shape).astype(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    return rng.standard_normal(shape).astype(numpy_dtype(dtype))


def transpose(
    size: int = 64, dtype: str = "float32", pad: int = 0, rows: int = 8, scope: str = "shared"
) -> Schedule:
    """Transpose through a 32 x 32 tile of shared memory, rows padded by ``pad`` elements."""
    sch = computed((size, size), lambda a, i, j: a[j, i], dtype)
    block = sch.get_sblock("B")
    i, j = sch.get_loops(block)
    io, ii = sch.split(i, [None, 32])
    jo, ji = sch.split(j, [None, 32])
    sch.reorder(io, jo, ii, ji)
    copy = sch.cache_read(block, 0, scope)
    sch.compute_at(copy, jo)
    _, y = sch.split(ii, [None, rows])
    sch.bind(io, "blockIdx.y")
    sch.bind(jo, "blockIdx.x")
    sch.bind(y, "threadIdx.y")
    sch.bind(ji, "threadIdx.x")
    first, second = sch.get_loops(copy)[-2:]
    _, y = sch.split(first, [None, rows])
    sch.bind(y, "threadIdx.y")
    sch.bind(second, "threadIdx.x")
    if pad:
        sch.storage_align(copy, 0, 0, 32, pad)
    return sch


def matmul(
    size: int = 64,
    dtype: str = "float32",
    total: str | None = None,
    stages: int = 0,
    scope: str = "shared",
) -> Schedule:
    """Tiled product with both operands in shared memory, filled by 16-byte vectors."""
    sch = Schedule(te.create_prim_func(multiplied((size,) * 3, dtype, total or dtype)))
    block = sch.get_sblock("C")
    result = sch.cache_write(block, 0, "local")
    i, j, k_loop = sch.get_loops(block)
    bi, ti, ii = sch.split(i, [None, 16, 4])
    bj, tj, jj = sch.split(j, [None, 16, 4])
    ko, ki = sch.split(k_loop, [None, 16])
    sch.reorder(bi, bj, ti, tj, ko, ki, ii, jj)
    for loop, axis in zip((bi, bj, ti, tj), _AXES, strict=True):
        sch.bind(loop, axis)
    sch.reverse_compute_at(result, tj)
    for operand in (0, 1):
        copy = sch.cache_read(block, operand, scope)
        sch.compute_at(copy, ko)
        fused = sch.fuse(*sch.get_loops(copy)[-2:])
        width = 16 // numpy_dtype(dtype).itemsize
        _, y, x, lane = sch.split(fused, [None, 16, 16, width])
        sch.bind(y, "threadIdx.y")
        sch.bind(x, "threadIdx.x")
        sch.vectorize(lane)
    sch.decompose_reduction(block, ko)
    if stages:
        sch.annotate(ko, "software_pipeline_stage", [0, 0, stages - 1])
        sch.annotate(ko, "software_pipeline_order", [0, 1, 2])
        sch.annotate(ko, "software_pipeline_async_stages", [0])
    return sch


_AXES = ("blockIdx.y", "blockIdx.x", "threadIdx.y", "threadIdx.x")


def async_matmul_program() -> DeviceProgram:
    """The product in 3 stages with ``cp.async``, as TVM lowers it."""
    with tvm.transform.PassContext(config={"tirx.use_async_copy": True}):
        return device_program(matmul(64, "float16", "float32", 3, "shared.dyn"))


def row_sum(rows: int = 64, columns: int = 128, threads: int = 64, dtype: str = "float32") -> Any:
    """Row sum by a cross-thread reduction."""
    A = te.placeholder((rows, columns), dtype, name="A")
    k = te.reduce_axis((0, columns), name="k")
    B = te.compute((rows,), lambda i: te.sum(A[i, k], axis=k), name="B")
    sch = Schedule(te.create_prim_func([A, B]))
    block = sch.get_sblock("B")
    i, k_loop = sch.get_loops(block)
    _, inner = sch.split(k_loop, [None, threads])
    sch.bind(i, "blockIdx.x")
    sch.bind(inner, "threadIdx.x")
    return sch


def elementwise(function: Any, dtypes: list[str], size: int = 256, vector: int = 1) -> Schedule:
    """Apply a function to arrays, each thread to ``vector`` elements."""
    inputs = [te.placeholder((size,), dtype, name=f"A{i}") for i, dtype in enumerate(dtypes)]
    B = te.compute((size,), lambda i: function(*[a[i] for a in inputs]), name="B")
    sch = Schedule(te.create_prim_func([*inputs, B]))
    (i,) = sch.get_loops(sch.get_sblock("B"))
    block, thread, lane = sch.split(i, [None, 32, vector])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    if vector > 1:
        sch.vectorize(lane)
    return sch


def rewritten(program: DeviceProgram, kind: type, change: Any) -> DeviceProgram:
    """Replace nodes of a kind in each kernel."""
    kernels = {
        name: k.with_body(tvm_ffi.structural_map(k.body, [(kind, change)], order="post"))
        for name, k in program.kernels.items()
    }
    return replace(program, kernels=kernels)


def changed(
    program: DeviceProgram,
    op: str,
    change: Callable[[Any], Any],
    which: int | None = None,
    chosen: Callable[[Any], bool] = lambda call: True,
) -> DeviceProgram:
    """Replace the statements that call ``op``, or one of them, of those that are ``chosen``.

    ``change`` gets the call, and gives another one, or None to leave it out.
    """
    seen = -1

    def statement(node: Any) -> Any:
        nonlocal seen
        call = node.value
        if getattr(getattr(call, "op", None), "name", "") != op or not chosen(call):
            return node
        seen += 1
        if which is not None and seen != which:
            return node
        new = change(call)
        return tirx.Evaluate(0 if new is None else new)

    found = rewritten(program, tirx.Evaluate, statement)
    assert seen >= (which or 0)
    return found


def without(program: DeviceProgram, op: str, which: int) -> DeviceProgram:
    """Take the ``which``-th statement that calls ``op`` out of a program."""
    return changed(program, op, lambda call: None, which)


def without_waits(program: DeviceProgram) -> DeviceProgram:
    """Let every ``cp.async`` wait allow all groups to stay under way."""

    def loosen(node: Any) -> Any:
        if str(node.attr_key) != "async_wait_inflight_count":
            return node
        return tirx.AttrStmt(node.node, node.attr_key, tirx.IntImm("int32", 99), node.body)

    return rewritten(program, tirx.AttrStmt, loosen)


SYNC = "tirx.tvm_storage_sync"
