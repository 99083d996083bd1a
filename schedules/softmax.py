"""Softmax of the rows of a matrix, in 32 bits, by powers of two.

CUDA's ``expf`` takes nine instructions with the difference before it, and ``exp2f`` six. The sum of
a row is turned round once, for a quotient takes eight.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx

from tvm_layout_ext import te
from tvm_layout_ext.schedules._rows import rows_operator

LOG2_E = 1.4426950408889634


def compute(shape: tuple[int, ...], dtype: str) -> list[Any]:
    """What is computed."""
    rows, columns = shape
    A = te.placeholder((rows, columns), dtype, name="A")
    k, j = (te.reduce_axis((0, columns), name=name) for name in "kj")
    top = te.compute((rows,), lambda i: te.max(A[i, k].astype("float32"), axis=k), name="top")
    shares = te.compute(
        shape, lambda i, k: tirx.exp2((A[i, k].astype("float32") - top[i]) * LOG2_E), name="shares"
    )
    total = te.compute((rows,), lambda i: te.sum(shares[i, j], axis=j), name="total")
    factor = te.compute((rows,), lambda i: 1.0 / total[i], name="factor")
    B = te.compute(shape, lambda i, k: (shares[i, k] * factor[i]).astype(dtype), name="B")
    return [A, B]


def reference(a: np.ndarray) -> np.ndarray:
    """What NumPy makes of it."""
    shares = np.exp(a.astype("float64") - a.max(1, keepdims=True))
    return (shares / shares.sum(1, keepdims=True)).astype(a.dtype)


OPERATOR = rows_operator("softmax", compute, reference, 4)
