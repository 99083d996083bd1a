"""Root mean square norm of the rows of a matrix, with weights, in 32 bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_layout_ext import te
from tvm_layout_ext.schedules._rows import rows_operator

EPSILON = 1e-5


def compute(shape: tuple[int, ...], dtype: str) -> list[Any]:
    """What is computed."""
    rows, columns = shape
    A = te.placeholder((rows, columns), dtype, name="A")
    weights = te.placeholder((columns,), dtype, name="weights")
    k = te.reduce_axis((0, columns), name="k")

    def wide(value: Any) -> Any:
        return value.astype("float32")

    squares = te.compute(
        (rows,), lambda i: te.sum(wide(A[i, k]) * wide(A[i, k]), axis=k), name="squares"
    )
    factor = te.compute(
        (rows,), lambda i: te.rsqrt(squares[i] * (1.0 / columns) + EPSILON), name="factor"
    )
    B = te.compute(
        shape,
        lambda i, k: (wide(A[i, k]) * factor[i] * wide(weights[k])).astype(dtype),
        name="B",
    )
    return [A, weights, B]


def reference(a: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """What NumPy makes of it."""
    wide = a.astype("float64")
    factor = 1 / np.sqrt((wide * wide).mean(1, keepdims=True) + EPSILON)
    return (wide * factor * weights.astype("float64")).astype(a.dtype)


OPERATOR = rows_operator("rms_norm", compute, reference, 4)
