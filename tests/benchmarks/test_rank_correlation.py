"""The models' ranking of a sweep, and the command that prints it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.rank_correlation import correlations, task_of
from benchmarks.search_quality import rank_command
from benchmarks.sweep_file import Sweep

SWEEP = Path(__file__).parents[2] / "benchmarks" / "results" / "h200_sweep_transpose_8192.jsonl"


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


def test_rank_prints_the_correlation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = cut(tmp_path, 160)
    rank_command(path, simulated=4)
    said = correlations(path, 300, 4, 1)["simulator"]["spearman"]
    out = capsys.readouterr().out
    assert "transpose 8192x8192 float32, medians of NVIDIA H200: Spearman's" in out
    assert f"the simulator's cost: {said} (4 random candidates)" in out
