"""Batches of the search: what is known when one is proposed, and what TVM's scheduler would do."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tests.tune.helpers import FakeRunner
from tvm_layout_ext._compat import without_tensor_intrinsics
from tvm_layout_ext.target import cuda_target
from tvm_layout_ext.tune import tune
from tvm_layout_ext.tune.measure import backend_pool
from tvm_layout_ext.tune.measure.backend import Begun, InProcess, Measurement
from tvm_layout_ext.tune.records.log import Log
from tvm_layout_ext.tune.search import run
from tvm_layout_ext.tune.search.batches import Batches
from tvm_layout_ext.tune.search.design import Candidates
from tvm_layout_ext.tune.space.candidate import config_of
from tvm_layout_ext.tune.space.knobs import Config
from tvm_layout_ext.tune.space.task import Task, make_task


@derived_object
class Counting(ms.search_strategy.PySearchStrategy):
    """Proposes what it is given, ``size`` at a time, and tells when it is asked and shown."""

    def __init__(self, candidates: Sequence[Any], events: list[Any]) -> None:
        super().__init__()
        self.candidates, self.events = list(candidates), events
        self.size = self.batch = self.seen = 0

    def _initialize_with_tune_context(self, context: ms.TuneContext) -> None:
        pass

    def pre_tuning(self, max_trials: int, num_trials_per_iter: int, *rest: Any) -> None:
        self.size = num_trials_per_iter

    def post_tuning(self) -> None:
        self.events.append("end")

    def generate_measure_candidates(self) -> list[Any] | None:
        if not self.candidates:
            return None
        now, self.candidates = self.candidates[: self.size], self.candidates[self.size :]
        self.events.append(("propose", self.batch))
        self.batch += 1
        return now

    def notify_runner_results(self, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        self.events.append(("see", self.seen, [bool(one.run_secs) for one in results]))
        self.seen += 1

    def clone(self) -> Any:
        raise NotImplementedError


class Bench:
    """Begins trials of which each step is an event."""

    def __init__(self, events: list[Any]) -> None:
        self.events = events
        self.learnt: list[int] = []

    def begin(self, modules: Sequence[tvm.IRModule]) -> list[Any]:
        self.events.append(("begin", len(modules)))
        results = [ms.runner.RunnerResult([index + 1.0], None) for index in range(len(modules))]
        return [Begun(partial(lambda result: result, one)) for one in results]

    def update(self, _context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        assert all(one.run_secs for one in results)
        assert len(candidates) == len(results)
        self.learnt.append(len(results))


@derived_object
class Learning(ms.cost_model.PyCostModel):
    """Hands what there is to learn to the bench."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench = bench

    def update(self, context: Any, candidates: list[Any], results: list[Any]) -> None:
        self.bench.update(context, candidates, results)


@pytest.fixture(scope="module")
def task() -> Task:
    return make_task("transpose", (64, 64), "float32")


def events_of(task: Task, ahead: int, trials: int) -> tuple[list[Any], Bench]:
    """Run 10 candidates in batches of 4."""
    events: list[Any] = []
    sch = Candidates(task).schedule(task.space.default())
    proposed = [ms.search_strategy.MeasureCandidate(sch, []) for _ in range(10)]
    strategy = Counting(proposed, events)
    with without_tensor_intrinsics():
        context = ms.TuneContext(
            mod=task.unscheduled,
            target=cuda_target("sm_90a"),
            space_generator=ms.space_generator.ScheduleFn(
                lambda _: None, sch_rules=[], postprocs=[], mutator_probs={}
            ),
            search_strategy=strategy,
            num_threads=1,
        )
    bench = Bench(events)
    Batches(context, bench.begin, Learning(bench), ahead).run(trials, 4)
    return events, bench


def test_batch_is_proposed_while_one_is_under_way_and_knows_those_before(task: Task) -> None:
    events, bench = events_of(task, ahead=1, trials=99)
    assert events == [
        ("propose", 0), ("begin", 4), ("propose", 1), ("begin", 4), ("see", 0, [True] * 4),
        ("propose", 2), ("begin", 2), ("see", 1, [True] * 4), ("see", 2, [True] * 2), "end",
    ]  # fmt: skip
    assert bench.learnt == [4, 4, 2]


def test_without_a_batch_ahead_each_is_seen_before_the_next(task: Task) -> None:
    kinds = [event[:2] for event in events_of(task, ahead=0, trials=99)[0] if event[0] != "begin"]
    assert kinds[:-1] == [(kind, index) for index in range(3) for kind in ("propose", "see")]


@pytest.mark.parametrize(("trials", "sizes"), [(1, [1]), (4, [4]), (6, [4, 2]), (8, [4, 4])])
def test_no_more_trials_are_begun_than_asked_for(task: Task, trials: int, sizes: list[int]) -> None:
    events, bench = events_of(task, ahead=1, trials=trials)
    assert [event[1] for event in events if event[0] == "begin"] == sizes
    assert bench.learnt == sizes


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
