"""Whole runs of the benchmark of servers: same seeds for both sides, in turns."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import servers
from tvm_layout_ext.tune.space.task import make_task


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    begun: list[tuple[str, int]] = []

    def run(_task: Any, _port: int, key: str, trials: int, seed: int) -> dict[str, Any]:
        begun.append((key, seed))
        count = len(servers.KEYS[key])
        return {"servers": count, "seed": seed, "seconds": 1.0, "per_minute": count * trials + seed}

    monkeypatch.setattr(servers, "whole_run", run)
    return begun


def test_both_sides_run_each_seed_and_take_turns_to_be_first(runs: list[tuple[str, int]]) -> None:
    task = make_task("transpose", (64, 64), "float32")
    rows = servers.whole_runs(task, 1, 10, 3, math.inf)
    assert runs == [("one", 0), ("two", 0), ("two", 1), ("one", 1), ("one", 2), ("two", 2)]
    # 20 / 10, 21 / 11 and 22 / 12.
    assert servers.whole_ratio(rows) == 21 / 11


def test_no_round_is_begun_without_time_for_both_sides(runs: list[tuple[str, int]]) -> None:
    task = make_task("transpose", (64, 64), "float32")
    assert servers.whole_runs(task, 1, 10, 3, 0.0) == []
    assert runs == []
    assert servers.whole_ratio([]) is None


def test_whole_run_says_what_its_gpus_did(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 110.0, 112.0, 120.0, 126.0])
    monkeypatch.setattr(servers, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    asked: list[dict[str, Any]] = []

    def tune(_operator: Any, *, progress: Any, **rest: Any) -> Any:
        asked.append(rest)
        trials = [
            SimpleNamespace(score=1.0, phases={"run": 0.5, "build": 3.0}),
            SimpleNamespace(score=None, phases=None),
            SimpleNamespace(score=1.0, phases={"run": 4.0, "build": 2.0}),
        ]
        for one in trials:
            progress(one, 1, 3)
        return SimpleNamespace(trials=trials)

    monkeypatch.setattr(servers, "tune", tune)
    task = make_task("transpose", (64, 64), "float32")
    found = servers.whole_run(task, 9190, "two", 3, 5)
    assert asked[0]["runner"] == f"rpc:{servers.HOST}:9190:two"
    assert (asked[0]["seed"], asked[0]["trials"]) == (5, 3)
    assert (found["trials"], found["failed"], found["servers"]) == (3, 1, 2)
    assert (found["seconds"], found["first_seconds"], found["search_seconds"]) == (26.0, 10.0, 10.0)
    assert found["at_work"] == 4.0 / 2 / 10.0
    assert found["build_core_seconds"] == 5.0
    assert found["per_minute"] == 60 * 3 / 26.0
