"""The tutorials run, with their own assertions, and are written as the gallery expects."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import pytest

_TUTORIALS = sorted((Path(__file__).parents[2] / "tutorials").glob("0[12]_*.py"))


def test_both_classic_questions_are_there() -> None:
    assert [path.name[:2] for path in _TUTORIALS] == ["01", "02"]


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
