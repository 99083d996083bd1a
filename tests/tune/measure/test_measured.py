"""The measuring backend without a device: finalists are simulated beside their measurement."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tvm_layout_ext.tune.measure import backend_pool, measured
from tvm_layout_ext.tune.measure.backend import called_later, config_key
from tvm_layout_ext.tune.measure.builder.builder import INFO, Building
from tvm_layout_ext.tune.measure.measured import MeasuringBackend
from tvm_layout_ext.tune.measure.protocol import Inputs, Measured
from tvm_layout_ext.tune.measure.simulated import count
from tvm_layout_ext.tune.search import prepare
from tvm_layout_ext.tune.search.prepare import Prepared
from tvm_layout_ext.tune.space.candidate import config_of
from tvm_layout_ext.tune.space.task import Task, make_task

#: Of so many that no result has told to try.
FIRST = 6


class Stopwatch:
    """A runner whose candidates take as many seconds as their folder's name says."""

    best_so_far = None

    def __init__(self, task: Task) -> None:
        self.inputs = Inputs(task)
        self.tasks: list[Task] = []

    def take(self, task: Task) -> None:
        self.tasks.append(task)

    def in_turn(self, artifacts: Sequence[str]) -> list[Measured]:
        return [Measured([float(Path(one).name)]) for one in artifacts]

    def close(self) -> None:
        pass


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[MeasuringBackend]:
    task = make_task("transpose", (64, 64), "float32")
    made = MeasuringBackend(task, Stopwatch(task), "cuda", "NVIDIA H200", workers=1)
    for index, config in enumerate(task.space.legal[:2], 1):
        folder = tmp_path / str(index)
        folder.mkdir()
        info = {"registers": 32, "spill_bytes": 0, "smem_bytes": 4224, "seconds": 1.0}
        (folder / INFO).write_text(json.dumps(info))
        made._artifacts[config_key(config)] = str(folder)
    yield made
    made.close()


def checked(backend: MeasuringBackend) -> None:
    task = backend._task
    configs = task.space.legal[:2]
    found = backend.remeasure(configs)
    assert [one.times for one in found if one] == [(1.0,) * 5, (2.0,) * 5]
    assert [one.conflict_model for one in found if one] == [
        count(task, config)[1] for config in configs
    ]


def test_finalists_are_simulated_in_a_build_process(
    backend: MeasuringBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def here(*_: Any) -> None:
        raise AssertionError("It was simulated in this process.")

    monkeypatch.setattr(measured, "count", here)
    # Beside other work a count may take longer than a search waits for it.
    monkeypatch.setattr(measured, "COUNTING", 60.0)
    checked(backend)


def test_finalists_that_are_not_counted_in_time_have_no_counters(
    backend: MeasuringBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: Future[Any] = Future()
    late.set_exception(TimeoutError())
    monkeypatch.setattr(backend.builder, "apart", lambda *_, **__: late)
    found = backend.remeasure(backend._task.space.legal[:2])
    assert [(one.median, one.conflict_model) for one in found if one] == [(1.0, None), (2.0, None)]


def test_one_crew_serves_several_tasks_with_the_same_processes(
    backend: MeasuringBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def make(runner: str, _task: Task) -> MeasuringBackend:
        made.append(runner)
        return backend

    monkeypatch.setattr(backend_pool, "make_backend", make)
    pool, other = backend_pool.BackendPool("cuda"), make_task("transpose", (32, 64), "float32")
    assert pool.backend(backend._task) is pool.backend(other) is backend
    assert (made, backend._task, backend.runner.tasks) == (["cuda"], other, [other])
    assert not backend._artifacts


@pytest.mark.costly
@pytest.mark.parametrize(("trials", "built", "counted"), [(3, 3, 3), (7, 7, 0), (9, FIRST + 1, 0)])
def test_a_search_of_few_trials_is_built_before_its_turn(
    backend: MeasuringBackend,
    monkeypatch: pytest.MonkeyPatch,
    trials: int,
    built: int,
    counted: int,
) -> None:
    modules: list[Any] = []
    simulated: list[Any] = []

    def begin(given: Sequence[Any], later: bool) -> list[Any]:
        assert later
        modules.extend(given)
        return [Building(str(len(modules)), Future()) for _ in given]

    monkeypatch.setattr(prepare, "FIRST", FIRST)
    monkeypatch.setattr(backend.builder, "begin", begin)
    monkeypatch.setattr(backend.builder, "apart", lambda *given, **_: simulated.append(given))
    monkeypatch.setattr(backend, "asked", called_later)
    monkeypatch.setattr(backend.runner.inputs, "begin", lambda _: None)
    monkeypatch.setattr(backend.runner, "begin", lambda folders, _: folders, raising=False)
    monkeypatch.setattr(backend_pool, "make_backend", lambda *_: backend)
    task, pool = make_task("transpose", (32, 64), "float32"), backend_pool.BackendPool("cuda")
    prepared = Prepared(task)
    prepared.begin(pool, trials)
    for share in prepared._shares:
        assert not prepared.begin_all(pool, trials)
        share.result()
    assert prepared.begin_all(pool, trials)
    assert not prepared.begin_all(pool, trials)
    assert (len(modules), len(simulated)) == (built, counted)
    pool.backend(task)
    schedules = [prepared.candidates.schedule(prepared.default), *prepared.first(trials)]
    for sch in schedules[:built]:
        assert sch is not None
        assert backend._building(config_of(sch.mod, task.operator.knobs), sch.mod).folder
    assert len(modules) == built


def test_what_leads_is_counted_before_it_is_timed_again(
    backend: MeasuringBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs, counted = backend._task.space.legal[:2], list[Any]()

    def apart(_function: Any, _task: Task, config: Any, **_: Any) -> Future[Any]:
        counted.append(config)
        done: Future[Any] = Future()
        done.set_result({"cost": len(counted)})
        return done

    monkeypatch.setattr(backend.builder, "apart", apart)
    backend.foresee(configs[:1])
    backend.foresee(configs[:1])
    assert counted == configs[:1]
    found = backend.remeasure(configs)
    assert counted == configs
    assert [one.conflict_model for one in found if one] == [{"cost": 1}, {"cost": 2}]
