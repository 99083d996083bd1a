"""``lint`` and ``assert_kernel``: what is broken is told with name, line and numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tvm import s_tir
from typer.testing import CliRunner

import tvm_layout_ext as tlx
from tests.report.test_advice import doubled, turned
from tests.report.test_explain import make_transpose
from tvm_layout_ext.cli import app
from tvm_layout_ext.report.lint import Rules, lint


def scattered() -> s_tir.Schedule:
    """Each lane walks along a row of its own."""
    sch = doubled(256)
    i, _ = sch.get_loops("B")
    block, lane = sch.split(i, [None, 32])
    sch.bind(block, "blockIdx.x")
    sch.bind(lane, "threadIdx.x")
    return sch


def test_a_kernel_that_keeps_the_rules_passes() -> None:
    tlx.assert_kernel(*make_transpose(1))
    sch = doubled(256)
    sch.auto_coalesce("B")
    tlx.assert_kernel(sch, min_vector_bytes=16, max_sectors_ratio=1.05)


def test_conflicts_are_told_with_buffer_block_line_and_numbers() -> None:
    with pytest.raises(AssertionError) as caught:
        tlx.assert_kernel(*make_transpose(0))
    first, told, code, *listing = str(caught.value).split("\n")
    assert first == "The kernel breaks these rules, in the 4 of 4 blocks that were run."
    assert told == (
        "bank_conflicts: line 19: load of A_shared in block B takes 4,096 wavefronts where 128 "
        "would do; the kernel has 3,968 bank conflicts, and 0 may be"
    )
    assert "A_shared[" in code
    (counted,) = (line for line in listing if line.strip().startswith("19 "))
    assert "4,096 (128)" in counted
    assert counted.endswith(code.strip())
    tlx.assert_kernel(*make_transpose(0), bank_conflicts=3968)
    with pytest.raises(AssertionError):
        tlx.assert_kernel(*make_transpose(0), bank_conflicts=3967)
    tlx.assert_kernel(*make_transpose(0), bank_conflicts=None)


def test_narrow_accesses_are_told_where_their_tensors_allow_more() -> None:
    (load, store) = lint(*make_transpose(1), rules=Rules(min_vector_bytes=8))
    assert (load.buffer, load.block, load.line, load.count, load.limit) == (
        "A",
        "A_shared",
        16,
        4,
        8,
    )
    assert (store.buffer, store.rule) == ("B", "min_vector_bytes")
    assert "its tensor allows 16, and at least 8 are asked for" in load.message
    assert lint(*make_transpose(1), rules=Rules(min_vector_bytes=4)) == []


def test_scattered_accesses_are_told_by_their_sectors() -> None:
    rules = Rules(max_sectors_ratio=1.05)
    assert {one.buffer: one.count for one in lint(scattered(), rules=rules)} == {"A": 16, "B": 16}
    with pytest.raises(AssertionError, match=r"16 times as many; at most 1\.05 times may be"):
        tlx.assert_kernel(scattered(), max_sectors_ratio=1.05)
    tlx.assert_kernel(scattered(), max_sectors_ratio=16)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"bank_conflicts": -1}, "bank_conflicts"),
        ({"hazards": 0.5}, "hazards"),
        ({"min_vector_bytes": 3}, "min_vector_bytes is 1, 2, 4, 8 or 16, not 3"),
        ({"max_sectors_ratio": 0.9}, "max_sectors_ratio is a number from 1, not 0.9"),
        ({"max_sectors_ratio": float("nan")}, "max_sectors_ratio is a number from 1, not nan"),
    ],
)
def test_a_rule_without_sense_is_refused(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(tlx.ScheduleError, match=message):
        tlx.assert_kernel(scattered(), **rule)


_BAD = """from tests.report.test_lint import scattered
from tests.report.test_advice import doubled
sch = scattered()
fine = doubled(256)
fine.auto_coalesce("B")
"""


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["lint", *words])


@pytest.fixture
def bad(tmp_path: Path) -> str:
    (tmp_path / "kernels.py").write_text(_BAD)
    return str(tmp_path / "kernels.py")


def test_all_kernels_of_a_file_are_held_to_the_rules(bad: str) -> None:
    done = run(bad)
    assert done.exit_code == 1
    assert "sch: max_sectors_ratio: line" in done.output
    assert "fine: no findings" in done.output
    assert run(bad, "--name", "fine").exit_code == 0
    assert run(bad, "--max-sectors-ratio", "16", "--min-vector-bytes", "1").exit_code == 0


def test_findings_as_json(bad: str) -> None:
    read = json.loads(run(bad, "--json").output)
    assert read["fine"] == []
    assert [one["rule"] for one in read["sch"]].count("max_sectors_ratio") == 2
    assert {"buffer", "block", "line", "code", "count", "limit", "message"} <= set(read["sch"][0])


def test_findings_as_annotations_name_the_line_of_the_block(bad: str) -> None:
    lines = run(bad, "--format", "github").output.splitlines()
    assert all(line.startswith(f"::warning file={bad},line=5,title=") for line in lines)
    assert len(lines) == 4


def test_a_module_is_found_by_its_name(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(bad).parent))
    assert run("kernels", "--name", "fine").exit_code == 0
    done = run("no.such.module")
    assert done.exit_code == 2
    assert "There is no file no.such.module, and no module of that name." in done.output


def test_hazards_are_told(tmp_path: Path) -> None:
    s, args = turned()
    text = s.to_module(args).script().replace("B[v_j, v_i] =", "B[v_j // 2, v_i] =")
    (tmp_path / "race.py").write_text(text)
    done = run(str(tmp_path / "race.py"), "--bank-conflicts", "99999", "--min-vector-bytes", "4")
    assert done.exit_code == 1
    assert "race: hazards: line" in done.output
    told = run(str(tmp_path / "race.py"), "--format", "github").output
    assert f"::error file={tmp_path / 'race.py'},line=" in told
