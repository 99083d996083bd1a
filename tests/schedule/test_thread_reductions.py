"""Reductions over threads: what TVM stores right, and what would be stored out of bounds."""

from __future__ import annotations

from typing import Any

import pytest

import tvm_layout_ext as tlx
from tests.programs.host import assert_simulates, ints
from tests.programs.stages import row_sum
from tvm_layout_ext import ScheduleError, te


def _sums(
    m: int, factor: int, rfactor: bool, n: int = 64, lanes: int = 16
) -> tuple[Any, list[Any]]:
    """Row sums over threadIdx.x, ``factor`` rows a block; TVM's tutorial has the rfactor."""
    A, B, k, s = row_sum(m, n)
    partial = s.rfactor(B, s[B].split(k, factor=16)[1]) if rfactor else None
    block, row = s[B].split(s[B].op.axis[0], factor=factor)
    s[B].bind(block, te.thread_axis("blockIdx.x"))
    s[B].bind(row, te.thread_axis("threadIdx.y"))
    last = s[B].op.reduce_axis[0]
    if partial is not None:
        s[B].bind(last, te.thread_axis("threadIdx.x"))
        s[partial].compute_at(s[B], last)
    else:
        s[B].bind(s[B].split(last, factor=lanes)[1], te.thread_axis("threadIdx.x"))
    return s, [A, B]


@pytest.mark.parametrize("rfactor", [False, True])
def test_uneven_rows_of_a_reduction_over_threads_are_refused(rfactor: bool) -> None:
    s, args = _sums(6, 4, rfactor)
    with pytest.raises(ScheduleError) as caught:
        s.to_module(args)
    assert str(caught.value) == (
        "Stage B reduces over threadIdx.x under the guard i_0 * 4 + i_1 < 6, which TVM loses when "
        "it stores the result; split the data axes of the stage, and of the one it is computed at, "
        "by divisors of their extents."
    )


@pytest.mark.parametrize("rfactor", [False, True])
def test_even_rows_of_a_reduction_over_threads(rfactor: bool) -> None:
    s, args = _sums(6, 3, rfactor)
    a = ints(6, 64)
    assert_simulates(s, args, a, a.sum(1))


def test_store_predicate_of_the_reduction_tutorial() -> None:
    s, args = _sums(6, 3, rfactor=True)
    thread = s[args[1]].marks[s[args[1]].op.reduce_axis[0]].value
    s[args[1]].set_store_predicate(thread.var.equal(0))
    a = ints(6, 64)
    assert_simulates(s, args, a, a.sum(1))
    stores = [line for line in tlx.lower(s, args).script().splitlines() if "B_1[" in line]
    assert len(stores) == 1


def test_store_predicate_of_another_thread_is_refused() -> None:
    s, args = _sums(6, 3, rfactor=False)
    s[args[1]].set_store_predicate(te.thread_axis("threadIdx.x").var.equal(1))
    with pytest.raises(ScheduleError, match=r"stores from thread 0 anyway, not threadIdx_x == 1"):
        s.to_module(args)


def test_partial_result_of_an_uneven_split_says_what_is_legal() -> None:
    s, args = _sums(6, 3, rfactor=True, n=1000)
    with pytest.raises(ScheduleError, match=r"split by a divisor of the extent, or compute B"):
        s.to_module(args)


@pytest.mark.parametrize("rows", [3, 4])
def test_uneven_rows_of_a_guarded_reduction_are_stored_right(rows: int) -> None:
    s, args = _sums(33, rows, rfactor=False, lanes=24)
    a = ints(33, 64)
    assert_simulates(s, args, a, a.sum(1))


def test_two_guards_of_rows_of_a_guarded_reduction() -> None:
    A = te.placeholder((5, 7, 20), name="A")
    k = te.reduce_axis((0, 20), "k")
    B = te.compute((5, 7), lambda i, j: te.sum(A[i, j, k], axis=k), name="B")
    s = te.create_schedule(B.op)
    outer = [s[B].split(axis, 3)[0] for axis in B.op.axis]
    for axis, dim in zip(outer, "yx", strict=True):
        s[B].bind(axis, te.thread_axis(f"blockIdx.{dim}"))
    s[B].bind(s[B].split(k, factor=16)[1], te.thread_axis("threadIdx.x"))
    a = ints(5, 7, 20)
    assert_simulates(s, [A, B], a, a.sum(2))


def test_guards_under_which_threads_would_reduce_alone_are_refused() -> None:
    # TVM would have both threads write B, without a barrier and without a word.
    A = te.placeholder((3,), name="A")
    k = te.reduce_axis((0, 3), "k")
    B = te.compute((), lambda: te.max(A[k], axis=k), name="B")
    s = te.create_schedule(B.op)
    outer, inner = s[B].split(k, nparts=1)
    middle, _ = s[B].split(inner, factor=2)
    last, lane = s[B].split(s[B].fuse(outer, middle), factor=2)
    s[B].reorder(lane, last)
    s[B].bind(lane, te.thread_axis("threadIdx.x"))
    with pytest.raises(
        ScheduleError, match="does not see that its threads share a result; split its"
    ):
        tlx.lower(s, [A, B])
