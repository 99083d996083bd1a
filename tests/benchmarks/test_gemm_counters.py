"""Shared wavefronts of the GEMM on the simulated GPU are those that an H200 counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import gemm
from benchmarks.gemm_counters import differing, simulate_case, table
from tvm_layout_ext.gpu.counts import count_copies, count_shared

_RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
_NCU = json.loads((_RESULTS / "h200_gemm_counters.json").read_text())["ncu"]
_COPIES: list[dict[str, Any]] = json.loads((_RESULTS / "h200_copy_patterns.json").read_text())[
    "cases"
]
EVERY = np.ones((1, 32), bool)


@pytest.mark.parametrize("case", _COPIES, ids=lambda case: case["case"])
def test_wavefronts_of_asynchronous_copies_are_nsights(case: dict[str, Any]) -> None:
    total = 0
    for request in case["requests"]:
        pair = (np.array([request[side]]) for side in ("global", "shared"))
        total += request["requests"] * count_copies(*pair, EVERY).wavefronts
    assert total == case["wavefronts"]


def test_as_stores_they_would_be_too_few() -> None:
    """The measured cases tell the rule of copies from that of stores."""
    wrong = set()
    for case in _COPIES:
        stored = sum(
            request["requests"]
            * count_shared(np.array([request["shared"]]), EVERY, 16, store=True).wavefronts
            for request in case["requests"]
        )
        if stored != case["wavefronts"]:
            wrong.add(case["case"])
    assert len(wrong) == 7


@pytest.mark.matrix
@pytest.mark.parametrize(
    "name",
    [
        "float16 nt auto stages=1",
        "float16 nn auto stages=3",
        "float16 nn none stages=3",
        "int8 nt auto stages=3",
        "int8 nn auto stages=3",
    ],
)
def test_each_operation_counts_what_nsight_does(name: str) -> None:
    """Results leave by stores of 16 bytes beside the copies: each is counted as what it is."""
    _, counted = simulate_case(name)
    operations = ("ld", "st", "ldsm", "stsm", "ldgsts")
    assert {o: counted.get(o, 0) for o in operations} == {o: _NCU[name][o] for o in operations}


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "degree"),
    [
        ("float16 nt auto stages=3", 1),
        ("float16 nt auto stages=3 tile_k=32", 2),
        ("bfloat16 nt auto stages=3 tile_k=32", 2),
        ("float32 nt auto stages=3", 1),
        ("float32 nt auto stages=3 tile_k=16", 2),
        ("int8 nt auto stages=3", 2),
        ("int8 nt auto stages=3 tile_k=128", 1),
        ("float8_e4m3fn nt auto stages=3 tile_k=128", 1),
    ],
)
def test_swizzled_copies_take_a_wavefront_for_each_row_of_64_bytes_or_128(
    name: str, degree: int
) -> None:
    _, counted = simulate_case(name)
    assert counted["ldgsts"] == degree * counted["ldgsts least"] > 0
    for operation in ("ld", "st", "ldsm"):
        assert counted[operation] == counted[f"{operation} least"] > 0
    assert counted["conflicts"] == counted["hazards"] == 0


def test_the_table_says_of_each_operation_what_counted_simulated_and_conflict_free_are() -> None:
    simulated = {"float16 nt none stages=3": {"ld": 5, "ld least": 5, "ldsm": 64, "ldsm least": 8}}
    ncu = {"float16 nt none stages=3": {"ld": 6.0, "ldsm": 64.0, "stsm": 0.0}}
    head, *lines, last = table(simulated, ncu).splitlines()
    assert head.split() == ["case", "operation", "counted", "simulated", "conflict-free", "equal"]
    assert [line.split()[-5:] for line in lines] == [
        ["ld", "6", "5", "5", "NO"],
        ["ldsm", "64", "64", "8", "yes"],
    ]
    assert last == "1 of 2 counts are equal"
    assert differing(simulated, ncu) == [("float16 nt none stages=3", "ld")]
    unknown = table(simulated, {}).splitlines()
    assert unknown[1].split()[-4:] == ["ld", "-", "5", "5"]
    assert len(unknown) == 3


def test_what_was_counted_stays_when_only_the_simulator_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "counters.json"
    held = {"environment": {"gpu": "G"}, "simulated": {"a": {}}, "ncu": {"b": {}}}
    out.write_text(json.dumps(held))
    monkeypatch.setattr(gemm.gemm_counters, "simulate_all", lambda *_: {"c": {}})
    ran = CliRunner().invoke(gemm.app, ["simulate", "--out", str(out)])
    assert ran.exit_code == 0, ran.output
    assert json.loads(out.read_text()) == held | {"simulated": {"a": {}, "c": {}}}
