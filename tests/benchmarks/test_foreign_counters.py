"""Kernels that others scheduled: Nsight Compute's counters are what is simulated, or inside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.foreign_counters import simulated
from benchmarks.foreign_kernels import CASES

_PATH = Path(__file__).parents[2] / "benchmarks" / "results" / "h200_foreign_counters.json"
_COUNTED: dict[str, dict[str, int]] = json.loads(_PATH.read_text())["ncu"]
#: Sums kept in global memory, and operands of float16 in shared memory.
_OPEN = {"column_max", "row_max", "depthwise", "pool", "matmul_half", "gemv_half"}


@pytest.mark.parametrize("name", CASES)
def test_counters_are_nsights_or_its_are_inside(name: str) -> None:
    is_open = False
    for kernel, counts in simulated(name).items():
        for counter, (least, most) in counts.items():
            assert least <= _COUNTED[kernel][counter] <= most, (kernel, counter)
            is_open |= least < most
    assert is_open == (name in _OPEN)
