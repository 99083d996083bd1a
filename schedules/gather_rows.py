"""Rows of a table by number, ``B[i, :] = table[rows[i], :]``, as in an embedding.

A row is contiguous, so lanes go along it in vectors and only its number is looked up. Elements are
moved as 32-bit words, whatever they stand for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_layout_ext import te
from tvm_layout_ext.schedules._coalesced import memory_bound
from tvm_layout_ext.tune.space.operator import draw


def compute(shape: tuple[int, ...], dtype: str) -> list[Any]:
    """What is computed: ``M`` rows of ``N`` elements out of ``R``."""
    count, picked, columns = shape
    table = te.placeholder((count, columns), dtype, name="table")
    rows = te.placeholder((picked,), "int32", name="rows")
    B = te.compute((picked, columns), lambda i, j: table[rows[i], j], name="B")
    return [table, rows, B]


def _inputs(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> list[np.ndarray]:
    count, picked, columns = shape
    table = draw((count, columns), dtype, rng)
    return [table, rng.integers(0, count, picked, dtype="int32")]


def traffic(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of the rows that are drawn, each read once, of their numbers and of the result.

    Of ``R`` rows ``M`` draws are expected to take ``R (1 - (1 - 1/R)^M)``.
    """
    count, picked, columns = shape
    distinct = round(count * (1 - (1 - 1 / count) ** picked))
    return (distinct + picked) * columns * np.dtype(dtype).itemsize + 4 * picked


OPERATOR = memory_bound(
    "gather_rows",
    ("R", "M", "N"),
    compute,
    lambda table, rows: table[rows],
    inputs=_inputs,
    traffic=traffic,
    parallel=("M", "N"),
    dtypes=("int32",),
)
