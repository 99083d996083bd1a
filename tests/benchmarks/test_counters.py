"""The simulated GPU counts what Nsight Compute counted on an H200."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.counters import METRICS, simulated
from benchmarks.kernels import KERNELS
from tvm_layout_ext.gpu.counts import count_shared

_RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
_NCU = json.loads((_RESULTS / "h200_counters.json").read_text())["ncu"]
_PATTERNS: list[dict[str, Any]] = json.loads((_RESULTS / "h200_wavefronts.json").read_text())[
    "cases"
]


def test_every_kernel_was_profiled() -> None:
    assert set(_NCU) == set(KERNELS)


@pytest.mark.parametrize("name", KERNELS)
def test_kernel_counters_are_nsights(name: str) -> None:
    assert simulated(name) == {counter: _NCU[name][counter] for counter in METRICS}


def _is_unknown(case: dict[str, Any]) -> bool:
    """Reads of 16 bytes by part of a warp, of addresses that several threads share."""
    active = [offset for offset in case["offsets"] if offset >= 0]
    partial, shared = len(active) < 32, len(set(active)) < len(active)
    return case["width"] == 16 and not case["store"] and partial and shared


def _wavefronts(case: dict[str, Any]) -> int:
    offsets = np.array([case["offsets"]])
    active = offsets >= 0
    count = count_shared(np.maximum(offsets, 0), active, case["width"], store=case["store"])
    return count.wavefronts


def test_wavefronts_of_single_requests_are_nsights() -> None:
    known = [case for case in _PATTERNS if not _is_unknown(case)]
    wrong = [case for case in known if _wavefronts(case) != case["wavefronts"]]
    assert len(known) > 900
    assert not wrong


def test_where_the_rule_is_not_known_it_is_off_by_little() -> None:
    unknown = [case for case in _PATTERNS if _is_unknown(case)]
    errors = Counter(abs(_wavefronts(case) - case["wavefronts"]) for case in unknown)
    assert max(errors, default=0) <= 2
