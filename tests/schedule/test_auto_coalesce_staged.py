"""Loads that disagree with their store: staged through shared memory, whatever the sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tvm import s_tir, te

import tvm_layout_ext as tlx
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.simulate.report import Report

SIZES = (1, 7, 33, 1000)


def permuting(shape: Sequence[Any], order: Sequence[int], dtype: str) -> Any:
    """A function that permutes dims; names in the shape are symbolic sizes."""
    symbols = {name: te.var(name) for name in shape if isinstance(name, str)}
    sizes = [symbols.get(extent, extent) for extent in shape]
    a = te.placeholder(sizes, dtype, "A")
    where = [list(order).index(dim) for dim in range(len(shape))]
    b = te.compute([sizes[dim] for dim in order], lambda *i: a[tuple(i[w] for w in where)], "B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    assert sch.auto_coalesce("B").path == "staged"
    return tlx.lower(sch)


def checked(lowered: Any, value: np.ndarray, order: Sequence[int]) -> Report:
    report = simulate(lowered, value, None)
    np.testing.assert_array_equal(report.outputs["B"], value.transpose(order))
    assert (report.bank_conflicts, report.hazards) == (0, [])
    return report


def random(shape: Sequence[int], dtype: str) -> np.ndarray:
    return np.random.default_rng(0).integers(-100, 100, shape).astype(dtype)


def pieces(rows: int, columns: int, lanes: int, size: int) -> int:
    """Sectors of a dense matrix whose rows are read in pieces of ``lanes`` elements."""
    starts = np.arange(0, columns, lanes)
    first = (np.arange(rows)[:, None] * columns + starts) * size
    last = first + np.minimum(lanes, columns - starts) * size - 1
    return int((last // 32 - first // 32 + 1).sum())


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32"])
def test_one_function_transposes_every_size(dtype: str) -> None:
    lowered = permuting(["n", "m"], (1, 0), dtype)
    size = np.dtype(dtype).itemsize
    for rows in SIZES:
        for columns in SIZES:
            report = checked(lowered, random((rows, columns), dtype), (1, 0))
            # A warp takes 32 elements of a row, as far as it goes.
            least = pieces(rows, columns, 32, size) + pieces(columns, rows, 32, size)
            assert report.sectors == least


@pytest.mark.parametrize("batch", SIZES[:3])
def test_a_symbolic_batch_costs_no_width(batch: int) -> None:
    lowered = permuting(["n", 64, 128], (0, 2, 1), "float16")
    value = random((batch, 64, 128), "float16")
    report = checked(lowered, value, (0, 2, 1))
    assert {a.vector_bytes for a in report.accesses if a.scope == "global"} == {16}
    assert report.sectors == 2 * value.nbytes // 32


def test_rows_of_known_size_keep_their_vectors() -> None:
    lowered = permuting(["n", "m", 64], (2, 0, 1), "float32")
    for shape in ((1, 7, 64), (33, 7, 64), (3, 1, 64)):
        checked(lowered, random(shape, "float32"), (2, 0, 1))
