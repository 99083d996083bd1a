from __future__ import annotations

import pytest
from tvm import tirx

from tvm_layout_ext.ir.conditions import conjuncts, is_zero, loads_with_conditions


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


def test_loads_wait_for_conditions_around_and_before_them() -> None:
    i = tirx.Var("i", "int32")
    b = tirx.decl_buffer((8,), "int32", "B", layout=None)
    inner = tirx.Select(tirx.Or(i > 2, b[2] > 0), b[3], b[b[4]])
    value = b[0] + tirx.if_then_else(tirx.And(i > 1, b[1] > 0), inner, 0)
    around, chosen = "i > 1 and B[1] > 0", "i > 2 or B[2] > 0"
    assert [(str(x), list(map(str, held))) for x, held in loads_with_conditions(value)] == [
        ("B[0]", []),
        ("B[1]", ["i > 1"]),
        ("B[2]", [around, "not i > 2"]),
        ("B[3]", [around, chosen]),
        ("B[B[4]]", [around, f"not ({chosen})"]),
        ("B[4]", [around, f"not ({chosen})"]),
    ]


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
