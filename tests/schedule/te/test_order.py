"""TE's order of calls is free: every order gives the same lowered module."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from tvm.ir import assert_structural_equal

import tvm_layout_ext as tlx
from tests.programs.stages import elementwise
from tvm_layout_ext import te

#: What must come before what, because the later call names an axis that the earlier one makes.
_NEEDS = {
    "bind AA": {"split AA"},
    "bind B": {"split B"},
    "compute_at AA": {"split B"},
}


class _Copy:
    """A transposing copy through shared memory, its calls by name."""

    def __init__(self) -> None:
        self.A = te.placeholder((96, 40), name="A")
        self.B = te.compute((40, 96), lambda i, j: self.A[j, i], name="B")
        self.s = te.create_schedule(self.B.op)
        self.AA = self.s.cache_read(self.A, "shared", [self.B])
        self.calls: dict[str, Callable[[], None]] = {
            "split AA": self.split_cache,
            "bind AA": lambda: self.s[self.AA].bind(
                self.cache_inner, te.thread_axis("threadIdx.x")
            ),
            "compute_at AA": lambda: self.s[self.AA].compute_at(self.s[self.B], self.outer),
            "storage_align AA": lambda: self.s[self.AA].storage_align(self.AA.op.axis[0], 32, 1),
            "split B": self.split_output,
            "bind B": lambda: self.s[self.B].bind(self.inner, te.thread_axis("threadIdx.x")),
        }

    def split_cache(self) -> None:
        _, self.cache_inner = self.s[self.AA].split(self.AA.op.axis[0], factor=16)

    def split_output(self) -> None:
        self.outer, self.inner = self.s[self.B].split(self.B.op.axis[1], factor=16)

    def lowered(self, order: tuple[str, ...]) -> Any:
        for name in order:
            self.calls[name]()
        return tlx.lower(self.s, [self.A, self.B])


def _allowed(order: tuple[str, ...]) -> bool:
    return all(
        _NEEDS.get(name, set()) <= set(order[:position]) for position, name in enumerate(order)
    )


def test_every_order_that_te_allows_lowers_to_the_same_module() -> None:
    orders = [order for order in itertools.permutations(_Copy().calls) if _allowed(order)]
    # 720 orders; three calls need another before them, two of them the same one.
    assert len(orders) == 120
    first = _Copy().lowered(orders[0])
    assert "T.alloc_shared" in first.script()
    for order in orders[1:]:
        assert_structural_equal(_Copy().lowered(order), first)


def test_later_compute_at_wins() -> None:
    A = te.placeholder((8, 8), name="A")
    B = te.compute((8, 8), lambda i, j: A[i, j], name="B")
    results = []
    for detour in (False, True):
        s = te.create_schedule(B.op)
        AA = s.cache_read(A, "local", [B])
        if detour:
            s[AA].compute_at(s[B], B.op.axis[1])
        s[AA].compute_at(s[B], B.op.axis[0])
        results.append(s.sch.mod)
    assert_structural_equal(*results)


def test_split_after_compute_at_at_the_same_axis_is_refused_when_applied() -> None:
    A, B, s = elementwise(8, 8)
    AA = s.cache_read(A, "local", [B])
    s[AA].compute_at(s[B], B.op.axis[0])
    outer, _ = s[B].split(B.op.axis[0], 4)
    with pytest.raises(tlx.ScheduleError, match="split or fused since"):
        _ = s.sch
    s[AA].compute_at(s[B], outer)
    assert "A_local" in s.sch.mod.script()
