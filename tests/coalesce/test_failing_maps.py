"""A map that cannot be applied is passed over, and the log says why."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from tvm import s_tir

from benchmarks.thread_programs import Program
from tvm_layout_ext.coalesce import choose
from tvm_layout_ext.coalesce.strategy import Strategy
from tvm_layout_ext.errors import ScheduleError


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
