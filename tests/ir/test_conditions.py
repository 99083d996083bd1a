from __future__ import annotations

import pytest
from tvm import tirx

from tvm_layout_ext.ir.conditions import conjuncts, is_zero


def test_parts_are_taken_out_of_conjunctions_and_of_likely() -> None:
    x = tirx.Var("x", "int32")
    low, high = x > 0, x < 9
    parts = conjuncts(tirx.And(tirx.likely(tirx.And(low, tirx.likely(high))), x != 5))
    assert [str(part) for part in parts] == ["x > 0", "x < 9", "x != 5"]


def test_a_disjunction_stays_whole() -> None:
    x = tirx.Var("x", "int32")
    whole = tirx.Or(x > 0, x < 9)
    (part,) = conjuncts(tirx.likely(whole))
    assert part.same_as(whole)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (tirx.IntImm("int32", 0), True),
        (tirx.FloatImm("float32", 0.0), True),
        (tirx.Cast("float16", tirx.FloatImm("float32", 0.0)), True),
        (tirx.Broadcast(tirx.Cast("float16", tirx.IntImm("int32", 0)), 8), True),
        (tirx.IntImm("int32", 1), False),
        (tirx.FloatImm("float32", 1e-40), False),
        (tirx.Var("n", "int32"), False),
        (tirx.Cast("int32", tirx.FloatImm("float32", 0.5)), False),
        (7, False),
    ],
    ids=str,
)
def test_zero_is_told_through_casts_and_lanes(value: object, expected: bool) -> None:
    assert is_zero(value) == expected
