"""``demo`` finds what it plants, and its tuner mends what it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

from tvm_layout_ext.cli import app


def test_the_demo_shows_what_is_wrong_and_mends_it(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["demo", "--log", str(tmp_path)])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    row = {
        line.split("  ")[0]: [int(n) for n in re.findall(r"\b\d+\b", line)][-3:] for line in lines
    }
    assert row["plain tile"] == [31, 32, 0]
    assert row["its barrier removed"][:2] == [31, 32]
    assert row["its barrier removed"][2] > 0
    assert row["rows swizzled"] == [0, 1, 0]
    assert "The race: thread" in done.output
    assert re.search(r"^ +\d+  A_shared\[.*\] = A\[", done.output, re.MULTILINE)
    assert re.search(r"The best is pad=1 ", done.output.replace("\n", " "))
    assert "bank conflicts 1,015,808 to 0" in done.output.replace("\n", " ")
    page = re.search(r"file://(\S+)", done.output)
    assert page is not None
    assert Path(page[1]).stat().st_size > 10_000
    assert any(line.startswith("Next: ") for line in lines)
    program, *words = shlex.split(lines[-1])
    small = [*words[: words.index("--shape")], "--shape", "8", "64", "--trials", "1"]
    told = CliRunner().invoke(app, [*small, "--runner", "simulate", "--log", str(tmp_path / "own")])
    assert (program, told.exit_code) == ("tvm-layout", 0), told.output
    assert [line for line in lines if len(line.rstrip()) > 80 and "file://" not in line] == []
