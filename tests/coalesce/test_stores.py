"""Blocks of several stores: one mapping serves them all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import s_tir

from tests.programs.coalesced import few, mapped, nests, sectors, widths
from tvm_layout_ext.errors import ScheduleError


def two_results(length: int) -> Any:
    return nests(
        f"A {length}, B {length}, C {length} float16",
        f"B: i {length}: B[vi] = A[vi] * T.float32(2); "
        'C[vi] = T.Cast("float16", A[vi] + T.float32(1))',
    )


@pytest.mark.parametrize("length", [1, 33, 1000, 4096])
def test_two_results_of_one_block_move_each_sector_once(length: int) -> None:
    a = few(length)
    _, report = mapped(two_results(length), a, None, None)
    np.testing.assert_array_equal(report.outputs["B"], a * 2)
    np.testing.assert_array_equal(report.outputs["C"], (a + 1).astype("float16"))
    assert sectors(report, "B", "store") == -(-length * 4 // 32)
    assert sectors(report, "C", "store") == -(-length * 2 // 32)


momentum = nests(
    "W 64x100, M 64x100, G 64x100",
    "B: i 64, j 100: M[vi, vj] = M[vi, vj] * T.float32(0.5) + G[vi, vj]; "
    "W[vi, vj] = W[vi, vj] - M[vi, vj]",
)


def test_two_buffers_updated_in_place_by_one_block() -> None:
    w, m, g = few(64, 100), few(64, 100), few(64, 100)
    outcome, report = mapped(momentum, w, m, g)
    np.testing.assert_array_equal(report.outputs["M"], m * 0.5 + g)
    np.testing.assert_array_equal(report.outputs["W"], w - (m * np.float32(0.5) + g))
    assert outcome.path == "direct"
    assert widths(report, "M") == widths(report, "W") == {16}


both_orders = nests(
    "A 64x64, B 64x64, C 64x64",
    "B: i 64, j 64: B[vi, vj] = A[vj, vi]; C[vi, vj] = A[vj, vi] * T.float32(2)",
)


def test_a_block_of_two_stores_is_not_staged_and_says_why() -> None:
    a = few(64, 64)
    outcome, report = mapped(both_orders, a, None, None)
    np.testing.assert_array_equal(report.outputs["C"], a.T * 2)
    assert "staged is not possible: Block B has 2 stores" in outcome.report
    sch = s_tir.Schedule(both_orders)
    with pytest.raises(ScheduleError, match="Block B has 2 stores"):
        sch.auto_coalesce("B", stage="shared")


@pytest.mark.parametrize(
    ("buffers", "body", "words"),
    [
        ("A 65, C 64", "A[vi] = T.float32(1); C[vi] = A[vi + 1]", r"reads A at \[i \+ 1\] and"),
        # Vectors would store in another order than the iterations do.
        (
            "A 64, C 65",
            "C[vi] = A[vi]; C[vi + 1] = A[vi] * T.float32(2)",
            r"stores C at \[i \+ 1\] and writes it at \[i\]",
        ),
    ],
)
def test_iterations_that_meet_by_their_stores_are_refused(
    buffers: str, body: str, words: str
) -> None:
    sch = s_tir.Schedule(nests(buffers, f"B: i 64: {body}"))
    before = str(sch.mod)
    with pytest.raises(ScheduleError, match=words):
        sch.auto_coalesce("B")
    assert str(sch.mod) == before
