"""Index expressions have the values that TVM gives them, for whole arrays at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx

from tvm_layout_ext.ir.evaluate import STAND_IN, evaluate, placeholder_extent
from tvm_layout_ext.ir.queries import substitute

X, Y = tirx.Var("x", "int32"), tirx.Var("y", "int32")
SIGNED = np.array([-7, -3, -1, 0, 1, 2, 8, 100])
DIVISORS = np.array([3, -2, 4, 5, -1, 7, 8, 9])
AMOUNTS = np.array([3, 2, 4, 5, 1, 7, 8, 9])


@pytest.mark.parametrize(
    "node",
    [
        tirx.Add,
        tirx.Sub,
        tirx.Mul,
        tirx.FloorDiv,
        tirx.FloorMod,
        tirx.Div,
        tirx.Mod,
        tirx.Min,
        tirx.Max,
        tirx.LT,
        tirx.LE,
        tirx.GT,
        tirx.GE,
        tirx.EQ,
        tirx.NE,
    ],
)
def test_operators_are_tvms_for_negative_numbers_too(node: Any) -> None:
    found = evaluate(node(X, Y), {X: SIGNED, Y: DIVISORS})
    for value, x, y in zip(found, SIGNED, DIVISORS, strict=True):
        folded = substitute(node(X, Y), {X: tirx.IntImm("int32", x), Y: tirx.IntImm("int32", y)})
        assert int(value) == int(tvm.sym.Analyzer().simplify(folded))


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (X & Y, SIGNED & AMOUNTS),
        (X | Y, SIGNED | AMOUNTS),
        (X ^ Y, SIGNED ^ AMOUNTS),
        (X << Y, SIGNED << AMOUNTS),
        (X >> Y, SIGNED >> AMOUNTS),
        (~X, ~SIGNED),
        (tirx.Not(X < Y), SIGNED >= AMOUNTS),
        (tirx.And(X > 0, Y > 4), (SIGNED > 0) & (AMOUNTS > 4)),
        (tirx.Or(X > 0, Y > 4), (SIGNED > 0) | (AMOUNTS > 4)),
        (tirx.Select(X < Y, X, Y), np.minimum(SIGNED, AMOUNTS)),
        (tirx.if_then_else(X < Y, X, Y), np.minimum(SIGNED, AMOUNTS)),
        (tirx.likely(X < Y), SIGNED < AMOUNTS),
        (X.astype("int64") * 2, SIGNED * 2),
    ],
    ids=str,
)
def test_bits_choices_and_casts(expr: Any, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(evaluate(expr, {X: SIGNED, Y: AMOUNTS}), expected)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: tirx.Ramp(X, 3, 4), [[5, 8, 11, 14], [6, 9, 12, 15]]),
        (lambda: tirx.Broadcast(X, 4), [[5], [6]]),
    ],
)
def test_elements_of_a_vector_lie_along_the_last_axis(
    make: Callable[[], Any], expected: list[list[int]]
) -> None:
    np.testing.assert_array_equal(evaluate(make(), {X: np.array([[5], [6]])}), expected)


def test_a_symbolic_size_has_a_number_that_stands_in_for_it() -> None:
    assert evaluate(X * 2 + Y, {Y: SIGNED}).tolist() == [2 * STAND_IN + y for y in SIGNED]
    assert placeholder_extent(X * 2) == 2 * STAND_IN
    assert placeholder_extent(tirx.IntImm("int64", 12)) == placeholder_extent(12) == 12


@pytest.mark.parametrize(
    "expr",
    [
        tirx.BufferLoad(tirx.decl_buffer((8,), "int32"), [X]) + 1,
        tirx.popcount(X),
    ],
    ids=["load", "call"],
)
def test_what_is_no_arithmetic_has_no_value(expr: Any) -> None:
    with pytest.raises(KeyError):
        evaluate(expr, {X: SIGNED})
