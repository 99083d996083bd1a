"""Which of several ways is taken."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import s_tir, te

from tvm_layout_ext.coalesce import choose
from tvm_layout_ext.coalesce.choose import Strategy
from tvm_layout_ext.coalesce.request import Request
from tvm_layout_ext.transform.auto_coalesce import coalesce


def only(monkeypatch: pytest.MonkeyPatch, *ways: Strategy) -> None:
    monkeypatch.setattr(
        "tvm_layout_ext.transform.auto_coalesce.list_strategies", lambda *_: list(ways)
    )


def broken(_sch: Any, _block: Any) -> tuple[str, list[Any]]:
    raise choose.ScheduleError("No way.")


def rows() -> Any:
    a = te.placeholder((64, 64), "float32", "A")
    return s_tir.Schedule(te.create_prim_func([a, te.compute((64, 64), lambda i, j: a[i, j], "B")]))


def test_a_way_that_is_not_possible_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, Strategy("staged", broken))
    sch = rows()
    with pytest.raises(choose.ScheduleError, match=r"B: staged is not possible: No way\."):
        coalesce(sch, sch.get_sblock("B"), Request())
