"""Run a scheduled TensorIR module on the CPU, its thread loops one after another.

Blocks carry their own thread loops, so this checks what a schedule computes, without barriers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx


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
    compiled = tvm.compile(func.with_body(body), target="llvm")
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
