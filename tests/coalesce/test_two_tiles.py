"""Blocks that stage two buffers of different orders: the reads of both tiles meet no bank twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import s_tir, te, tirx

from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.simulate.report import Report

SHAPE = (100, 32, 2)
#: Rows of two elements, so that lanes go on along the store's middle dim.
SHORT_ROWS = (1, 0, 2)


def select(orders: tuple[tuple[int, ...], tuple[int, ...]], dtype: str) -> Report:
    """Run ``Select(C > A, 1, A)``, A and C indexed by these of the store's indices."""
    names = dict(zip("CA", orders, strict=True))
    held = {n: te.placeholder([SHAPE[d] for d in order], dtype, n) for n, order in names.items()}

    def body(*at: Any) -> Any:
        c, a = (held[n][tuple(at[d] for d in names[n])] for n in "CA")
        return tirx.Select(c > a, tirx.const(1, dtype), a)

    out = te.compute(SHAPE, body, "B")
    sch = s_tir.Schedule(te.create_prim_func([held["A"], held["C"], out]))
    assert sch.auto_coalesce("B", stage="shared").path == "staged"
    rng = np.random.default_rng(0)
    values = {n: rng.integers(-9, 9, held_shape(names[n])).astype(dtype) for n in "AC"}
    report = simulate(sch, values["A"], values["C"], None)
    c, a = (spread(values[n], names[n]) for n in "CA")
    np.testing.assert_array_equal(report.outputs["B"], np.where(c > a, 1, a).astype(dtype))
    return report


def held_shape(order: tuple[int, ...]) -> list[int]:
    return [SHAPE[dim] for dim in order]


def spread(value: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    """Give a value the store's dims, those that it lacks of length 1."""
    sizes = [SHAPE[dim] if dim in order else 1 for dim in range(len(SHAPE))]
    return np.broadcast_to(value.transpose(np.argsort(order)).reshape(sizes), SHAPE)


@pytest.mark.costly
@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64"])
@pytest.mark.parametrize("order", [(1, 0), (2, 1, 0), (1, 2, 0)])
def test_a_tile_of_another_order_than_the_walk_out_meets_no_bank_twice(
    order: tuple[int, ...], dtype: str
) -> None:
    report = select((order, SHORT_ROWS), dtype)
    assert (report.bank_conflicts, report.hazards) == (0, [])
