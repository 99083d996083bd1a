from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from typer.testing import CliRunner

from tests.programs.swizzles import operand
from tvm_layout_ext.analysis.bank_conflict import Conflict
from tvm_layout_ext.build import device_program
from tvm_layout_ext.cli import app
from tvm_layout_ext.report.banks import bank_picture, bank_tables, read_conflicts
from tvm_layout_ext.report.explain import explain


def test_explain_prints_the_bank_of_each_lane() -> None:
    said = explain(operand("none"), target="cuda").text()
    # Eight lanes, rows 64 bytes apart: two starts of four banks, each four times.
    assert "load of S: 16 bytes a lane, 16 wavefronts a request (least 4)" in said
    assert "  lanes  0- 7:  0 16  0 16  0 16  0 16" in said
    found = explain(operand("xor"), target="cuda")
    assert "lanes" not in found.text(), "without conflicts there is nothing to see"
    swizzled = bank_tables(found.banks)
    assert "  lanes  0- 7:  0 16  4 20  8 24 12 28" in swizzled


def test_the_picture_has_a_row_for_each_wavefront() -> None:
    conflicts = read_conflicts(device_program(operand("none")))
    assert bank_tables(conflicts).count("store of S") == 1
    load = [one for one in conflicts if one.kind == "load"][:1]
    drawn = bank_picture(load)
    assert drawn.startswith("<svg")
    names = re.findall(r">(\d+-\d+|\+\d)<", drawn)
    assert names == [n for a in (0, 8, 16, 24) for n in (f"{a}-{a + 7}", "+1", "+2", "+3")]
    assert "bank 16: lane 1" in drawn


def test_phases_of_reads_that_join_are_one_row() -> None:
    """Neighbours read one address: two wavefronts, though a store takes four."""
    pairs = tuple(lane // 2 * 16 for lane in range(32))
    load = Conflict("S", "load", "", 16, 1, 2, 2, True, pairs)
    drawn = bank_picture([load])
    assert [row in drawn for row in (">0-15<", ">16-31<", ">0-7<")] == [True, True, False]
    assert ">24-31<" in bank_picture([replace(load, kind="store", wavefronts=4)])


def test_the_command_line_writes_the_picture(tmp_path: Path) -> None:
    program = tmp_path / "x.py"
    program.write_text("from tests.programs.swizzles import operand\nsch = operand('xor')\n")
    picture = tmp_path / "banks.svg"
    ran = CliRunner().invoke(app, ["explain", str(program), "--picture", str(picture)])
    assert ran.exit_code == 0, ran.output
    assert "bank conflicts in the blocks run: 0." in ran.output.lower()
    assert picture.read_text().startswith("<svg")
    refused = CliRunner().invoke(app, ["explain", str(program), "--picture", "banks.png"])
    assert refused.exit_code == 2
    assert "written to a .svg file, not to banks.png" in refused.output
