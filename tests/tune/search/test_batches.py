"""Batches of the search: what is known when one is proposed, and what TVM's scheduler would do."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tvm

from tests.tune.helpers import FakeRunner
from tvm_layout_ext.tune import tune
from tvm_layout_ext.tune.measure import backend_pool
from tvm_layout_ext.tune.measure.backend import Begun, InProcess, Measurement
from tvm_layout_ext.tune.records.log import Log
from tvm_layout_ext.tune.search import run
from tvm_layout_ext.tune.search.batches import Batches
from tvm_layout_ext.tune.space.candidate import config_of
from tvm_layout_ext.tune.space.knobs import Config
from tvm_layout_ext.tune.space.task import Task, make_task


class Noted(InProcess):
    """Notes when a batch is begun, and when somebody asks for the first of it."""

    def __init__(self, task: Task, runner: FakeRunner) -> None:
        super().__init__(task, runner)
        self.batches = 0
        self.events: list[str] = []

    def begin(self, candidates: Sequence[tuple[Config, tvm.IRModule]]) -> list[Begun]:
        begun, number = super().begin(candidates), self.batches
        self.batches += 1
        self.events.append(f"begin {number}")

        def asked(one: Begun) -> Measurement:
            self.events.append(f"ask {number}")
            return one.result()

        return [Begun(partial(asked, one)) for one in begun]


def test_a_batch_is_proposed_while_one_is_under_way_and_knows_those_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner, made = FakeRunner(), list[Noted]()

    def make(_name: str, task: Task) -> Noted:
        made.append(Noted(task, runner))
        return made[0]

    monkeypatch.setattr(backend_pool, "make_backend", make)
    result = tune("transpose", shape=(64, 64), trials=34, runner=runner)
    assert len(result.trials) == len(runner.ran) == 34
    assert list(dict.fromkeys(made[0].events)) == [
        "begin 0", "ask 0", "begin 1", "begin 2", "ask 1", "begin 3", "ask 2", "begin 4", "ask 3",
        "begin 5", "ask 4", "ask 5",
    ]  # fmt: skip


class Failing(FakeRunner):
    """Fails where rows are padded by two, and ends by Ctrl-C in its ``last`` run."""

    def __init__(self, last: int) -> None:
        super().__init__(lambda config: 100.0 - config["align_offset"])
        self.last = last

    def run(self, task: Task, config: Config) -> Measurement:
        measured = super().run(task, config)
        if len(self.ran) == self.last:
            signal.raise_signal(signal.SIGINT)
        if config["align_offset"] == 2:
            raise ValueError("Planned.")
        return measured


def test_resumed_search_goes_on_as_if_it_had_not_ended_and_learns_from_failures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    learnt: list[Config] = []

    class Watched(Batches):
        def _learn(self, candidates: list[Any], results: list[Any]) -> None:
            knobs = make_task("transpose", (64, 64)).operator.knobs
            learnt.extend(config_of(one.sch, knobs) for one in candidates)
            super()._learn(candidates, results)

    monkeypatch.setattr(run, "Batches", Watched)

    def order(last: int, log: Path) -> list[Config]:
        found = tune("transpose", shape=(64, 64), trials=34, runner=Failing(last), log=log)
        return [record.config for record in found.trials]

    whole = order(0, tmp_path / "whole")
    assert learnt == whole[1:]
    assert order(26, tmp_path / "resumed") == whole[:25]
    learnt.clear()
    assert order(0, tmp_path / "resumed") == whole
    assert learnt == whole[1:]
    failed = [record.error_text for record in Log(tmp_path / "resumed").read().records]
    assert failed.count("Planned.") == sum(config["align_offset"] == 2 for config in whole) > 2


class Ended(InProcess):
    """All of a batch end before anybody asks; to ask for trial 5 is when Ctrl-C comes, once."""

    pressed = False
    count = 0

    def begin(self, candidates: Sequence[tuple[Config, tvm.IRModule]]) -> list[Begun]:
        begun = super().begin(candidates)
        for one in begun:
            one.result()
        numbers = range(self.count, self.count + len(begun))
        self.count += len(begun)
        return [
            self._watched(one) if n == 5 else one for n, one in zip(numbers, begun, strict=True)
        ]

    def _watched(self, begun: Begun) -> Begun:
        def press() -> Measurement:
            if not self.pressed:
                self.pressed = True
                raise KeyboardInterrupt
            return begun.result()

        return Begun(press, lambda: True)


def test_ctrl_c_keeps_what_has_ended_in_both_batches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runner = FakeRunner()
    monkeypatch.setattr(backend_pool, "make_backend", lambda _name, task: Ended(task, runner))
    result = tune("transpose", shape=(64, 64), trials=26, runner=runner, log=tmp_path)
    assert result.interrupted
    # The default, and two batches of 8; the third had not been proposed.
    assert len(runner.ran) == len(result.trials) == 17
    written = [record.config for record in Log(tmp_path).read().records]
    assert written == [record.config for record in result.trials]
    assert len({str(config) for config in written}) == 17
