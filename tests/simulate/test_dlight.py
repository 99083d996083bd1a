"""Kernels that others scheduled: what they compute, clean, with Nsight Compute's counters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import te, topi

from benchmarks.foreign_counters import counted
from benchmarks.foreign_kernels import CASES, arrays, module, tensors
from tvm_layout_ext.errors import SimulationError
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.tune.measure.reference.reference import Reference

_PATH = Path(__file__).parents[2] / "benchmarks" / "results" / "h200_foreign_counters.json"
_COUNTED: dict[str, dict[str, int]] = json.loads(_PATH.read_text())["ncu"]
#: Sums kept in global memory, and operands of float16 in shared memory.
_OPEN = {"column_max", "row_max", "depthwise", "pool", "matmul_half", "gemv_half"}


@pytest.mark.parametrize("name", CASES)
def test_results_are_right_and_counters_are_nsights_or_its_are_inside(name: str) -> None:
    given = arrays(name)
    report = simulate(module(name), *given[:-1])
    assert report.hazards == []
    (got,) = report.outputs.values()
    wanted = Reference(te.create_prim_func(tensors(name)))(*given[:-1])
    # Products of halves are added up in halves, too.
    close = 2e-3 if got.dtype == np.float16 else 1e-6
    np.testing.assert_allclose(got.astype("float64"), wanted, atol=close * np.abs(wanted).max())
    is_open = False
    for kernel, counts in counted(report).items():
        for counter, (least, most) in counts.items():
            assert least <= _COUNTED[kernel][counter] <= most, (kernel, counter)
            is_open |= least < most
    assert is_open == (name in _OPEN)


def test_write_past_the_end_in_tvms_own_ragged_gemv_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ragged() -> list[Any]:
        x, weights = te.placeholder((1, 130), name="x"), te.placeholder((100, 130), name="W")
        return [x, weights, topi.nn.dense(x, weights)]

    # Lowering the cross-thread reduction drops the guard of the final store: 7 x 16 rows of 100.
    monkeypatch.setitem(CASES, "ragged", ragged)
    with pytest.raises(SimulationError, match="index 100 of T_matmul_NT"):
        simulate(module("ragged"), *arrays("ragged"))
