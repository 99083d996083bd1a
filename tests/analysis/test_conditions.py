from __future__ import annotations

from tvm import tirx

from tvm_layout_ext.analysis.conditions import conjuncts


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
