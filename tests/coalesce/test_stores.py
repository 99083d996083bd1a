"""Blocks of several stores: one mapping serves them all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import s_tir
from tvm.s_tir.schedule.testing import verify_trace_roundtrip
from tvm.script import tirx as T

from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.simulate.report import Report


def numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(-9, 9, shape).astype(dtype)


def run(func: Any, *arrays: Any) -> tuple[Any, Report]:
    sch = s_tir.Schedule(func)
    outcome = sch.auto_coalesce("B")
    verify_trace_roundtrip(sch, func, debug_mask="none")
    report = simulate(sch, *arrays)
    assert not report.hazards
    return outcome, report


def sectors(report: Report, buffer: str, kind: str) -> int:
    return sum(a.sectors for a in report.accesses if (a.buffer, a.kind) == (buffer, kind))


def two_results(length: int) -> Any:
    @T.prim_func(s_tir=True)
    def func(
        A: T.Buffer((length,), "float32"),
        B: T.Buffer((length,), "float32"),
        C: T.Buffer((length,), "float16"),
    ) -> None:
        for i in T.serial(length):
            with T.sblock("B"):
                vi = T.axis.spatial(length, i)
                B[vi] = A[vi] * T.float32(2)
                C[vi] = T.Cast("float16", A[vi] + T.float32(1))

    return func


@pytest.mark.parametrize("length", [1, 33, 1000, 4096])
def test_two_results_of_one_block_move_each_sector_once(length: int) -> None:
    a = numbers(length)
    _, report = run(two_results(length), a, None, None)
    np.testing.assert_array_equal(report.outputs["B"], a * 2)
    np.testing.assert_array_equal(report.outputs["C"], (a + 1).astype("float16"))
    assert sectors(report, "B", "store") == -(-length * 4 // 32)
    assert sectors(report, "C", "store") == -(-length * 2 // 32)


@T.prim_func(s_tir=True)
def momentum(
    W: T.Buffer((64, 100), "float32"),
    M: T.Buffer((64, 100), "float32"),
    G: T.Buffer((64, 100), "float32"),
) -> None:
    for i, j in T.grid(64, 100):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            M[vi, vj] = M[vi, vj] * T.float32(0.5) + G[vi, vj]
            W[vi, vj] = W[vi, vj] - M[vi, vj]


def test_two_buffers_updated_in_place_by_one_block() -> None:
    w, m, g = numbers(64, 100), numbers(64, 100), numbers(64, 100)
    outcome, report = run(momentum, w, m, g)
    np.testing.assert_array_equal(report.outputs["M"], m * 0.5 + g)
    np.testing.assert_array_equal(report.outputs["W"], w - (m * np.float32(0.5) + g))
    assert outcome.path == "direct"
    stored = {a.vector_bytes for a in report.accesses if a.kind == "store"}
    assert stored == {16}


@T.prim_func(s_tir=True)
def both_orders(
    A: T.Buffer((64, 64), "float32"),
    B: T.Buffer((64, 64), "float32"),
    C: T.Buffer((64, 64), "float32"),
) -> None:
    for i, j in T.grid(64, 64):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vj, vi]
            C[vi, vj] = A[vj, vi] * T.float32(2)


def test_a_block_of_two_stores_is_not_staged_and_says_why() -> None:
    a = numbers(64, 64)
    outcome, report = run(both_orders, a, None, None)
    np.testing.assert_array_equal(report.outputs["C"], a.T * 2)
    assert "staged is not possible: Block B has 2 stores" in outcome.report
    sch = s_tir.Schedule(both_orders)
    with pytest.raises(ScheduleError, match="Block B has 2 stores"):
        sch.auto_coalesce("B", stage="shared")


@T.prim_func(s_tir=True)
def shifted(A: T.Buffer((65,), "float32"), C: T.Buffer((64,), "float32")) -> None:
    for i in T.serial(64):
        with T.sblock("B"):
            vi = T.axis.spatial(64, i)
            A[vi] = T.float32(1)
            C[vi] = A[vi + 1]


def test_a_store_that_another_iteration_reads_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"reads A at \[i \+ 1\] and writes it at \[i\]"):
        s_tir.Schedule(shifted).auto_coalesce("B")


@T.prim_func(s_tir=True)
def overlapping(A: T.Buffer((64,), "float32"), C: T.Buffer((65,), "float32")) -> None:
    for i in T.serial(64):
        with T.sblock("B"):
            vi = T.axis.spatial(64, i)
            C[vi] = A[vi]
            C[vi + 1] = A[vi] * T.float32(2)


def test_stores_that_meet_in_two_iterations_are_refused() -> None:
    """Vectors would store in another order than the iterations do."""
    sch = s_tir.Schedule(overlapping)
    before = str(sch.mod)
    with pytest.raises(ScheduleError, match=r"stores C at \[i \+ 1\] and writes it at \[i\]"):
        sch.auto_coalesce("B")
    assert str(sch.mod) == before
