"""Ctrl-C in a callback of TVM's search, while a trial is written down, and beside other errors."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.tune.helpers import FakeRunner
from tvm_layout_ext.errors import RecordError
from tvm_layout_ext.tune import tune
from tvm_layout_ext.tune.records import records
from tvm_layout_ext.tune.records.log import Log
from tvm_layout_ext.tune.search import prepare
from tvm_layout_ext.tune.search.design import Candidates
from tvm_layout_ext.tune.search.history import Interrupt


def test_ctrl_c_in_a_callback_of_the_search_ends_it_and_not_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    neighbour = Candidates.neighbour

    def pressed(*given: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return neighbour(*given)

    monkeypatch.setattr(Candidates, "neighbour", pressed)
    runner = FakeRunner()
    result = tune("transpose", shape=(64, 64), trials=26, runner=runner, log=tmp_path)
    assert result.interrupted
    written = [record.config for record in Log(tmp_path).read().records]
    assert written == [record.config for record in result.trials] == runner.ran


def test_ctrl_c_while_a_trial_is_written_down_loses_nothing_and_hides_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive, presses = records.archive, [signal.SIGINT]

    def pressed(*given: Any, **more: Any) -> Any:
        if presses:
            signal.raise_signal(presses.pop())
        return archive(*given, **more)

    def full(*_given: Any, **_more: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        raise RecordError("No space left on device.")

    monkeypatch.setattr(records, "archive", pressed)
    result = tune("transpose", shape=(64, 64), trials=4, runner=FakeRunner(), log=tmp_path)
    assert result.interrupted
    assert [one.id for one in Log(tmp_path).read().records] == [one.id for one in result.trials]
    assert len(result.trials) == 1
    monkeypatch.setattr(records, "archive", full)
    with pytest.raises(RecordError, match="No space left"):
        tune("transpose", shape=(64, 64), trials=4, runner=FakeRunner(), log=tmp_path)


def test_another_error_after_ctrl_c_is_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def translated(*_given: Any) -> Any:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("parallel_for_dynamic error with") from None

    monkeypatch.setattr(prepare, "openers", translated)
    result = tune("transpose", shape=(64, 64), trials=4, runner=FakeRunner(), log=tmp_path)
    assert result.interrupted


def test_ctrl_c_waits_for_the_outermost_block() -> None:
    interrupt, reached = Interrupt(), []

    def work() -> None:
        with interrupt, interrupt.held():
            with interrupt.held():
                signal.raise_signal(signal.SIGINT)
                reached.append("inner")
            reached.append("outer")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert interrupt.asked
    assert reached == ["inner", "outer"]
