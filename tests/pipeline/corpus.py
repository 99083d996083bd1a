"""Functions that carry none of our annotations: TVM's own schedules over the usual operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import tvm
from tvm import s_tir, te, topi
from tvm.s_tir import dlight
from tvm.script import tirx as T

from benchmarks.foreign_kernels import RULES
from tests.programs.mapped import computed
from tests.programs.products import multiplied
from tvm_layout_ext import cuda_target

TARGET = cuda_target("sm_90a")


def _dlight(*tensors: te.Tensor) -> tvm.IRModule:
    mod = tvm.IRModule({"main": te.create_prim_func(list(tensors))})
    with TARGET:
        return dlight.ApplyDefaultSchedule(*RULES)(mod)


def _matmul(m: int, n: int, k: int, dtype: str, out: str) -> tvm.IRModule:
    return _dlight(*multiplied((m, n, k), dtype, out, b_transposed=True))


def _gemv(n: int, k: int, dtype: str) -> tvm.IRModule:
    a, x = te.placeholder((n, k), dtype, "A"), te.placeholder((k,), dtype, "x")
    r = te.reduce_axis((0, k), "k")
    return _dlight(a, x, te.compute((n,), lambda i: te.sum(a[i, r] * x[r], axis=r), name="y"))


def _reduce(
    shape: tuple[int, ...], axis: int, dtype: str, op: Callable[..., te.Tensor]
) -> tvm.IRModule:
    a = te.placeholder(shape, dtype, "A")
    return _dlight(a, op(a, axis=axis))


def _transpose(shape: tuple[int, ...], order: tuple[int, ...], dtype: str) -> tvm.IRModule:
    a = te.placeholder(shape, dtype, "A")
    return _dlight(a, topi.transpose(a, order))


def _unary(
    shape: tuple[int, ...], dtype: str, op: Callable[[te.Tensor], te.Tensor]
) -> tvm.IRModule:
    a = te.placeholder(shape, dtype, "A")
    return _dlight(a, op(a))


def _conv2d(layout: str, dtype: str) -> tvm.IRModule:
    if layout == "nchw":
        data = te.placeholder((1, 16, 14, 14), dtype, "data")
        kernel = te.placeholder((32, 16, 3, 3), dtype, "kernel")
        return _dlight(data, kernel, topi.nn.conv2d_nchw(data, kernel, 1, 1, 1, dtype))
    data = te.placeholder((1, 14, 14, 16), dtype, "data")
    kernel = te.placeholder((3, 3, 16, 32), dtype, "kernel")
    return _dlight(data, kernel, topi.nn.conv2d_nhwc(data, kernel, 1, 1, 1, dtype))


def _dynamic_rows(dtype: str) -> tvm.IRModule:
    n = te.var("n", "int64")
    a = te.placeholder((n, 256), dtype, "A")
    return _dlight(a, topi.nn.softmax(a, axis=-1))


def _dynamic_add() -> tvm.IRModule:
    n, m = te.var("n", "int64"), te.var("m", "int64")
    a, b = te.placeholder((n, m), "float32", "A"), te.placeholder((n, m), "float32", "B")
    return _dlight(a, b, topi.add(a, b))


def _tiled_shared(dtype: str, pad: bool, dynamic: bool) -> tvm.IRModule:
    """A transpose by hand, as a TVM user writes it: shared tile, vectors, storage_align."""
    func = computed((256, 192), lambda a, i, j: a[j, i], dtype, out=(192, 256)).mod["main"]
    sch = s_tir.Schedule(func)
    block = sch.get_sblock("B")
    i, j = sch.get_loops(block)
    io, ii = sch.split(i, [None, 32])
    jo, ji = sch.split(j, [None, 32])
    sch.reorder(io, jo, ii, ji)
    sch.bind(io, "blockIdx.y")
    sch.bind(jo, "blockIdx.x")
    copy = sch.cache_read(block, 0, "shared.dyn" if dynamic else "shared")
    sch.compute_at(copy, jo)
    for target in (copy, block):
        y, x = sch.get_loops(target)[-2:]
        y, _ = sch.split(y, [8, None])
        sch.bind(y, "threadIdx.y")
        sch.bind(x, "threadIdx.x")
    if pad:
        sch.storage_align(copy, 0, 0, 32, 1)
    return sch.mod


def _pipelined(stages: int) -> tvm.IRModule:
    """A loop that a TVM user pipelined with TVM's own annotations."""
    func = computed((64, 512), lambda a, i, j: a[i, j] * 2.0).mod["main"]
    sch = s_tir.Schedule(func)
    block = sch.get_sblock("B")
    i, j = sch.get_loops(block)
    jo, ji = sch.split(j, [None, 64])
    sch.bind(i, "blockIdx.x")
    sch.bind(ji, "threadIdx.x")
    copy = sch.cache_read(block, 0, "shared")
    sch.compute_at(copy, jo)
    sch.bind(sch.get_loops(copy)[-1], "threadIdx.x")
    sch.annotate(jo, "software_pipeline_stage", [0, stages - 1])
    sch.annotate(jo, "software_pipeline_order", [0, 1])
    return sch.mod


