"""The tutorials run, with their own assertions, and are written as the gallery expects."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import runpy
import statistics
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
_TUTORIALS = sorted((Path(__file__).parents[1] / "tutorials").glob("0[1245678]_*.py"))


#: Options by which tutorials write files.
_OPTIONS = {"06_pipelined_gemm": "--svg", "07_tuning": "--out"}
_FILES = tempfile.TemporaryDirectory()


def files_of(path: Path) -> Path:
    """Where a tutorial writes files."""
    return Path(_FILES.name) / path.stem


@cache
def ran(path: Path) -> tuple[dict[str, Any], str]:
    """The names that a tutorial leaves, and what it prints; it runs once."""
    option = _OPTIONS.get(path.stem)
    words = [option, str(files_of(path))] if option else []
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [path.name, *words])
        names = runpy.run_path(str(path), run_name="__main__")
    return names, printed.getvalue()


def test_all_are_there() -> None:
    assert [path.name[:2] for path in _TUTORIALS] == ["01", "02", "04", "05", "06", "07", "08"]


@pytest.mark.parametrize("path", _TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_runs(path: Path) -> None:
    assert ran(path)[1]


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


def test_row_sum_refusals_are_printed() -> None:
    _, printed = ran(_TUTORIALS[0])
    assert "binds no GPU thread" in printed
    assert "needs 4,538,368 bytes of shared memory" in printed


def test_transpose_counts_as_its_text_says() -> None:
    _, printed = ran(_TUTORIALS[2])
    assert "load of A, 4 bytes a lane: 32 sectors a request, least 4" in printed
    assert "store of B, 4 bytes a lane: 4 sectors a request, least 4" in printed
    for side in ("load", "store"):
        assert f"{side}, 16 bytes a lane: 16 sectors, least 16" in printed
        assert f"{side}: 16 sectors a request, least 16" in printed
    assert "load: Triton 2x64, ours 2x64, equal: True" in printed
    assert "in all 4608 sectors of least 1024" in printed
    assert "in all 1024 sectors of least 1024" in printed


def test_transpose_quotes_the_committed_measurements() -> None:
    _, printed = ran(_TUTORIALS[2])
    by_hand = json.loads((RESULTS / "h200_transpose.json").read_text())
    for name, times in by_hand["seconds"].items():
        rate = 8 * by_hand["size"] ** 2 / statistics.median(times) / 1e12
        assert f"{name:34} {rate:5.2f} TB/s" in printed
    rows = json.loads((RESULTS / "h200_memory_bound.json").read_text())["rows"]
    for name, rate in next(r for r in rows if r["name"] == "transpose float32")["tb_per_s"].items():
        assert f"{name:34} {rate:5.2f} TB/s" in printed


def test_padding_mends_the_loads_and_hurts_the_stores() -> None:
    """128 rows of 4 vectors are 16 requests of 4 wavefronts each way, if nothing conflicts."""
    names, printed = ran(_TUTORIALS[3])
    least = 16 * 4
    assert {mode: found[:4] for mode, found in names["counts"].items()} == {
        "none": (least, 0, 4 * least, 3 * least),
        "pad": (2 * least, least, least, 0),
        "xor": (least, 0, least, 0),
        "auto": (least, 0, least, 0),
    }
    assert [found[4] for found in names["counts"].values()] == [8192, 10240, 8192, 8192]
    assert names["down"] == (least, 0, least, 0, 10240)
    assert "pad                        128    64      64     0  10,240\n" in printed
    assert "lanes  0- 7:  0 16  0 16  0 16  0 16\n" in printed


def test_operand_quotes_the_committed_counters() -> None:
    _, printed = ran(_TUTORIALS[3])
    ncu = json.loads((RESULTS / "h200_gemm_counters.json").read_text())["ncu"]
    for stages in (1, 3):
        for mode in ("none", "pad", "auto"):
            row = ncu[f"float16 nt {mode} stages={stages}"]
            cells = "".join(f"{row[name]:10,.0f}" for name in ("st", "ldgsts", "ldsm"))
            assert f"{mode:8}{stages} stage(s)      {cells}" in printed


def test_pipelined_gemm_shows_what_its_text_says() -> None:
    """Charts, mistakes with buffer, version and iteration, quoted measurements, pictures."""
    names, printed = ran(_TUTORIALS[4])
    lines = printed.splitlines()
    assert "8,192 bytes of shared memory, 2.00 barriers an iteration" in lines
    for size in ("16,384", "24,576"):
        assert f"{size} bytes of shared memory, 1.00 barriers an iteration" in lines
    row = "copy A_reindex_shared.dyn (async)  0 v0  1 v1  2 v2  3 v0  4 v1  5 v2  .     ."
    assert lines.count(row) == 2
    assert "wait, barrier, 4 x copy, commit, 4 x ldmatrix, 8 x mma, 4 x ldmatrix, 8 x mma" in lines

    for kind in ("async", "race"):
        assert f"  {kind}: buffer A_reindex_shared.dyn, version 0, in k_0_0 = 0" in lines
    # The copy for iteration 3, in iteration 1, meets the reads of iteration 0.
    assert "  race: buffer A_reindex_shared.dyn, version 0, in k_0_0 = 1" in lines
    for found in ("late_found", "apart_found", "fewer_found"):
        buffers = {hazard.buffer for hazard in names[found]}
        assert {"A_reindex_shared.dyn", "B_reindex_shared.dyn"} <= buffers
    assert {h.version for h in names["late_found"] if h.kind == "async"} == {0, 1, 2}
    assert "num_stages=28 is the largest that fits." in printed

    for label, (name, config) in names["STEPS_MEASURED"].items():
        groups = json.loads((RESULTS / f"{name}.json").read_text())["groups"]
        rows = {r["config"].replace(" prefetch=0", ""): r for g in groups[:1] for r in g["rows"]}
        (line,) = (one for one in lines if one.startswith(f"{label:34} "))
        row = rows.get(config)
        if row is None:
            assert line.endswith(f"not measured: {name}.json has no row {config!r}")
            continue
        speed, library = row["tflops"], rows["cuBLAS"]["tflops"]
        assert line == f"{label:34} {speed:6.1f} TFLOPS, {speed / library:.2f} of cuBLAS"

    charts = sorted(files_of(_TUTORIALS[4]).iterdir())
    assert [one.stem for one in charts] == ["prefetch", "three_versions", "two_versions"]
    assert all(one.read_text().startswith("<svg") for one in charts)


def test_tuning_finds_the_padding_and_applies_what_it_found() -> None:
    names, printed = ran(_TUTORIALS[5])
    assert "8 of 8 trials came from the log" in printed
    assert names["result"].best.score <= names["result"].default.score
    # 32 rows of 32 floats: each of 32 column reads of a warp meets one bank 32 times, 31 too often.
    tiles = 128 // 32 * (128 // 32)
    own = {
        tuple(r.config.values()): r.conflict_model["bank_conflicts"] for r in names["own"].trials
    }
    assert own[32, 0] == tiles * 32 * 31
    assert own[32, 1] == 0
    # As the text says, more blocks win here.
    assert names["own"].best.config["tile"] == 16
    assert names["own"].best.conflict_model["blocks"] == 4 * tiles
    assert names["best"].applied[0].how == "recorded"
    assert "192x96 by the nearest shape: right" in printed
    assert f"right on {names['own'].best.workload}" in printed
    assert "counters: the same as recorded" in printed
    assert "2 workloads in " in printed
    report = (files_of(_TUTORIALS[5]) / "report.html").read_text()
    assert "cannot be explained" not in report
    assert report.startswith("<!DOCTYPE html>")


def test_a_second_layout_leaves_the_least_sectors() -> None:
    _, printed = ran(_TUTORIALS[6])
    assert "one layout:  24 blocks; 61,440 sectors (least 18,432)" in printed
    for label in ("two layouts:", "in the box: "):
        assert f"{label} 24 blocks; 18,432 sectors (least 18,432), 0 bank conflicts" in printed
    assert "through 8,192 bytes of shared memory" in printed
