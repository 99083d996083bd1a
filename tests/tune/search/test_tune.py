"""The search: trial 0, failures, verification of the winner, resuming, interruption."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.tune.helpers import FakeRunner, offset_cost
from tvm_layout_ext.errors import RecordError, ScheduleError, TargetError
from tvm_layout_ext.tune import tune
from tvm_layout_ext.tune.measure import backend_pool
from tvm_layout_ext.tune.measure.backend import Begun, InProcess, Measurement
from tvm_layout_ext.tune.model.latency import least_seconds
from tvm_layout_ext.tune.records.log import Log, Record
from tvm_layout_ext.tune.search.tune import Result
from tvm_layout_ext.tune.space.knobs import Config
from tvm_layout_ext.tune.space.task import Task, make_task


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


def run(runner: FakeRunner, trials: int = 8, log: Path | None = None, **options: Any) -> Result:
    return tune("transpose", shape=(64, 64), trials=trials, runner=runner, log=log, **options)


def test_trial_0_is_the_default_and_the_best_wins(runner: FakeRunner) -> None:
    result = run(runner)
    assert runner.ran[0] == result.task.operator.default_config() == result.default.config
    assert [record.trial for record in result.trials] == list(range(8))
    assert result.best is not None
    assert result.best.verified_on
    assert result.best.score == min(offset_cost(config) for config in runner.ran)
    assert result.ranking[0] == result.best


@pytest.mark.parametrize(("slower", "tried"), [(0.99, 1), (1.01, 1), (0.9, 12), (1.1, 12)])
def test_a_default_that_takes_as_long_as_its_bytes_ends_the_search(
    slower: float, tried: int
) -> None:
    class Timed(FakeRunner):
        name, device = "cuda", "NVIDIA H200"

        def run(self, task: Task, config: Config) -> Measurement:
            self.ran.append(config)
            return Measurement(0, None, (slower * least_seconds(task),) * 3, l2="rotated")

    assert len(run(Timed(), 12).trials) == tried


def test_failed_candidates_are_failed_trials_with_their_reasons_and_never_win(
    runner: FakeRunner,
) -> None:
    def cost(config: Config) -> float:
        if config["align_offset"] == 1:
            raise MemoryError("no room for 7 bytes")
        return offset_cost(config)

    def fail(config: Config) -> float:
        raise RuntimeError

    runner.cost = cost
    failed = [record for record in run(runner).trials if record.status == "error"]
    assert {record.config["align_offset"] for record in failed} == {1}
    assert {(r.error_class, r.error_text) for r in failed} == {
        ("MemoryError", "no room for 7 bytes")
    }
    runner.cost = fail
    result = run(runner, 3)
    assert result.best is None
    assert [record.error_text for record in result.trials] == ["no text"] * 3


def test_wrong_winner_becomes_a_failed_trial_and_the_next_best_wins(
    runner: FakeRunner, tmp_path: Path
) -> None:
    expected = run(runner).ranking
    runner.wrong = [expected[0].config, expected[1].config]
    result = run(runner, log=tmp_path)
    assert result.best is not None
    assert result.best.config == expected[2].config
    wrong = [r for r in Log(tmp_path).read().records if r.error_class == "WrongResultError"]
    assert len(wrong) == 2
    assert all(record.config in runner.wrong for record in wrong)
    assert all(r.status == "error" and not r.verified_on for r in wrong)


def test_interrupted_run_keeps_everything_and_resumes(runner: FakeRunner, tmp_path: Path) -> None:
    def stop(config: Config) -> float:
        if len(runner.ran) == 4:
            raise KeyboardInterrupt
        return offset_cost(config)

    runner.cost = stop
    first = run(runner, log=tmp_path)
    assert first.interrupted
    assert len(first.trials) == len(Log(tmp_path).read().records) == 3
    assert first.best is not None
    assert first.best.score == min(record.score or 0 for record in first.trials)
    assert first.best.verified_on is None
    runner.ran, runner.cost = [], offset_cost
    second = run(runner, log=tmp_path)
    assert (len(runner.ran), second.resumed, len(second.trials)) == (5, 3, 8)
    assert second.best is not None
    assert second.best.verified_on == "transpose 64x64 float32"
    assert len(Log(tmp_path).read().records) == 8
    runner.ran = []
    again = run(runner, log=tmp_path)
    assert (runner.ran, again.resumed, again.best) == ([], 8, second.best)
    assert again.trials == second.trials
    assert run(runner, log=tmp_path, seed=1).resumed == 0
    assert tune("transpose", shape=(64, 128), trials=3, runner=runner, log=tmp_path).resumed == 0


def test_records_of_other_versions_are_skipped_with_a_count(
    runner: FakeRunner, tmp_path: Path
) -> None:
    for record in run(runner, 3).trials:
        versions = record.versions | {"tvm": "0.26.0"}
        Log(tmp_path).append(dataclasses.replace(record, versions=versions))
    result = run(runner, 3, tmp_path)
    assert result.resumed == 0
    assert result.warning is not None
    assert result.warning.startswith("Skipped 3 records by other versions of TVM and this package")
    assert "(0.26.0 and " in result.warning
    assert run(runner, 3, tmp_path).resumed == 3


def test_small_space_ends_the_run_and_a_best_at_the_end_of_a_range_is_said(
    runner: FakeRunner, tmp_path: Path
) -> None:
    result = tune("transpose", shape=(1, 1), trials=10_000, runner=runner)
    assert len(result.trials) == len(result.task.space.legal) < 10_000
    assert result.best is not None
    for offset, said in ((8, []), (9, ["align_offset is 9, the end of its range 0 to 9"])):
        config = result.best.config | {"align_offset": offset}
        best = dataclasses.replace(result.best, config=config)
        edges = dataclasses.replace(result, best=best).edges()
        assert len(edges) == len(said)
        assert all(part in text for part, text in zip(said, edges, strict=True))
    runner.ran = []
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="Cannot write a log"):
        run(runner, log=tmp_path / "file")
    assert runner.ran == []


def test_progress_is_told_of_each_trial(runner: FakeRunner) -> None:
    seen: list[tuple[int, int]] = []

    def progress(record: Record, done: int, total: int) -> None:
        assert record.trial == done - 1
        seen.append((done, total))

    run(runner, 3, progress=progress)
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert len(run(runner, 2, progress=False).trials) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"operator": "nope"}, r"Unknown operator 'nope'; known are .*transpose"),
        ({"shape": (64,)}, r"transpose needs a shape of 2 numbers \(M N\), not 1"),
        ({"shape": (64, -1)}, r"N of transpose must be at least 1, not -1"),
        ({"dtype": "float8"}, r"transpose has no dtype float8; it has .*float32"),
        ({"trials": 0}, r"number of trials must be at least 1, not 0"),
        ({"trials": 1.5}, r"number of trials must be a whole number, not 1.5"),
        ({"seed": 1.5}, r"seed must be a whole number, not 1.5"),
        ({"shape": (64.9, 64)}, r"M of transpose must be a whole number, not 64.9"),
        ({"shape": 5}, r"needs a shape of 2 numbers \(M N\), not 5"),
        ({"shape": "ab"}, r"needs a shape of 2 numbers \(M N\), not 'ab'"),
        ({"shape": None}, r"needs a shape of 2 numbers \(M N\), not None"),
        ({"shape": (50000, 50000)}, r"2,500,000,000 elements, and .* at most 2,147,483,647"),
        ({"seed": -1}, r"seed must be at least 0, not -1"),
        ({"strategy": "annealing"}, r"Unknown strategy 'annealing'; known are evolutionary, repla"),
        (
            {"progress": True},
            r"progress is a function of \(record, done, total\), or False, not True",
        ),
    ],
)
def test_bad_argument_is_one_sentence(changes: dict[str, object], message: str) -> None:
    arguments = {"operator": "transpose", "shape": (64, 64)} | changes
    with pytest.raises(ScheduleError, match=message):
        tune(arguments.pop("operator"), **arguments)  # type: ignore[arg-type]


def test_unknown_runner_and_missing_gpu_are_one_sentence_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend_pool, "has_gpu", lambda: False)
    task = make_task("transpose", (64, 64), "float32")
    with pytest.raises(
        TargetError, match="Unknown runner 'gpu'; known are auto, cuda, simulate and rpc:"
    ):
        backend_pool.make_backend("gpu", task)
    with pytest.raises(TargetError, match="Runner cuda needs a CUDA GPU and there is none"):
        backend_pool.make_backend("cuda", task)
    assert backend_pool.make_backend("auto", task).name == "simulate"


@pytest.mark.parametrize("strategy", ["evolutionary", "replay"])
def test_trials_are_distinct_legal_and_those_of_the_seed(strategy: str) -> None:
    runners = [FakeRunner() for _ in range(3)]
    results = [
        run(one, 24, seed=s, strategy=strategy) for one, s in zip(runners, (0, 0, 1), strict=True)
    ]
    first, again, other = (one.ran for one in runners)
    assert first == again != other
    tried = {tuple(sorted(config.items())) for config in first}
    legal = {tuple(sorted(config.items())) for config in results[0].task.space.legal}
    assert len(first) == len(tried) == len(results[0].trials) == 24
    assert tried <= legal


@pytest.mark.whole
def test_guided_search_learns_from_what_it_measured(runner: FakeRunner) -> None:
    """The cost depends on the offset, of which the closed form says little; trees must find it."""
    runner.cost = lambda config: 100.0 if config["align_offset"] % 4 else 1.0
    trials = run(runner, 48).trials[1:]
    early = [record.config["align_offset"] % 4 == 0 for record in trials[:8]]
    late = [record.config["align_offset"] % 4 == 0 for record in trials[-24:]]
    assert sum(late) / len(late) > max(0.5, sum(early) / len(early))


class TakingTurns(InProcess):
    """A backend whose finalists are timed again, with other times than the first."""

    def __init__(self, task: Task, runner: FakeRunner, again: list[float]) -> None:
        super().__init__(task, runner)
        self.name, self.device, self.again = "cuda", "NVIDIA H200", again
        self.verified: list[Config] = []

    def measure(self, config: Config) -> Measurement:
        score = super().measure(config).score
        # Compared with the reference, on the inputs of all trials.
        return Measurement(4224, None, times=(score,), verified_on=str(self._task.workload))

    def remeasure(self, configs: Sequence[Config]) -> list[Measurement | None]:
        return [
            Measurement(4224, None, times=(seconds,), verified_on=str(self._task.workload))
            for _, seconds in zip(configs, self.again, strict=True)
        ]

    def verify(self, config: Config) -> str:
        self.verified.append(config)
        return super().verify(config)


@pytest.mark.parametrize("slower", [1, 1e6])
def test_finalists_take_turns_and_the_winner_is_named_by_those_times(
    slower: float, runner: FakeRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Also where a busy GPU makes every turn slower than what other trials took before.
    again = [30.0 * slower, 20.0 * slower, 25.0 * slower]
    backends: list[TakingTurns] = []

    def make(_name: object, task: Task) -> TakingTurns:
        backends.append(TakingTurns(task, runner, again))
        return backends[-1]

    monkeypatch.setattr(backend_pool, "make_backend", make)
    result = run(runner, log=tmp_path)
    finalists = [record for record in result.trials if record.kind == "finalist"]
    assert sorted(record.median or 0.0 for record in finalists) == sorted(again)
    assert result.best is not None
    assert (result.best.median, result.best.kind) == (20.0 * slower, "finalist")
    assert backends[0].verified == [result.best.config]
    runner.ran = []
    later = run(runner, log=tmp_path)
    assert (runner.ran, backends[1].verified, later.best) == ([], [], result.best)


class Building(TakingTurns):
    """A backend that builds ahead, and whose trials end when something else was done twice."""

    def __init__(self, task: Task, runner: FakeRunner) -> None:
        super().__init__(task, runner, [1.0, 2.0, 3.0])
        self.events: list[str] = []

    def prepare(self, _task: Task, config: Config, *_: Any) -> bool:
        self.events.append(f"build {'default' if config == self._default else 'other'}")
        return True

    @property
    def _default(self) -> Config:
        return self._task.space.default()

    def begin(self, candidates: Sequence[tuple[Config, Any]]) -> list[Begun]:
        self.events.append(f"run {len(candidates)}")
        wanted = self.events.count("meanwhile") + 2
        begun = super().begin(candidates)
        return [Begun(x.result, lambda: self.events.count("meanwhile") >= wanted) for x in begun]

    def foresee(self, configs: Sequence[Config]) -> None:
        self.events.append(f"foresee {len(configs)}")


def test_what_no_result_decides_is_built_while_the_default_is_and_waiting_is_used(
    runner: FakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends: list[Building] = []

    def make(_name: object, task: Task) -> Building:
        backends.append(Building(task, runner))
        return backends[-1]

    monkeypatch.setattr(backend_pool, "make_backend", make)
    pool = backend_pool.BackendPool(runner)

    def meanwhile() -> bool:
        backends[0].events.append("meanwhile")
        return True

    pool.meanwhile = meanwhile
    result = tune("transpose", shape=(64, 64), trials=12, runner=pool)
    assert len(result.trials) == 12
    assert backends[0].events == [
        "build default", *["build other"] * 11, "run 1", "foresee 0", "meanwhile", "meanwhile",
        "run 11", "meanwhile", "meanwhile", "foresee 3",
    ]  # fmt: skip
