"""The sweep without a GPU: candidates are really built, and a stand-in measures them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.search_quality import drawn
from benchmarks.sweep import Plan, run
from benchmarks.sweep_build import Built, Candidate
from benchmarks.sweep_file import Sweep
from benchmarks.sweep_measure import Job
from tvm_layout_ext.errors import RecordError
from tvm_layout_ext.tune.measure.builder.builder import LIBRARY


class StandIn:
    """Answers in the place of a GPU; the second candidate of each workload crashes."""

    def __init__(self) -> None:
        self.asked: list[Job] = []

    def device(self, _job: Job) -> str:
        return "stand-in"

    def times(self, job: Job, folder: str) -> list[float] | str:
        assert (Path(folder) / LIBRARY).exists()
        self.asked.append(job)
        if self.asked.count(job) == 2:
            return "TrialCrashError: Its process ended."
        return [1e-3 * len(self.asked)] * 7

    def close(self) -> None:
        """Nothing is held."""


@pytest.mark.nvcc
@pytest.mark.whole
def test_sweeps_are_built_measured_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "nvcc")
    files = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    work = ["transpose:256x256:float32", "row_sum:256x1024:float16"]
    plans = [Plan.read(*pair) for pair in zip(work, files, strict=True)]
    run(plans, workers=2, meter=StandIn(), seconds=300, limit=2)
    for plan, file in zip(plans, files, strict=True):
        sweep = Sweep.read(file)
        assert sweep.header.workload == plan.task.workload
        assert sweep.header.device == "stand-in"
        assert sweep.header.legal == len(plan.task.space.legal)
        assert sum(sweep.header.refused.values()) == plan.task.space.refused.total()
        assert len(sweep.entries) == 2
        assert [e.error for e in sweep.entries if e.error] == [
            "TrialCrashError: Its process ended."
        ]
        assert all(e.registers and e.smem_bytes is not None for e in sweep.entries)
        for entry in sweep.entries:
            assert plan.task.space.legal[entry.index] == entry.config
        assert plan.task.space.default() in [e.config for e in sweep.entries]
        assert "failed: TrialCrashError 1" in plan.summary()
        seconds = drawn(sweep, seed=0, trials=2)
        assert sorted(map(str, seconds)) == sorted(str(entry.seconds) for entry in sweep.entries)


class NoCompiler:
    """Answers in the place of the processes that build: no candidate compiles."""

    def __init__(self, count: int) -> None:
        self.count = count

    def results(self, candidates: Sequence[Candidate], _deadline: float) -> Iterator[Built]:
        for candidate in candidates:
            yield Built(candidate, None, "BuildError: There is no compiler.", 0.0)

    def close(self) -> None:
        """Nothing is held."""


def test_a_sweep_that_was_cut_off_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.sweep.Workers", NoCompiler)
    path = tmp_path / "half.jsonl"
    work = "transpose:256x256:float32"
    run([Plan.read(work, path)], workers=2, meter=StandIn(), seconds=300, limit=2)
    before = Sweep.read(path)
    plan = Plan.read(work, path)
    assert not {c.index for c in plan.candidates(0, None)} & {e.index for e in before.entries}
    run([plan], workers=2, meter=StandIn(), seconds=300, limit=4)
    after = Sweep.read(path)
    assert len(before.entries) == 2
    assert len(after.by_config) == len(after.entries) == 4
    assert after.entries[:2] == before.entries
    assert before.header.continued == []
    assert len(after.header.continued) == 1
    assert after.header.time == before.header.time


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("arch", "sm_80", "it is of sm_80, not sm_90a"),
        ("protocol", {"warm_up": 7}, "taken by the protocol {'warm_up': 7}, not"),
        ("index", 1, "its candidate 1 is no longer that of the legal space"),
        ("index", 957, "its candidate 957 is no longer that of the legal space"),
    ],
)
def test_times_that_cannot_be_compared_are_not_put_into_one_sweep(
    field: str, value: Any, message: str, tmp_path: Path
) -> None:
    """Only the number of candidates was asked for: indices would have named two spaces."""
    found = Sweep.read("benchmarks/results/h200_sweep_transpose_8192.jsonl")
    first = next(entry for entry in found.entries if entry.index == 0)
    if field == "index":
        other = Sweep(found.header, [replace(first, index=value)])
    else:
        other = Sweep(replace(found.header, **{field: value}), [first])
    other.write_compact(tmp_path / "file.jsonl")
    with pytest.raises(RecordError, match=re.escape(message)):
        Plan.read("transpose:8192x8192:float32", tmp_path / "file.jsonl")
    with pytest.raises(RecordError, match=r"957 candidates of transpose 8192.*name another file"):
        Plan.read("transpose:256x256:float32", tmp_path / "file.jsonl")
