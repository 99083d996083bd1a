"""Small kernels whose memory accesses are known by construction, one pattern each.

Each entry gives a schedule, its arguments and random inputs. They are written with the package's
primitives, so that they also show how one writes a bad access on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tvm

from tvm_layout_ext import te

__all__ = ["KERNELS", "Kernel"]


@dataclass(frozen=True)
class Kernel:
    """A scheduled computation with inputs and its NumPy result."""

    schedule: te.Schedule
    args: list[te.Tensor]
    inputs: list[np.ndarray]
    expected: np.ndarray


def _random(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(dtype)


def _thread(tag: str) -> tvm.tirx.IterVar:
    return te.thread_axis(tag)


def transpose(dtype: str, pad: int, size: int = 512, tile: int = 32, rows: int = 8) -> Kernel:
    """Transpose through a 32x32 shared tile, one element an access, row stride 32 + ``pad``."""
    A = te.placeholder((size, size), dtype, "A")
    B = te.compute((size, size), lambda j, i: A[i, j], name="B")
    s = te.create_schedule(B.op)
    AA = s.cache_read(A, "shared", [B])
    jo, io, ji, ii = s[B].tile(B.op.axis[0], B.op.axis[1], tile, tile)
    s[B].bind(jo, _thread("blockIdx.y"))
    s[B].bind(io, _thread("blockIdx.x"))
    s[AA].compute_at(s[B], io)
    for stage, row, column in ((s[B], ji, ii), (s[AA], AA.op.axis[0], AA.op.axis[1])):
        _, inner = stage.split(row, factor=rows)
        stage.bind(inner, _thread("threadIdx.y"))
        stage.bind(column, _thread("threadIdx.x"))
    if pad:
        s[AA].storage_align(AA.op.axis[0], tile, pad)
    a = _random((size, size), dtype)
    return Kernel(s, [A, B], [a], np.ascontiguousarray(a.T))


def staged_copy(dtype: str, vector: int) -> Kernel:
    """Copy 2^18 elements through shared memory with ``vector`` of them an access."""
    row = 32 * vector
    A = te.placeholder(((1 << 18) // row, row), dtype, "A")
    B = te.compute(A.shape, lambda i, j: A[i, j], name="B")
    s = te.create_schedule(B.op)
    AA = s.cache_read(A, "shared", [B])
    io, ii = s[B].split(B.op.axis[0], factor=8)
    s[B].bind(io, _thread("blockIdx.x"))
    s[AA].compute_at(s[B], io)
    for stage, y, x in ((s[B], ii, B.op.axis[1]), (s[AA], AA.op.axis[0], AA.op.axis[1])):
        xo, xi = stage.split(x, factor=vector)
        stage.bind(y, _thread("threadIdx.y"))
        stage.bind(xo, _thread("threadIdx.x"))
        stage.vectorize(xi)
    a = _random(((1 << 18) // row, row), dtype)
    return Kernel(s, [A, B], [a], a)


def strided_copy(stride: int, size: int = 1 << 16) -> Kernel:
    """Read every ``stride``-th element: 32 lanes spread over ``stride`` times the bytes."""
    A = te.placeholder((size * stride,), "float32", "A")
    B = te.compute((size,), lambda i: A[i * stride], name="B")
    s = te.create_schedule(B.op)
    io, ii = s[B].split(B.op.axis[0], factor=256)
    s[B].bind(io, _thread("blockIdx.x"))
    s[B].bind(ii, _thread("threadIdx.x"))
    a = _random((size * stride,), "float32")
    return Kernel(s, [A, B], [a], a[::stride].copy())


def column_gather(rows: int = 4096, columns: int = 64) -> Kernel:
    """Read one column at random rows, found through an index array."""
    A = te.placeholder((rows, columns), "float32", "A")
    index = te.placeholder((rows,), "int32", "index")
    B = te.compute((rows,), lambda i: A[index[i], 3], name="B")
    s = te.create_schedule(B.op)
    io, ii = s[B].split(B.op.axis[0], factor=128)
    s[B].bind(io, _thread("blockIdx.x"))
    s[B].bind(ii, _thread("threadIdx.x"))
    a = _random((rows, columns), "float32")
    picks = np.random.default_rng(2).integers(0, rows, rows).astype("int32")
    return Kernel(s, [A, index, B], [a, picks], a[picks, 3])


def simt_matmul(size: int = 256, tile: int = 64, step: int = 16, vector: int = 4) -> Kernel:
    """C = A.T @ B on the plain cores: 64x64 tiles, 4x4 results a thread, 16-byte shared loads.

    A is transposed because a thread's elements of A @ B would be neighbours along k, which nvcc
    merges into wider loads that the simulated TIR does not show.
    """
    A = te.placeholder((size, size), "float32", "A")
    B = te.placeholder((size, size), "float32", "B")
    k = te.reduce_axis((0, size), "k")
    C = te.compute((size, size), lambda i, j: te.sum(A[k, i] * B[k, j], axis=k), name="C")
    s = te.create_schedule(C.op)
    AA, BB = s.cache_read(A, "shared", [C]), s.cache_read(B, "shared", [C])
    AL, BL = s.cache_read(AA, "local", [C]), s.cache_read(BB, "local", [C])
    CL = s.cache_write(C, "local")
    per = vector
    io, jo, ii, ji = s[C].tile(C.op.axis[0], C.op.axis[1], tile, tile)
    ty, yi = s[C].split(ii, factor=per)
    tx, xi = s[C].split(ji, factor=per)
    s[C].reorder(io, jo, ty, tx, yi, xi)
    for axis, tag in (
        (io, "blockIdx.y"),
        (jo, "blockIdx.x"),
        (ty, "threadIdx.y"),
        (tx, "threadIdx.x"),
    ):
        s[C].bind(axis, _thread(tag))
    s[C].vectorize(xi)
    s[CL].compute_at(s[C], tx)
    ko, ki = s[CL].split(CL.op.reduce_axis[0], factor=step)
    s[CL].reorder(ko, ki, *CL.op.axis)
    for axis in CL.op.axis:
        s[CL].unroll(axis)
    for fragment in (AL, BL):
        s[fragment].compute_at(s[CL], ki)
        s[fragment].vectorize(fragment.op.axis[1])
    for shared in (AA, BB):
        s[shared].compute_at(s[CL], ko)
        fused = s[shared].fuse(*shared.op.axis)
        rest, lane = s[shared].split(fused, factor=tile // per)
        _, lane_y = s[shared].split(rest, factor=tile // per)
        s[shared].bind(lane_y, _thread("threadIdx.y"))
        s[shared].bind(lane, _thread("threadIdx.x"))
    a, b = _random((size, size), "float32"), _random((size, size), "float32")[::-1].copy()
    return Kernel(s, [A, B, C], [a, b], (a.T.astype("float64") @ b).astype("float32"))


#: Every pattern by name.
KERNELS: dict[str, Callable[[], Kernel]] = {
    "transpose_f32": lambda: transpose("float32", 0),
    "transpose_f32_padded": lambda: transpose("float32", 1),
    "transpose_f16": lambda: transpose("float16", 0),
    "transpose_f16_padded": lambda: transpose("float16", 2),
    "transpose_f64": lambda: transpose("float64", 0),
    "transpose_f64_padded": lambda: transpose("float64", 1),
    "copy_f32_x1": lambda: staged_copy("float32", 1),
    "copy_f32_x2": lambda: staged_copy("float32", 2),
    "copy_f32_x4": lambda: staged_copy("float32", 4),
    "copy_f16_x8": lambda: staged_copy("float16", 8),
    "strided_copy_x3": lambda: strided_copy(3),
    "strided_copy_x8": lambda: strided_copy(8),
    "column_gather": column_gather,
    "simt_matmul_f32": simt_matmul,
}
