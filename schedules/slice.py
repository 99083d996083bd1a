"""A matrix without its outermost rows and columns: rows start off alignment."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_layout_ext import te
from tvm_layout_ext.schedules._coalesced import memory_bound

WIDTH = 1


def compute(shape: tuple[int, ...], dtype: str) -> list[Any]:
    """What is computed; ``shape`` is that of the result."""
    rows, columns = shape
    A = te.placeholder((rows + 2 * WIDTH, columns + 2 * WIDTH), dtype, name="A")
    B = te.compute((rows, columns), lambda i, j: A[i + WIDTH, j + WIDTH], name="B")
    return [A, B]


OPERATOR = memory_bound(
    "slice",
    ("M", "N"),
    compute,
    lambda a: np.ascontiguousarray(a[WIDTH:-WIDTH, WIDTH:-WIDTH]),
)
