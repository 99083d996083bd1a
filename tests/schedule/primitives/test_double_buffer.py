"""The primitive ``sch.double_buffer`` and the methods that ``install`` sets."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.programs.mapped import computed
from tvm_layout_ext import ScheduleError, schedule, te


def _cached() -> Any:
    sch = computed((64, 64), lambda a, i, j: a[i, j] * 2.0)
    block = sch.get_sblock("B")
    cache = sch.cache_read(block, 0, "shared")
    sch.compute_at(cache, sch.get_loops(block)[0])
    return sch


@pytest.mark.parametrize("num_stages", [1, 2, 5])
def test_annotates_the_block_by_name(num_stages: int) -> None:
    sch = _cached()
    schedule.double_buffer(sch, "A_shared", num_stages)
    block = sch.get(sch.get_sblock("A_shared"))
    assert dict(block.annotations) == {"layout_ext.num_stages": num_stages}


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "2", 10**12])
def test_refuses_other_numbers(wrong: Any) -> None:
    least = " at most 2147483647, not 10000" if wrong == 10**12 else ""
    with pytest.raises(ScheduleError, match=f"num_stages of double_buffer must be{least}"):
        schedule.double_buffer(_cached(), "A_shared", wrong)


def test_refuses_a_block_that_writes_two_buffers() -> None:
    A = te.placeholder((4, 4), name="A")
    k = te.reduce_axis((0, 4), "k")

    def add(x: Any, y: Any) -> Any:
        return x[0] + y[0], x[1] + y[1]

    pair = te.comm_reducer(add, lambda a, b: (te.const(0, a), te.const(0, b)), name="pair")
    B, C = te.compute((4,), lambda i: pair((A[i, k], A[i, k]), axis=k), name="B")
    sch = s_tir.Schedule(te.create_prim_func([A, B, C]))
    with pytest.raises(ScheduleError, match=r"writes 2 \(B.v0, B.v1\)"):
        schedule.double_buffer(sch, "B")


def test_install_sets_the_methods_and_uninstall_removes_them() -> None:
    schedule.install()
    schedule.install()
    try:
        sch = _cached()
        sch.double_buffer("A_shared", num_stages=3)
        assert sch.get(sch.get_sblock("A_shared")).annotations["layout_ext.num_stages"] == 3
        schedule.uninstall()
        assert not hasattr(s_tir.Schedule, "double_buffer")
        schedule.uninstall()
    finally:
        schedule.install()


def test_the_last_number_counts() -> None:
    """TVM's ``annotate`` would keep the first one, and say nothing."""
    sch = _cached()
    schedule.double_buffer(sch, "A_shared", 3, async_copy=True)
    schedule.double_buffer(sch, "A_shared", 2)
    found = sch.get(sch.get_sblock("A_shared")).annotations
    assert dict(found) == {"layout_ext.num_stages": 2}


@pytest.mark.parametrize(("async_copy", "annotated"), [("auto", None), (True, 1), (False, 0)])
def test_a_stage_says_how_to_copy(async_copy: Any, annotated: int | None) -> None:
    A = te.placeholder((64, 64), name="A")
    B = te.compute((64, 64), lambda i, j: A[i, j] * 2.0, name="B")
    s = tlx.create_schedule(B.op)
    cache = s.cache_read(A, "shared", [B])
    s[cache].compute_at(s[B], s[B].op.axis[0])
    s[cache].double_buffer(num_stages=3, async_copy=async_copy)
    sch = s.sch
    block = sch.get(sch.get_sblock("A_shared"))
    assert block.annotations["layout_ext.num_stages"] == 3
    assert block.annotations.get("layout_ext.async_copy", None) == annotated
    with pytest.raises(ScheduleError, match="async_copy must be True, False"):
        s[cache].double_buffer(async_copy="always")
