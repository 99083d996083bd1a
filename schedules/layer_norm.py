"""Layer norm of the rows of a matrix, with weights and biases, in 32 bits.

The variance is the mean of squared distances to the mean: rows stay on chip, so that going over
them twice costs no memory traffic.
"""

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
    weights, biases = (te.placeholder((columns,), dtype, name=n) for n in ("weights", "biases"))
    k, j = (te.reduce_axis((0, columns), name=name) for name in "kj")
    one = 1.0 / columns

    def wide(value: Any) -> Any:
        return value.astype("float32")

    total = te.compute((rows,), lambda i: te.sum(wide(A[i, k]), axis=k), name="total")
    mean = te.compute((rows,), lambda i: total[i] * one, name="mean")
    squares = te.compute(
        (rows,),
        lambda i: te.sum((wide(A[i, j]) - mean[i]) * (wide(A[i, j]) - mean[i]), axis=j),
        name="squares",
    )
    factor = te.compute((rows,), lambda i: te.rsqrt(squares[i] * one + EPSILON), name="factor")
    B = te.compute(
        shape,
        lambda i, k: (
            (wide(A[i, k]) - mean[i]) * factor[i] * wide(weights[k]) + wide(biases[k])
        ).astype(dtype),
        name="B",
    )
    return [A, weights, biases, B]


def reference(a: np.ndarray, weights: np.ndarray, biases: np.ndarray) -> np.ndarray:
    """What NumPy makes of it."""
    away = a.astype("float64") - a.mean(1, keepdims=True, dtype="float64")
    factor = 1 / np.sqrt((away * away).mean(1, keepdims=True) + EPSILON)
    return (away * factor * weights.astype("float64") + biases).astype(a.dtype)


OPERATOR = rows_operator("layer_norm", compute, reference, 8)
