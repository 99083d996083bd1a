"""Sums of the columns of a matrix, in 32 bits: warps share out its rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_layout_ext import te
from tvm_layout_ext.schedules._coalesced import memory_bound
from tvm_layout_ext.tune.space.operator import Tolerance

#: Sums of thousands of halves: the order of the additions shows in the last bits.
TOLERANCE = Tolerance(rtol=1e-4, atol=1e-3)


def compute(shape: tuple[int, ...], dtype: str) -> list[Any]:
    """What is computed."""
    rows, columns = shape
    A = te.placeholder((rows, columns), dtype, name="A")
    k = te.reduce_axis((0, rows), name="k")
    B = te.compute((columns,), lambda j: te.sum(A[k, j].astype("float32"), axis=k), name="B")
    return [A, B]


OPERATOR = memory_bound(
    "column_sum",
    ("M", "N"),
    compute,
    lambda a: a.sum(0, dtype=np.float32),
    # Fewer columns would have more slices of rows, so no dim may be cut short for counting.
    parallel=(),
    dtypes=("float16", "float32"),
    flops=lambda shape: shape[0] * shape[1],
    tolerance=lambda shape, dtype: TOLERANCE,
)
