"""A schedule that verifies itself after each step gets the maps that any other gets."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import tvm_ffi
from tvm import s_tir

from benchmarks.thread_programs import Program
from tvm_layout_ext.coalesce import choose
from tvm_layout_ext.coalesce.strategy import Strategy
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.transform.auto_coalesce import AutoCoalesce

#: Row and column sums, whole and in slabs, with and without a rest.
REDUCTIONS = (
    Program("sum", (4096, 4096), "float16", (0,)),
    Program("sum", (1000000, 33), "float32", (0,)),
    Program("max", (64, 1000, 128), "float32", (1,)),
    Program("argmax", (65536, 1024), "int8", (1,)),
    Program("sum", (16, 1 << 21), "float32", (1,)),
)
WHEN_LOWERED = "when the program is lowered, "


@pytest.mark.parametrize("program", REDUCTIONS, ids=lambda one: one.name)
def test_the_same_map_wins(program: Program) -> None:
    plain, verified = (
        s_tir.Schedule(program.function(), debug_mask=mask) for mask in ("none", "all")
    )
    outcomes = [sch.auto_coalesce("B") for sch in (plain, verified)]
    texts = [one.text.removeprefix(WHEN_LOWERED) for one in outcomes]
    assert texts[0] == texts[1]
    assert outcomes[0].lost == outcomes[1].lost
    assert tvm_ffi.structural_equal(AutoCoalesce()(verified.mod), AutoCoalesce()(plain.mod))


@pytest.mark.parametrize(
    ("error", "level"),
    [(ValueError("wrong"), logging.WARNING), (ScheduleError("legal"), logging.INFO)],
    ids=["defect", "refusal"],
)
def test_a_map_that_fails_is_logged(
    error: Exception, level: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(sch: object, block: object) -> str:
        raise error

    def with_one_broken(subject: object) -> tuple[list[Strategy], list[str]]:
        ways, refusals = listed(subject)
        return [replace(ways[0], apply=broken), *ways], refusals

    listed = choose.propose
    monkeypatch.setattr(choose, "propose", with_one_broken)
    sch = s_tir.Schedule(Program("sum", (64, 64), "float32", (1,)).function())
    with caplog.at_level(logging.INFO, "tvm_layout_ext"):
        outcome = sch.auto_coalesce("B")
    assert [one.levelno for one in caplog.records] == [level]
    assert any(one.startswith("reduction is not possible") for one in outcome.lost)
