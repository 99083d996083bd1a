"""Whole runs of the benchmark of servers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks import servers
from tvm_layout_ext.tune.space.task import make_task


def test_both_sides_run_each_seed_take_turns_and_begin_no_round_without_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[tuple[str, int]] = []

    def run(_task: Any, _port: int, key: str, trials: int, seed: int) -> dict[str, Any]:
        begun.append((key, seed))
        count = len(servers.KEYS[key])
        return {"servers": count, "seed": seed, "seconds": 1.0, "per_minute": count * trials + seed}

    monkeypatch.setattr(servers, "whole_run", run)
    task = make_task("transpose", (64, 64), "float32")
    rows = servers.whole_runs(task, 1, 10, 3, math.inf)
    assert begun == [("one", 0), ("two", 0), ("two", 1), ("one", 1), ("one", 2), ("two", 2)]
    # 20 / 10, 21 / 11 and 22 / 12.
    assert servers.whole_ratio(rows) == 21 / 11
    assert servers.whole_runs(task, 1, 10, 3, 0.0) == []
    assert len(begun) == 6
