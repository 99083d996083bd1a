"""The models' ranking of a sweep, and `bench`, which prints it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.rank_correlation import correlations, task_of
from benchmarks.sweep_file import Sweep
from tests.cli.test_cli import invoke

SWEEP = Path(__file__).parents[3] / "benchmarks" / "results" / "h200_sweep_transpose_8192.jsonl"


def cut(folder: Path, step: int, **header: object) -> Path:
    """Every so manieth candidate of the committed sweep, in a file of its own."""
    first, *lines = SWEEP.read_text().splitlines()
    path = folder / "sweep.jsonl"
    changed = json.dumps(json.loads(first) | header)
    path.write_text("".join(f"{line}\n" for line in (changed, *lines[::step])))
    return path


def test_both_models_order_a_few_transposes(tmp_path: Path) -> None:
    found = correlations(cut(tmp_path, 160), modelled=6, simulated=4, processes=1)
    assert {name: one["candidates"] for name, one in found.items()} == {
        "latency": 6,
        "simulator": 4,
    }
    assert all(-1.0 <= one["spearman"] <= 1.0 for one in found.values())


def test_task_has_the_architecture_of_the_sweep(tmp_path: Path) -> None:
    assert task_of(Sweep.read(cut(tmp_path, 300, arch="sm_80"))).architecture.name == "sm_80"


def test_bench_of_a_sweep_prints_the_correlation(tmp_path: Path) -> None:
    """It was read as a log, all of whose lines are corrupt."""
    path = cut(tmp_path, 160)
    ran = invoke("bench", path, "--candidates", "4")
    assert ran.code == 0, ran.err
    said = correlations(path, 300, 4, 1)["simulator"]["spearman"]
    assert "transpose 8192x8192 float32, medians of NVIDIA H200: Spearman's" in ran.out
    assert f"the simulator's cost: {said:.2f} (4 random candidates)" in ran.out
    assert "the closed form: " in ran.out


@pytest.mark.parametrize(
    ("text", "is_one"),
    [('{"sweep": 7}', True), ('{"schema_version": 1}', False), ("", False), ("[" * 9999, False)],
)
def test_a_sweep_is_told_from_a_log_by_its_first_line(
    text: str, is_one: bool, tmp_path: Path
) -> None:
    path = tmp_path / "file.jsonl"
    path.write_text(text)
    assert Sweep.is_one(path) is is_one
    assert not Sweep.is_one(tmp_path)
    assert not Sweep.is_one(tmp_path / "none")


def test_bench_refuses_a_sweep_of_another_version(tmp_path: Path) -> None:
    ran = invoke("bench", cut(tmp_path, 300, sweep=7))
    assert ran.code == 2
    assert "does not begin with a sweep's header of version 1" in ran.err
