"""A matrix with a border of one row or column of zeros on each side, as for a convolution."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_layout_ext import te
from tvm_layout_ext.schedules._coalesced import memory_bound

WIDTH = 1


def compute(shape: tuple[int, ...], dtype: str) -> list[Any]:
    """What is computed."""
    rows, columns = shape
    A = te.placeholder((rows, columns), dtype, name="A")

    def element(i: Any, j: Any) -> Any:
        inside = te.all(i >= WIDTH, i < rows + WIDTH, j >= WIDTH, j < columns + WIDTH)
        return te.if_then_else(inside, A[i - WIDTH, j - WIDTH], te.const(0, dtype))

    B = te.compute((rows + 2 * WIDTH, columns + 2 * WIDTH), element, name="B")
    return [A, B]


OPERATOR = memory_bound("pad", ("M", "N"), compute, lambda a: np.pad(a, WIDTH))
