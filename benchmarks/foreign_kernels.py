"""Kernels that others scheduled: TVM's topi computations under dlight's rules, or topi's own.

:data:`CASES` has small ones, so that a profiler and the simulated GPU run each whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import te, topi
from tvm.s_tir import dlight

from tvm_layout_ext.target import default_target

__all__ = ["CASES", "RULES", "arrays", "module", "tensors"]

#: dlight's rules, in the order in which they are asked here.
RULES = [
    dlight.gpu.Matmul(),
    dlight.gpu.GEMV(),
    dlight.gpu.Reduction(),
    dlight.gpu.GeneralReduction(),
    dlight.gpu.Transpose(),
    dlight.gpu.Fallback(),
]


def _of(*shapes: tuple[int, ...], dtype: str = "float32") -> list[Any]:
    return [te.placeholder(shape, dtype, name="ABCD"[i]) for i, shape in enumerate(shapes)]


def _made(function: Callable[..., Any], *shapes: tuple[int, ...], dtype: str = "float32") -> Any:
    def tensors() -> list[Any]:
        given = _of(*shapes, dtype=dtype)
        made = function(*given)
        return [*given, *(made if isinstance(made, list) else [made])]

    return tensors


def _gather() -> list[Any]:
    data, rows = te.placeholder((512, 100), name="A"), te.placeholder((96,), "int32", name="rows")
    return [data, rows, topi.take(data, rows, axis=0)]


#: Name -> tensors of the function, inputs first.
CASES: dict[str, Callable[[], list[Any]]] = {
    "softmax": _made(lambda a: topi.nn.softmax(a), (512, 250)),
    "softmax_even": _made(lambda a: topi.nn.softmax(a), (64, 1024)),
    "log_softmax": _made(topi.nn.log_softmax, (64, 200)),
    "column_max": _made(lambda a: topi.max(a, axis=0), (512, 640)),
    "column_sum": _made(lambda a: topi.sum(a, axis=0), (200, 640)),
    "row_sum": _made(lambda a: topi.sum(a, axis=1), (128, 1000)),
    "row_max": _made(lambda a: topi.max(a, axis=1), (64, 200)),
    "argmax": _made(lambda a: topi.argmax(a, axis=1), (64, 200)),
    "matmul": _made(topi.matmul, (128, 96), (96, 128)),
    "matmul_ragged": _made(topi.matmul, (100, 50), (50, 60)),
    "matmul_half": _made(topi.matmul, (128, 64), (64, 128), dtype="float16"),
    "gemv": _made(lambda a, b: topi.nn.dense(a, b), (1, 512), (256, 512)),
    "gemv_ragged": _made(lambda a, b: topi.nn.dense(a, b), (1, 130), (112, 130)),
    "gemv_half": _made(lambda a, b: topi.nn.dense(a, b), (1, 512), (256, 512), dtype="float16"),
    "conv2d": _made(
        lambda a, w: topi.nn.conv2d_nchw(a, w, 1, 1, 1), (1, 16, 28, 28), (32, 16, 3, 3)
    ),
    "conv2d_small": _made(
        lambda a, w: topi.nn.conv2d_nchw(a, w, 1, 0, 1), (1, 8, 14, 14), (16, 8, 3, 3)
    ),
    "depthwise": _made(
        lambda a, w: topi.nn.depthwise_conv2d_nchw(a, w, 1, 1, 1), (1, 16, 28, 28), (16, 1, 3, 3)
    ),
    "pool": _made(
        lambda a: topi.nn.pool2d(a, [3, 3], [2, 2], [1, 1], [1, 1, 1, 1], "max"), (1, 16, 30, 30)
    ),
    "layer_norm": _made(
        lambda a, g, b: topi.nn.layer_norm(a, g, b, [1]), (64, 200), (200,), (200,)
    ),
    "rms_norm": _made(lambda a, g: topi.nn.rms_norm(a, g, [1]), (64, 256), (256,)),
    "transpose": _made(topi.transpose, (200, 168)),
    "transpose_half": _made(topi.transpose, (128, 64), dtype="float16"),
    "gelu": _made(lambda a: a * 0.5 * (1 + topi.erf(a * 0.70710678)), (100, 333)),
    "bias_relu": _made(lambda a, b: topi.nn.relu(topi.add(a, b) * a), (64, 300), (300,)),
    "gather": _gather,
    "concatenate": _made(lambda a, b: topi.concatenate([a, b], axis=1), (64, 100), (64, 60)),
}  # fmt: skip


def tensors(name: str) -> list[Any]:
    """Inputs and output of a case."""
    with default_target():
        return CASES[name]()


def module(name: str) -> tvm.IRModule:
    """The scheduled function; its kernels bear the name of the case."""
    function = te.create_prim_func(tensors(name)).with_attr("global_symbol", name)
    with default_target():
        return dlight.ApplyDefaultSchedule(*RULES)(tvm.IRModule({name: function}))


def arrays(name: str) -> list[Any]:
    """Inputs from a fixed seed, indices below 96, and the output as zeros."""
    rng = np.random.default_rng(0)
    found: list[Any] = []
    *inputs, output = [(tuple(map(int, t.shape)), str(t.dtype)) for t in tensors(name)]
    for shape, dtype in inputs:
        whole = dtype.startswith("int")
        values = rng.integers(0, 96, shape) if whole else rng.standard_normal(shape)
        found.append(values.astype(dtype))
    return [*found, np.zeros(*output)]
