"""The tutorials run, with their own assertions, and are written as the gallery expects."""

from __future__ import annotations

import ast
import json
import runpy
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

_TUTORIALS = sorted((Path(__file__).parents[2] / "tutorials").glob("0[124]_*.py"))


def test_all_are_there() -> None:
    assert [path.name[:2] for path in _TUTORIALS] == ["01", "02", "04"]


@pytest.mark.parametrize("path", _TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.parametrize("path", _TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_is_a_gallery_script(path: Path) -> None:
    text = path.read_text()
    docstring = ast.get_docstring(ast.parse(text)) or ""
    lines = docstring.splitlines()
    assert lines[0].startswith(".. _tutorial-")
    title = next(i for i, line in enumerate(lines[1:], 1) if line)
    assert set(lines[title + 1]) == {"="}
    assert len(lines[title + 1]) >= len(lines[title])
    assert text.count("\n" + "#" * 70 + "\n") >= 4
    assert text.startswith('"""')


def test_row_sum_refusals_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(_TUTORIALS[0]), run_name="__main__")
    printed = capsys.readouterr().out
    assert "binds no GPU thread" in printed
    assert "needs 4,538,368 bytes of shared memory" in printed


@pytest.fixture
def transpose(capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    names = runpy.run_path(str(_TUTORIALS[2]), run_name="__main__")
    return names, capsys.readouterr().out


def test_transpose_counts_as_its_text_says(transpose: tuple[dict[str, Any], str]) -> None:
    _, printed = transpose
    assert "load of A, 4 bytes a lane: 32 sectors a request, least 4" in printed
    assert "store of B, 4 bytes a lane: 4 sectors a request, least 4" in printed
    for side in ("load", "store"):
        assert f"{side}, 16 bytes a lane: 16 sectors, least 16" in printed
        assert f"{side}: 16 sectors a request, least 16" in printed
    assert "load: Triton 2x64, ours 2x64, equal: True" in printed
    assert "in all 4608 sectors of least 1024" in printed
    assert "in all 1024 sectors of least 1024" in printed


def test_layouts_read_from_the_loops_hold_what_the_kernel_moves(
    transpose: tuple[dict[str, Any], str],
) -> None:
    """Reading by one layout and writing by the other, through their tile, is a transpose."""
    names, _ = transpose
    tile = np.zeros(64 * 64, dtype=int)
    matrix = np.arange(64 * 64).reshape(64, 64)
    inputs = {
        "register": np.arange(32)[:, None, None],
        "lane": np.arange(32)[:, None],
        "warp": np.arange(4),
        "block": 0,
    }
    moved = {
        side: names["ours"][side].to_linear([64, 64]).apply_arrays(**inputs)
        for side in ("load", "store")
    }
    offsets = {
        side: names["our_tile"].invert().apply_arrays(**at)["offset"] for side, at in moved.items()
    }
    tile[offsets["load"]] = matrix[moved["load"]["dim0"], moved["load"]["dim1"]]
    result = np.zeros_like(matrix)
    result[moved["store"]["dim1"], moved["store"]["dim0"]] = tile[offsets["store"]]
    np.testing.assert_array_equal(result, matrix.T)


def test_transpose_quotes_the_committed_measurements(
    transpose: tuple[dict[str, Any], str],
) -> None:
    _, printed = transpose
    results = Path(__file__).parents[2] / "benchmarks" / "results"
    by_hand = json.loads((results / "h200_transpose.json").read_text())
    for name, times in by_hand["seconds"].items():
        rate = 8 * by_hand["size"] ** 2 / statistics.median(times) / 1e12
        assert f"{name:34} {rate:5.2f} TB/s" in printed
    rows = json.loads((results / "h200_memory_bound.json").read_text())["rows"]
    for name, rate in next(r for r in rows if r["name"] == "transpose float32")["tb_per_s"].items():
        assert f"{name:34} {rate:5.2f} TB/s" in printed
