"""Shared wavefronts of the GEMM on the simulated GPU are those that an H200 counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gemm_counters import simulate_case
from tvm_layout_ext.simulate.counters import count_copies, count_shared

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