def _script_saxpy() -> tvm.IRModule:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((4096,), "float32"), y: T.Buffer((4096,), "float32")) -> None:
        for b in T.thread_binding(4, thread="blockIdx.x"):
            for t in T.thread_binding(256, thread="threadIdx.x"):
                for v in T.vectorized(4):
                    with T.sblock("saxpy"):
                        i = T.axis.spatial(4096, b * 1024 + t * 4 + v)
                        y[i] = y[i] + T.float32(2) * x[i]

    return tvm.IRModule({"main": main})


def two_warp_buffers() -> tvm.IRModule:
    """Two warp buffers: TVM's own LowerWarpMemory keeps its defect here."""

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((32,), "float32"), B: T.Buffer((32,), "float32")) -> None:
        for _bx in T.thread_binding(1, thread="blockIdx.x"):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                with T.sblock("exchange"):
                    T.reads(A[0:32])
                    T.writes(B[0:32])
                    p = T.sblock_alloc_buffer((32,), scope="warp")
                    q = T.sblock_alloc_buffer((32,), scope="warp")
                    p[tx] = A[tx]
                    q[tx] = p[tx ^ 1] + T.float32(1)
                    B[tx] = q[tx ^ 2]

    return tvm.IRModule({"main": main})


def _entries() -> Iterator[tuple[str, Callable[[], tvm.IRModule]]]:
    for dtype, out in (
        ("float32", "float32"),
        ("float16", "float16"),
        ("float16", "float32"),
        ("int8", "int32"),
        ("float64", "float64"),
    ):
        yield f"matmul_{dtype}_{out}", lambda d=dtype, o=out: _matmul(256, 256, 128, d, o)
    yield "matmul_ragged", lambda: _matmul(100, 70, 33, "float32", "float32")
    yield "matmul_bf16", lambda: _matmul(128, 128, 64, "bfloat16", "float32")
    for dtype in ("float32", "float16", "float64"):
        yield f"gemv_{dtype}", lambda d=dtype: _gemv(512, 1024, d)
        yield f"row_sum_{dtype}", lambda d=dtype: _reduce((128, 777), 1, d, topi.sum)
        yield f"column_max_{dtype}", lambda d=dtype: _reduce((300, 64), 0, d, topi.max)
        yield f"softmax_{dtype}", lambda d=dtype: _unary((64, 500), d, topi.nn.softmax)
        yield f"conv2d_nchw_{dtype}", lambda d=dtype: _conv2d("nchw", d)
    yield "conv2d_nhwc_float32", lambda: _conv2d("nhwc", "float32")
    for dtype in ("float32", "float16", "int8", "int64"):
        yield f"transpose_{dtype}", lambda d=dtype: _transpose((130, 70), (1, 0), d)
    yield "permute_4d", lambda: _transpose((2, 33, 8, 16), (0, 2, 1, 3), "float16")
    for name, op in (
        ("exp", topi.exp),
        ("tanh", topi.tanh),
        ("erf", topi.erf),
        ("rsqrt", topi.rsqrt),
        ("relu", topi.nn.relu),
        ("sigmoid", topi.sigmoid),
    ):
        yield f"unary_{name}", lambda f=op: _unary((1000,), "float32", f)
    yield "cast_f8", lambda: _unary((512,), "float32", lambda a: topi.cast(a, "float8_e4m3fn"))
    yield "cast_bf16", lambda: _unary((512,), "float32", lambda a: topi.cast(a, "bfloat16"))
    yield "argmax", lambda: _unary((16, 300), "float32", lambda a: topi.argmax(a, 1))
    yield "dynamic_softmax", lambda: _dynamic_rows("float32")
    yield "dynamic_softmax_f16", lambda: _dynamic_rows("float16")
    yield "dynamic_add", _dynamic_add
    for dtype in ("float32", "float16"):
        for pad in (False, True):
            for dynamic in (False, True):
                name = f"tiled_{dtype}_{'pad' if pad else 'plain'}_{'dyn' if dynamic else 'static'}"
                yield name, lambda d=dtype, p=pad, y=dynamic: _tiled_shared(d, p, y)
    for stages in (2, 3):
        yield f"pipelined_{stages}", lambda s=stages: _pipelined(s)
    yield "script_saxpy", _script_saxpy
    yield "two_warp_buffers", two_warp_buffers


CORPUS: dict[str, Callable[[], tvm.IRModule]] = dict(_entries())
