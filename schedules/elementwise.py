"""Bias and rectifier, ``C[i, j] = max(A[i, j] + b[j], 0)``: one read and one write an element."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx

from tvm_layout_ext import te
from tvm_layout_ext.schedules._coalesced import memory_bound


def compute(shape: tuple[int, ...], dtype: str) -> list[Any]:
    """What is computed."""
    rows, columns = shape
    A = te.placeholder((rows, columns), dtype, name="A")
    b = te.placeholder((columns,), dtype, name="b")
    zero = te.const(0, dtype)
    C = te.compute((rows, columns), lambda i, j: tirx.max(A[i, j] + b[j], zero), name="C")
    return [A, b, C]


OPERATOR = memory_bound(
    "elementwise",
    ("M", "N"),
    compute,
    lambda a, b: np.maximum(a + b, np.zeros((), a.dtype)),
    # CUDA adds 8-bit numbers in 32 bits, NumPy in 8.
    dtypes=("float16", "float32", "float64", "int32"),
    flops=lambda shape: 2 * shape[0] * shape[1],
    # How many vectors of a row a thread takes depends on the row's length.
    parallel=("M",),
)
