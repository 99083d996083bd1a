"""explain_pipeline: the chart says what the emitted program does."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import tvm
from tvm import s_tir
from typer.testing import CliRunner

import tvm_layout_ext as tlx
from tests.programs.pipelined import Stream
from tvm_layout_ext.cli import app


def test_chart_of_two_depths() -> None:
    """A1 is copied 3 bodies ahead, A0 one; each is read from the version it was copied to."""
    (chart,) = tlx.explain_pipeline(Stream(2).schedule((2, 4))).charts
    rows = dict(chart.rows())
    assert list(chart.bodies)[:5] == [-3, -2, -1, 0, 1]
    assert rows["copy A1_shared (async)"][:5] == ["0 v0", "1 v1", "2 v2", "3 v3", "4 v0"]
    assert rows["copy A0_shared (async)"][:5] == ["", "", "0 v0", "1 v1", "2 v0"]
    assert rows["sum"][:6] == ["", "", "", "0 v0", "1 v1", "2 v0,v2"]
    assert rows["barrier"][:4] == ["", "", "", "x"]
    assert rows["groups under way"][3:5] == ["<=0", "<=0"]
    assert [(b.name, b.versions, b.bytes) for b in chart.record.buffers] == [
        ("A0_shared", 2, 1024),
        ("A1_shared", 4, 2048),
    ]
    assert chart.record.shared_bytes == 3072


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_wait_and_bytes_are_those_of_the_emitted_program(stages: int) -> None:
    stream = Stream(2)
    (chart,) = tlx.explain_pipeline(stream.schedule(stages)).charts
    text = tlx.lower(stream.schedule(stages)).script()
    assert f'T.ptx.cp({chart.record.wait}, "async", "wait_group", "")' in text
    (kernel,) = tlx.device_program(stream.schedule(stages)).kernels.values()
    assert chart.record.shared_bytes == sum(tlx.shared_buffers(kernel).values())
    assert chart.record.depth == text[: text.index("for k in")].count("commit_group")


def test_copies_through_registers_say_why() -> None:
    """Vectors of 2 bytes: the pass that makes copies asynchronous has the last word."""
    source = Stream(1, dtype="float16").source().replace("T.vectorized(4)", "T.unroll(4)")
    sch = s_tir.Schedule(tvm.script.from_source(source))
    sch.double_buffer("A0_shared", 2)
    found = tlx.explain_pipeline(sch).text()
    assert "copy A0_shared (registers)" in found
    assert "A0_shared is copied through registers: a thread copies 2 bytes at a time" in found


def test_short_loops_are_shown_whole() -> None:
    source = Stream(1).source().replace("range(n)", "range(4)")
    sch = s_tir.Schedule(tvm.script.from_source(source))
    sch.double_buffer("A0_shared", 2)
    (chart,) = tlx.explain_pipeline(sch).charts
    assert list(chart.bodies) == [-1, 0, 1, 2, 3]
    assert dict(chart.rows())["copy A0_shared (async)"] == ["0 v0", "1 v1", "2 v0", "3 v1", ""]
    assert "..." not in str(chart)


def test_programs_without_versions() -> None:
    found = tlx.explain_pipeline(Stream(1).schedule(1))
    assert found.charts == []
    assert str(found) == "No loop keeps several versions of a buffer."


def test_svg_has_a_box_for_each_step_of_each_body() -> None:
    found = tlx.explain_pipeline(Stream(2).schedule((2, 4)))
    (chart,) = found.charts
    root = ET.fromstring(found.svg())
    texts = [node.text for node in root.iter() if node.tag.endswith("}text")]
    cells = [cell for _, row in chart.rows() for cell in row if cell]
    assert [text for text in texts if text in cells] == cells
    boxes = [node for node in root.iter() if node.tag.endswith("}g")]
    assert len(boxes) == len(cells)
    for node in root.iter():
        if node.tag.endswith("}rect"):
            right = float(node.get("x", "0")) + float(node.get("width", "0"))
            assert right <= float(root.get("width", "0"))


def test_command_line(tmp_path: Path) -> None:
    file, picture = tmp_path / "kernel.py", tmp_path / "chart.svg"
    file.write_text("from tests.programs.pipelined import Stream\nsch = Stream(1).schedule(3)\n")
    ran = CliRunner().invoke(app, ["explain", str(file), "--pipeline", "-o", str(picture)])
    assert ran.exit_code == 0, ran.output
    assert "Loop k, n iterations, 2 before the first that computes" in ran.stdout
    assert ET.parse(picture).getroot().tag.endswith("svg")
    wrong = CliRunner().invoke(app, ["explain", str(file), "--pipeline", "-o", "chart.png"])
    assert wrong.exit_code == 2
    assert "A chart is written to a .svg file, not to chart.png." in wrong.output
    alone = CliRunner().invoke(app, ["explain", str(file), "-o", str(picture)])
    assert alone.exit_code == 2
