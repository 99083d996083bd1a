"""Suites of benchmarks: results become rows beside peers, and the command says what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import suites
from tests.cli.test_cli import invoke


def test_the_limit_and_the_fastest_peer_are_found() -> None:
    seconds = {
        "ours": 2e-6,
        "torch eager": 9e-6,
        "triton": 3e-6,
        "limit: a": 1.5e-6,
        "limit: b": 1e-6,
    }
    (row,) = suites.SUITES["memory"].read([{"name": "copy", "seconds": seconds}])
    assert row.us == pytest.approx({"ours": 2.0, "torch": 9.0, "Triton": 3.0})
    assert (row.ratio, row.share) == (pytest.approx(1.5), pytest.approx(0.5))
    heads, cells = suites.table([row])
    assert heads == ["us", "ours", "torch", "Triton", "best peer / ours", "of the limit"]
    assert cells == ["copy", "2.0", "9.0", "3.0", "1.50", "50%"]


def test_of_two_kernels_of_torch_the_faster_counts_and_tflops_are_times() -> None:
    attention = {"shape": [1, 2, 3], "dtype": "float16", "causal": True,
                 "us": {"ours": 4.0, "cudnn": 3.0, "flash": 8.0, "ours keys=2": 1.0},
                 "tflops": {"ours": 100.0}}  # fmt: skip
    (row,) = suites.SUITES["attention"].read([attention])
    assert (row.name, row.us) == ("1x2x3 float16, causal", {"ours": 4.0, "torch": 3.0})
    product = {"shape": [1000, 1000, 1000], "layout": "nt", "dtype": "float16", "more": {},
               "ours": 500.0, "cublas": 250.0}  # fmt: skip
    (row,) = suites.SUITES["gemm"].read([product, product | {"more": {"split_k": 2}}])
    assert row.us == pytest.approx({"ours": 4.0, "torch": 8.0})
    now = {name: value for name, value in product.items() if name != "more"} | {"triton": 200.0}
    failed = {name: product[name] for name in ("shape", "layout", "dtype")} | {"error": "late"}
    rows = [
        one | {"default": is_first} for one, is_first in ((now, True), (now, False), (failed, True))
    ]
    (row,) = suites.SUITES["gemm"].read(rows)
    assert row.us == pytest.approx({"ours": 4.0, "torch": 8.0, "Triton": 10.0})


def test_of_convolutions_the_default_is_ours() -> None:
    us = {"cudnn": 20.0, "ours 128x64": 10.0, "ours 64x64": 5.0}
    row = {"case": [56, 64, 64, 1, 1], "us": us, "tflops": {"ours 128x64": 91.9}}
    (read, model) = suites.SUITES["conv"].read(
        [row, {"model": "ResNet", "sums": {"ours": 1.0}}, {"model": "ViT", "sums": {"ours": 1.0}}]
    )
    assert (read.name, read.us) == ("56x64x64x1x1", {"ours": 10.0, "torch": 20.0})
    assert read.share == pytest.approx(0.1, rel=0.01)
    assert model.name == "ResNet"


@pytest.mark.parametrize("name", suites.SUITES)
def test_committed_results_are_read(name: str) -> None:
    suite = suites.SUITES[name]
    rows = suites.read(suite, suites.RESULTS / suite.file)
    assert len(rows) > 1
    assert all(row.us["ours"] > 0 and row.ratio for row in rows)
    assert (Path(suites.__file__).parent / f"{suite.command[0]}.py").exists()


def test_without_a_gpu_a_sentence_says_whose_figures_these_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(suites, "has_gpu", lambda: False)
    suites.main("conv", plot=tmp_path / "conv.png")
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "No CUDA GPU on this machine: these are committed results, h200_models.json."
    assert told[-1] == f"Wrote {tmp_path / 'conv.png'}."
    assert (tmp_path / "conv.png").read_bytes().startswith(b"\x89PNG")


def test_with_a_gpu_the_script_runs_and_its_failure_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], **_: Any) -> Any:
        ran.append(command)
        return type("Done", (), {"returncode": 3})

    monkeypatch.setattr(suites, "has_gpu", lambda: True)
    monkeypatch.setattr("subprocess.run", run)
    with pytest.raises(suites.typer.Exit):
        suites.main("norm")
    assert ran[0][1:4] == ["-m", "benchmarks.rows", "--out"]
    assert capsys.readouterr().err == "Error: benchmarks/rows.py ended with 3.\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "Give either a log, whose winners are run again, or --suite NAME."),
        (["log", "--suite", "gemm"], "Give either a log, whose winners are run again, or --suite"),
        (["--suite", "gemm", "--plot", "x.jpg"], "A plot is a .png file in a folder that is there"),
    ],
)
def test_wrong_words_are_a_sentence(words: list[str], told: str) -> None:
    ran = invoke("bench", *words)
    assert ran.code == 2
    assert ran.err.startswith(f"Error: {told}")
