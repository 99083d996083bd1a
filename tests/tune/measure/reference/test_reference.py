"""References of large functions: a few rows, in float64, that stand for all."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import tirx

from tests.schedules.test_generic import linear, softmax
from tvm_layout_ext import te
from tvm_layout_ext.tune.measure.reference.problem import Problem, WrongResultError, expected
from tvm_layout_ext.tune.measure.reference.reference import Expected, Reference, draw
from tvm_layout_ext.tune.space.operator import Tolerance
from tvm_layout_ext.tune.space.task import make_task


def column_sum(rows: int, columns: int) -> tirx.PrimFunc:
    """Sums of which each reads a column."""
    A, k = te.placeholder((rows, columns), "float32", name="A"), te.reduce_axis((0, rows), name="k")
    return te.create_prim_func([A, te.compute((columns,), lambda j: te.sum(A[k, j], k), name="B")])


def batched(batch: int, m: int, n: int, k: int) -> tirx.PrimFunc:
    """Products by transposed matrices, as attention has them."""
    A = te.placeholder((batch, m, k), "float16", name="A")
    B = te.placeholder((batch, n, k), "float16", name="B")
    r = te.reduce_axis((0, k), name="r")
    product = te.compute(
        (batch, m, n), lambda b, i, j: te.sum(A[b, i, r] * B[b, j, r], r), name="C"
    )
    return te.create_prim_func([A, B, product])


@pytest.mark.parametrize(
    ("func", "most", "axis", "count"),
    [
        (linear(40, 24, 64), 10_000, 0, 6),
        (softmax(30, 50), 1000, 0, 5),
        (column_sum(32, 80), 1000, 0, 31),
        (batched(1, 20, 24, 16), 1000, 2, 4),
    ],
    ids=["linear", "softmax", "column sum", "batch of one"],
)
def test_rows_of_a_large_output_are_those_of_all_of_it(
    func: tirx.PrimFunc, most: int, axis: int, count: int
) -> None:
    inputs = draw(func, np.random.default_rng(0))
    some, whole = Reference(func, most), Reference(func)
    found = some.expect(*inputs)
    assert found.rows is not None
    assert (found.axis, len(found.rows)) == (axis, count)
    assert (found.rows[0], found.rows[-1]) == (0, found.values.shape[axis] - 1)
    np.testing.assert_array_equal(found.known(found.values), found.known(whole(*inputs)))


def test_a_product_of_four_billion_terms_is_known_in_63_rows() -> None:
    rows = Reference(linear(1024, 1024, 4096))._rows
    assert rows is not None
    assert len(rows.chosen) == 63
    assert Reference(linear(256, 256, 1024))._rows is None


def test_sums_that_every_row_needs_are_computed_wholly() -> None:
    A, k = te.placeholder((64, 64), "float32", name="A"), te.reduce_axis((0, 64), name="k")
    sums = te.compute((64,), lambda j: te.sum(A[k, j], k), name="sums")
    out = te.compute((64, 64), lambda i, j: A[i, j] - sums[j], name="out")
    (a,) = draw(func := te.create_prim_func([A, out]), np.random.default_rng(0))
    found = Reference(func, most=5000).expect(a)
    want = a - a.sum(0, dtype=np.float64)
    np.testing.assert_allclose(found.known(found.values), found.known(want), atol=1e-5)


def test_large_products_by_ready_schedules_are_known_in_rows_too() -> None:
    task = make_task("gemm", (2048, 2048, 2048), "int8")
    inputs = [np.ones((2048, 2048), np.int8)] * 2
    found = expected(task, inputs)
    assert found.rows is not None
    assert (found.known(found.values) == 2048).all()
    assert expected(task, [one[:64, :64] for one in inputs], (64, 64, 64)).rows is None


def test_rows_are_compared_and_the_others_must_be_written() -> None:
    want = np.ones((6, 4), np.float32)
    problem = Problem((), Expected(want, np.array([0, 5])), "float32", Tolerance())
    problem.require_close(want * np.array([[1], [2], [2], [2], [2], [1]], np.float32))
    with pytest.raises(WrongResultError, match="4 of 8 elements differ"):
        problem.require_close(want * np.array([[1], [1], [1], [1], [1], [2]], np.float32))
    with pytest.raises(WrongResultError, match="4 of 24 elements are not-a-number"):
        problem.require_close(np.where(np.arange(6)[:, None] == 3, np.nan, want))
