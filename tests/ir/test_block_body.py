"""Reading bodies with ``if`` and ``let`` statements."""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx
from tvm.script import tirx as T

from tvm_layout_ext.ir.block_body import (
    is_mappable,
    is_reduction_step,
    one_element,
    read_body,
    without_lets,
)
from tvm_layout_ext.ir.queries import loads_in


@T.prim_func(s_tir=True)
def nested(A: T.Buffer((64,), "int32"), C: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    for i in range(64):
        with T.sblock("B"):
            vi = T.axis.spatial(64, i)
            w = T.bind(63 - vi)
            v = T.bind(A[w])
            if v > 0:
                if vi < 8:
                    B[vi] = v
                else:
                    B[vi] = C[v]
            else:
                B[vi] = 0


def body_of(func: Any) -> Any:
    sch = s_tir.Schedule(func)
    return sch.get(sch.get_sblock("B")).body


def test_accesses_have_the_conditions_of_all_branches_around_them() -> None:
    found = [
        (str(one.buffer.name), one.kind, len(one.conditions)) for one in read_body(body_of(nested))
    ]
    assert found == [
        ("A", "load", 0),
        ("B", "store", 2),
        ("C", "load", 2),
        ("B", "store", 2),
        ("B", "store", 1),
    ]


def test_loads_come_in_the_order_of_the_program() -> None:
    body = body_of(nested)
    loads = [one.buffer for one in read_body(body) if one.kind == "load"]
    assert all(a.same_as(b.source) for a, b in zip(loads, loads_in(body), strict=True))


def test_values_stand_for_their_names() -> None:
    references = list(read_body(body_of(nested)))
    gathered = next(one for one in references if one.buffer.name == "C")
    # C[A[63 - vi]], where A[63 - vi] > 0 and vi >= 8.
    assert [str(load.source.name) for load in loads_in(gathered.indices[0])] == ["A"]
    assert [bool(loads_in(condition)) for condition in gathered.conditions] == [True, False]
    plain = without_lets(body_of(nested))
    assert isinstance(plain, tirx.IfThenElse)


def test_kinds_of_bodies() -> None:
    body = body_of(nested)
    assert is_mappable(body)
    assert one_element(body)
    assert not is_reduction_step(body)
    inner = without_lets(body).then_case
    assert one_element(inner)
    assert not one_element(tirx.IfThenElse(inner.condition, inner, None))
    assert not one_element(tirx.SeqStmt([inner, inner]))
    assert not is_mappable(tirx.Evaluate(0))
