"""Run what a TE-style schedule gives: on the CPU, or with its barriers on the simulated GPU.

On the CPU thread loops run one after another. Blocks carry their own, so that checks what a
schedule computes, without barriers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from tvm_layout_ext.simulate import simulate

#: Programs run once: TVM's compiler for the CPU need not optimise them, which takes the longest.
#: What makes machine code of them knows of no level; it need not choose instructions well either.
CPU = Target({"kind": "llvm", "opt-level": 0, "cl-opt": ["-fast-isel:bool=true"]})


def ints(*shape: int) -> np.ndarray:
    """Small integers, whose sums are exact in float32."""
    return np.random.default_rng(0).integers(-4, 5, shape).astype("float32")


def _serial(loop: Any) -> Any:
    if loop.kind != tirx.ForKind.THREAD_BINDING:
        return loop
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)


def run_on_host(
    mod: tvm.IRModule, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Outputs of ``main``; ``outputs`` give their shapes and types."""
    func = mod["main"]
    body = tvm_ffi.structural_map(func.body, [(tirx.For, _serial)], order="post")
    compiled = tvm.compile(func.with_body(body), target=CPU)
    tensors = [tvm.runtime.tensor(array) for array in inputs]
    # Garbage that no test expects: an element nobody writes must not look right by chance.
    results = [tvm.runtime.tensor(np.full_like(array, 77)) for array in outputs]
    compiled(*tensors, *results)
    return [result.numpy() for result in results]


def assert_computes(
    schedule: Any, args: Sequence[Any], inputs: Sequence[np.ndarray], *expected: np.ndarray
) -> None:
    """The schedule's results equal ``expected`` bit for bit."""
    got = run_on_host(schedule.to_module(args), inputs, expected)
    for result, wanted in zip(got, expected, strict=True):
        np.testing.assert_array_equal(result, wanted)


def assert_simulates(schedule: Any, args: Sequence[Any], given: np.ndarray, want: Any) -> None:
    """The one output on the simulated GPU equals ``want`` bit for bit, without a hazard."""
    report = simulate(schedule.to_module(args), given, progress=False)
    (got,) = report.outputs.values()
    np.testing.assert_array_equal(got, want)
    assert report.hazards == []
