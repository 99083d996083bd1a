"""The tutorial runs, and its pages are there."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[2] / "tutorials" / "03_layouts.py"


def test_tutorial_of_layouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(TUTORIAL), str(tmp_path)])

    runpy.run_path(str(TUTORIAL))

    told = capsys.readouterr().out
    assert "accumulator to operand A: none" in told
    assert "conflicts of the writes and reads: (0, 0)" in told
    assert len(list(tmp_path.glob("*.html"))) == 7
