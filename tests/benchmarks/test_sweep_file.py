"""Sweeps: read, replayed, and what is wrong with a file is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.sweep_file import Header, ReplayedError, Sweep, SweepEntry, SweepRunner
from tvm_layout_ext.errors import RecordError, ScheduleError
from tvm_layout_ext.tune.search.tune import tune
from tvm_layout_ext.tune.space.knobs import knob
from tvm_layout_ext.tune.space.operator import find_operator
from tvm_layout_ext.tune.space.task import Task, make_task

FEW = {
    "tile_i": (32, 64),
    "tile_j": (32, 64),
    "threads": (128, 256),
    "read_vector": (4,),
    "write_vector": (2, 4),
    "align_factor": (8,),
    "align_offset": (0, 1),
}
#: The transpose with few values a knob: a search schedules most of what is legal.
SMALL = replace(find_operator("transpose"), knobs=tuple(knob(n, v, v[-1]) for n, v in FEW.items()))
WORKLOAD = (SMALL, (64, 96), "float32")


def modelled(config: dict[str, Any]) -> float:
    """Made-up seconds with one best: a tile of 32 x 64 with vectors of 4."""
    off = abs(config["tile_i"] - 32) + abs(config["tile_j"] - 64) + config["align_offset"]
    return 1e-6 * (100 + off + 8 / config["read_vector"] + 8 / config["write_vector"])


def make_sweep(task: Task) -> Sweep:
    """Every legal candidate of a task, the first of which failed."""
    header = Header(
        workload=task.workload,
        arch="sm_90a",
        device="NVIDIA H200",
        versions={"tvm": "0.27.0"},
        protocol={"repeats": 3, "l2": "rotated"},
        knobs={knob.name: list(knob.values) for knob in task.operator.knobs},
        legal=len(task.space.legal),
        refused=dict(task.space.refused),
        time="2026-11-21T03:14:00.000Z",
    )
    entries = []
    for index, config in enumerate(task.space.legal):
        seconds = modelled(config)
        bad = index == 0
        entries.append(
            SweepEntry(
                index,
                config,
                times=[] if bad else [seconds, 0.9 * seconds, 1.1 * seconds],
                registers=32,
                smem_bytes=4224,
                error="PtxasError: ptxas refuses the kernel: too much." if bad else None,
            )
        )
    return Sweep(header, entries)


def write(sweep: Sweep, path: Path) -> Path:
    lines = [sweep.header.to_json(), *(entry.to_json() for entry in sweep.entries)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def task() -> Task:
    return make_task(*WORKLOAD)


@pytest.fixture(scope="module")
def sweep(task: Task) -> Sweep:
    return make_sweep(task)


def test_a_file_gives_back_what_was_written_and_a_compact_one_almost(
    sweep: Sweep, tmp_path: Path
) -> None:
    whole, small = write(sweep, tmp_path / "sweep.jsonl"), tmp_path / "small.jsonl"
    assert Sweep.read(whole) == sweep
    sweep.write_compact(small)
    again = Sweep.read(small)
    assert (again.header, again.corrupt) == (sweep.header, 0)
    for there, here in zip(again.entries, sweep.entries, strict=True):
        assert there.times == pytest.approx(here.times, rel=1e-4)
        assert replace(there, times=here.times) == here
    assert 2 * small.stat().st_size < whole.stat().st_size
    small.write_text(small.read_text().replace('"config":[32,', '"config":[', 1))
    assert Sweep.read(small).corrupt == 1
    small.write_text('{"sweep": 2}\n')
    with pytest.raises(RecordError, match="does not begin with a sweep's header of version 1"):
        Sweep.read(small)


def test_replay_answers_with_the_measured_times(sweep: Sweep, task: Task) -> None:
    runner = SweepRunner(sweep)
    entry = sweep.entries[-1]
    measured = runner.run(task, entry.config)
    assert measured.median == entry.seconds
    assert (measured.registers, measured.smem_bytes, measured.l2) == (32, 4224, "rotated")
    assert runner.verify(task, entry.config) == "transpose 64x96 float32"
    assert runner.device == "NVIDIA H200"
    with pytest.raises(ReplayedError, match="PtxasError: ptxas refuses"):
        runner.run(task, sweep.entries[0].config)


def test_what_the_sweep_lacks_is_told(sweep: Sweep, task: Task) -> None:
    runner = SweepRunner(Sweep(sweep.header, sweep.entries[:3]))
    with pytest.raises(RecordError, match="lacks tile_i="):
        runner.run(task, sweep.entries[-1].config)
    other = make_task(SMALL, (64, 64), "float32")
    with pytest.raises(RecordError, match="of transpose 64x96 float32, not of transpose 64x64"):
        runner.run(other, sweep.entries[-1].config)


def test_search_on_a_sweep_needs_no_gpu(sweep: Sweep) -> None:
    result = tune(SMALL, shape=(64, 96), dtype="float32", trials=12, runner=SweepRunner(sweep))
    assert result.best is not None
    assert result.best.device == "NVIDIA H200"
    assert result.best.median == min(r.median for r in result.trials if r.median)
    assert len({tuple(r.config.items()) for r in result.trials}) == 12
    for record in result.trials:
        if record.status == "ok":
            assert record.median == pytest.approx(modelled(record.config))


RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def older_sweep() -> Sweep:
    """What a sweep of the GEMM held before slices and clusters were knobs of it."""
    newer = ("split_k", "cluster")
    sweep = Sweep.read(RESULTS / "h200_sweep_gemm_4096.jsonl")
    entries = [
        replace(entry, config={k: v for k, v in entry.config.items() if k not in newer})
        for entry in sweep.entries
        if all(entry.config[name] == 1 for name in newer)
    ]
    knobs = {k: v for k, v in sweep.header.knobs.items() if k not in newer}
    return Sweep(replace(sweep.header, knobs=knobs, legal=len(entries)), entries)


def test_a_sweep_that_is_older_than_a_knob_is_searched_without_it() -> None:
    sweep = older_sweep()
    names = [one.name for one in sweep.operator.knobs]
    assert names == list(sweep.header.knobs)
    assert set(names) < {one.name for one in find_operator("gemm").knobs}
    older = make_task(sweep.operator, (4096, 4096, 4096), "float16")
    assert {sweep.key(config) for config in older.space.legal} == set(sweep.by_config)
    assert older.space.default() in [entry.config for entry in sweep.entries]


def test_a_sweep_answers_for_what_newer_knobs_were_before_they_were_there() -> None:
    sweep = older_sweep()
    task = make_task("gemm", (4096, 4096, 4096), "float16")
    config = task.space.default()
    assert (config["split_k"], config["cluster"]) == (1, 1)
    entry = sweep.by_config[sweep.key(config)]
    assert SweepRunner(sweep).run(task, config).median == entry.seconds
    for change in ({"split_k": 2}, {"cluster": 4}):
        with pytest.raises(RecordError, match=r"The sweep of gemm .* lacks tile_m=128"):
            SweepRunner(sweep).run(task, config | change)


def test_a_configuration_may_be_older_than_a_knob() -> None:
    gemm = find_operator("gemm")
    full = gemm.default_config()
    older = {name: value for name, value in full.items() if name != "split_k"}
    gemm.check_config(older)
    (split,) = (one for one in gemm.knobs if one.name == "split_k")
    assert (split.of(older), split.of(full | {"split_k": 4})) == (1, 4)
    with pytest.raises(ScheduleError, match="gemm has the knobs"):
        gemm.check_config({name: value for name, value in full.items() if name != "stages"})
    with pytest.raises(ScheduleError, match="Knob split_k of gemm cannot be 3"):
        gemm.check_config(full | {"split_k": 3})
    off = replace(gemm, knobs=(*gemm.knobs, knob("late", (0, 1), before=0)))
    off.check_config(full)
    with pytest.raises(ScheduleError, match="Knob late was 3 before, which is not one of 1, 2"):
        knob("late", (1, 2), before=3)
