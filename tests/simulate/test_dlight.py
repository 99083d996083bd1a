"""TVM's own schedules: results equal NumPy's, and nothing is reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, topi
from tvm.s_tir import dlight

from tests.programs import kernels
from tvm_layout_ext.errors import SimulationError
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.target import default_target

gpu = dlight.gpu


def tensor(shape: tuple[int, ...], name: str, dtype: str = "float32") -> Any:
    return te.placeholder(shape, dtype, name=name)


def scheduled(tensors: list[Any], rule: Any) -> tvm.IRModule:
    function = te.create_prim_func(tensors).with_attr("global_symbol", "main")
    with default_target():
        return dlight.ApplyDefaultSchedule(rule)(tvm.IRModule({"main": function}))


def matmul(n: int, m: int, depth: int, dtype: str = "float32", total: str = "float32") -> list[Any]:
    A, B = tensor((n, depth), "A", dtype), tensor((depth, m), "B", dtype)
    k = te.reduce_axis((0, depth), "k")
    C = te.compute(
        (n, m), lambda i, j: te.sum(A[i, k].astype(total) * B[k, j].astype(total), axis=k), name="C"
    )
    return [A, B, C]


def gemv(n: int, depth: int) -> list[Any]:
    x, W = tensor((1, depth), "x"), tensor((n, depth), "W")
    k = te.reduce_axis((0, depth), "k")
    return [x, W, te.compute((1, n), lambda i, j: te.sum(x[i, k] * W[j, k], axis=k), name="C")]


def unary(
    function: Callable[[Any], Any], shape: tuple[int, ...], dtype: str = "float32"
) -> list[Any]:
    A = tensor(shape, "A", dtype)
    return [A, function(A)]


def convolution() -> list[Any]:
    A, W = tensor((1, 8, 14, 14), "A"), tensor((16, 8, 3, 3), "W")
    return [A, W, topi.nn.conv2d_nchw(A, W, 1, 0, 1)]


def convolve(a: Any, w: Any) -> Any:
    size = a.shape[2] - 2
    out = np.zeros((1, w.shape[0], size, size))
    for i in range(3):
        for j in range(3):
            out += np.einsum("nchw,oc->nohw", a[:, :, i : i + size, j : j + size], w[:, :, i, j])
    return out


def softmax(a: Any) -> Any:
    raised = np.exp(a - a.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)


def layer_norm() -> list[Any]:
    A, g = tensor((64, 200), "A"), tensor((200,), "g")
    return [A, g, topi.nn.layer_norm(A, g, g, [1])]


def layer_norm_reference(a: Any, g: Any) -> Any:
    centred = a - a.mean(1, keepdims=True)
    return centred / np.sqrt(a.var(1, keepdims=True) + 1e-5) * g + g


CASES: dict[str, tuple[Callable[[], list[Any]], Any, Callable[..., Any], float]] = {
    "matmul": (lambda: matmul(128, 128, 64), gpu.Matmul, lambda a, b: a @ b, 1e-3),
    "matmul half": (
        lambda: matmul(128, 128, 64, "float16"), gpu.Matmul, lambda a, b: a @ b, 1e-2,
    ),
    "matmul ragged": (lambda: matmul(100, 60, 50), gpu.Matmul, lambda a, b: a @ b, 1e-3),
    "matmul small": (lambda: matmul(3, 5, 7), gpu.Matmul, lambda a, b: a @ b, 1e-3),
    "gemv": (lambda: gemv(128, 256), gpu.GEMV, lambda x, w: x @ w.T, 1e-3),
    "gemv ragged": (lambda: gemv(112, 130), gpu.GEMV, lambda x, w: x @ w.T, 1e-3),
    "softmax": (
        lambda: unary(lambda a: topi.nn.softmax(a), (64, 200)), gpu.GeneralReduction, softmax, 1e-4,
    ),
    "layer norm": (layer_norm, gpu.GeneralReduction, layer_norm_reference, 1e-3),
    "row sum": (
        lambda: unary(lambda a: topi.sum(a, axis=1), (64, 200)), gpu.Reduction,
        lambda a: a.sum(1), 1e-3,
    ),
    "column sum": (
        lambda: unary(lambda a: topi.sum(a, axis=0), (200, 64)), gpu.Reduction,
        lambda a: a.sum(0), 1e-3,
    ),
    "whole sum": (
        lambda: unary(lambda a: topi.sum(a), (300,)), gpu.Reduction, lambda a: a.sum(), 1e-3,
    ),
    "row maximum": (
        lambda: unary(lambda a: topi.max(a, axis=1), (64, 200)), gpu.Fallback,
        lambda a: a.max(1), 1e-6,
    ),
    "argmax": (
        lambda: unary(lambda a: topi.argmax(a, axis=1), (64, 200)), gpu.GeneralReduction,
        lambda a: a.argmax(1), 0,
    ),
    "transpose": (
        lambda: unary(topi.transpose, (100, 70)), gpu.Transpose, lambda a: a.T, 0,
    ),
    "transpose half": (
        lambda: unary(topi.transpose, (128, 64), "float16"), gpu.Transpose, lambda a: a.T, 0,
    ),
    "elementwise": (
        lambda: unary(lambda a: topi.exp(topi.nn.relu(a)), (100, 70)), gpu.Fallback,
        lambda a: np.exp(np.maximum(a, 0)), 1e-5,
    ),
    "padding": (
        lambda: unary(lambda a: topi.nn.pad(a, [1, 2], [3, 1]), (17, 16)), gpu.Fallback,
        lambda a: np.pad(a, [(1, 3), (2, 1)]), 0,
    ),
    "convolution": (convolution, gpu.Fallback, convolve, 1e-3),
}  # fmt: skip


@pytest.mark.matrix
@pytest.mark.parametrize("name", CASES)
def test_schedule_of_tvm_is_right_and_clean(name: str) -> None:
    make, rule, reference, tolerance = CASES[name]
    tensors = make()
    arrays = [
        kernels.random(tuple(int(e) for e in t.shape), str(t.dtype), seed)
        for seed, t in enumerate(tensors[:-1])
    ]
    report = simulate(scheduled(tensors, rule()), *arrays)
    assert report.hazards == []
    (got,) = report.outputs.values()
    wanted = reference(*[a.astype("float64") for a in arrays])
    np.testing.assert_allclose(
        got.astype("float64"), wanted, rtol=tolerance or 1e-7, atol=tolerance
    )


def test_write_past_the_end_in_tvms_own_ragged_gemv_is_found() -> None:
    # Lowering the cross-thread reduction drops the guard of the final store: 7 x 16 rows of 100.
    arrays = kernels.random((1, 130)), kernels.random((100, 130), seed=1)
    with pytest.raises(SimulationError, match="index 100 of C"):
        simulate(scheduled(gemv(100, 130), gpu.GEMV()), *arrays)
