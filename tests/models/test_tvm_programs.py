"""Programs as TVM's tests have them give the numbers of TVM's code for the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.relax.backend.cuda import pipeline as stock

from benchmarks.relax_numbers import error_of, tolerance_of
from tests.models.cpu import by_cpu
from tests.models.running import TARGET, array_of, check, fused, scheduled
from tests.models.tvm_programs import MODELS
from tvm_layout_ext.ir.walk import launches


@pytest.mark.matrix
@pytest.mark.parametrize("name", MODELS)
def test_numbers_are_those_of_the_cpu(name: str) -> None:
    mod = MODELS[name]()
    lowered = fused(mod)
    if not any(_launches(one) for one in lowered.functions.values()):
        _require_same(mod, lowered)
    for one in scheduled(lowered):
        assert one.choice.rule != "none"
        if not _launches(one.before):
            check(one)


def _launches(func: Any) -> bool:
    """Whether TVM wrote a function for GPUs alone."""
    return isinstance(func, tirx.PrimFunc) and launches(func.body)


def _require_same(mod: tvm.IRModule, lowered: tvm.IRModule) -> None:
    """Fail unless the operators as our passes have rewritten them compute the same."""
    rng = np.random.default_rng(0)
    arrays = [array_of(param.ty, rng) for param in mod["main"].params]
    rest = [*stock.dataflow_lower_passes(TARGET), *stock.finalize_passes(TARGET)]
    want = by_cpu(mod, arrays)
    found = by_cpu(lowered, arrays, tvm.transform.Sequential(rest))
    assert error_of(found, want) <= tolerance_of(arrays)
