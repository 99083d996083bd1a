"""Partial sums in shared memory, and counts of all that a reduction loads and stores."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from tvm import s_tir, te

from tvm_layout_ext.coalesce.reduction.partial_sums import SumsTile
from tvm_layout_ext.schedule.primitives.auto_coalesce import Outcome
from tvm_layout_ext.simulate import Report, simulate


def reduced(
    shape: tuple[int, ...], dtype: str, to: str, axis: int, *, factor: bool = False, **how: Any
) -> tuple[Outcome, Report, int]:
    """Sum over an axis, times a vector along it if asked for; the result is NumPy's."""
    a, k = te.placeholder(shape, dtype, "A"), te.reduce_axis((0, shape[axis]), "k")
    w = te.placeholder((shape[axis],), dtype, "W")

    def element(*at: Any) -> Any:
        value = a(*at[:axis], k, *at[axis:]).astype(to)
        return te.sum(value * w[k].astype(to) if factor else value, axis=k)

    b = te.compute([n for dim, n in enumerate(shape) if dim != axis], element, "B")
    sch = s_tir.Schedule(te.create_prim_func([a, w, b] if factor else [a, b]))
    outcome = sch.auto_coalesce("B", **how)
    rng = np.random.default_rng(0)
    values = [rng.integers(-1, 2, n).astype(dtype) for n in (shape, shape[axis : axis + 1])]
    report = simulate(sch, *values[: 1 + factor], None)
    assert not report.hazards
    weights = values[1].astype(to) if factor else np.ones(shape[axis], to)
    want = np.moveaxis(values[0].astype(to), axis, -1) @ weights
    np.testing.assert_array_equal(report.outputs["B"], want)
    return outcome, report, int(np.prod(shape))


@pytest.mark.parametrize(
    ("shape", "dtype", "to", "axis", "factor"),
    [
        ((16, 256), "int64", "int64", 0, True),
        ((2, 4097, 8), "float64", "float64", 1, False),
        ((7, 4096), "float64", "float64", 0, False),
        ((64, 1024), "int8", "int8", 0, True),
        ((256, 64), "float16", "float16", 0, False),
        ((256, 64), "int8", "int64", 0, False),
        ((64, 1024), "float32", "float32", 0, True),
    ],
)
def test_partial_sums_of_any_size_meet_no_bank_twice(
    shape: tuple[int, ...], dtype: str, to: str, axis: int, factor: bool
) -> None:
    """Those of 8 bytes had a conflict a request, of 1 byte 9,728 in all."""
    outcome, report, _ = reduced(shape, dtype, to, axis, factor=factor)
    assert outcome.path == "reduction"
    assert report.bank_conflicts == 0


def test_conflicts_of_a_tile_of_8_byte_sums_are_those_of_its_strides() -> None:
    """16 vectors of 2 columns: half a warp has 8 pairs of banks for 16 lanes, unless with a gap."""
    tile = SumsTile(columns=32, deals=8, near=16, vector=2, bytes=8, by_column=False)
    assert all(tile.conflicts(column, 2 * column) for column in range(8, 40))
    assert tile.conflicts(8, 17) == 0
    assert tile.conflicts(8, 18) > 0


@pytest.mark.parametrize(
    ("rows", "columns", "factor"), [(3, 20004, False), (1, 20000, True), (7, 20004, False)]
)
def test_sums_of_few_rows_have_a_thread_for_each_column(
    rows: int, columns: int, factor: bool
) -> None:
    """Threads that share the rows stored 20,004 sectors, one for each result."""
    _, report, _ = reduced((rows, columns), "float32", "float32", 0, factor=factor)
    ran: Counter[str] = Counter()
    for access in report.accesses:
        ran[access.buffer] += access.sectors if access.scope == "global" else 0
    apart = -(-columns // 32)
    assert ran["B"] <= rows * 4 * apart
    assert ran["A"] <= rows * 5 * apart
    assert ran["W"] <= rows * apart


@pytest.mark.parametrize(("rows", "columns"), [(1, 825), (3, 64), (183, 64)])
def test_a_sum_whose_factor_repeats(rows: int, columns: int) -> None:
    shapes = (rows, columns), (-(-columns // 5),)
    a, w = (te.placeholder(n, "float32", name) for n, name in zip(shapes, "AW", strict=True))
    k = te.reduce_axis((0, columns), "k")
    b = te.compute((rows,), lambda i: te.sum(a[i, k] * w[k // 5], axis=k), "B")
    sch = s_tir.Schedule(te.create_prim_func([a, w, b]))
    sch.auto_coalesce("B")
    rng = np.random.default_rng(0)
    values = [rng.integers(-3, 4, n).astype("float32") for n in shapes]
    report = simulate(sch, *values, None)
    assert not report.hazards
    want = values[0] @ np.repeat(values[1], 5)[:columns]
    np.testing.assert_array_equal(report.outputs["B"], want)
