"""The timed mappings are those of today, and by itself ``auto_coalesce`` takes the faster ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.one_block import CASES, Case
from tvm_layout_ext.target import cuda_target

_RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "h200_one_block.json"
_ROWS: list[dict[str, Any]] = json.loads(_RESULT.read_text())["rows"]


def tile(text: str) -> list[str]:
    """Tile and threads."""
    return text.split(", ")[:2]


def test_every_case_has_a_row() -> None:
    assert [row["case"] for row in _ROWS] == [case.name for case in CASES]


@pytest.mark.matrix
@pytest.mark.parametrize(("case", "row"), list(zip(CASES, _ROWS, strict=True)))
def test_auto_takes_what_was_faster(case: Case, row: dict[str, Any]) -> None:
    target = cuda_target("sm_90a")
    for name, whole in (("one_block", True), ("tiles", False)):
        assert tile(case.mapped(target, whole=whole)[1]) == tile(row[name])
    faster = "one_block" if row["one_block_us"] < row["tiles_us"] else "tiles"
    _, auto = replace(case, threads=None).mapped(target, whole=False)
    assert tile(auto) == tile(row[faster])
