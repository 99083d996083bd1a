"""What reductions of :mod:`benchmarks.thread_programs` give, by NumPy, and a run held to it."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.thread_programs import Program
from tvm_layout_ext.simulate import Report, simulate


def values(program: Program) -> list[np.ndarray]:
    """Whole numbers of few values, which sums of any order have exactly."""
    rng = np.random.default_rng(0)
    return [rng.integers(-4, 5, shape).astype(dtype) for shape, dtype in program.inputs()]


def expected(program: Program, a: np.ndarray) -> list[np.ndarray]:
    """Results, in the shapes and types of the program's; of equal maxima the first."""
    if program.kind == "argmax":
        found = [a.argmax(program.axes[0]), a.max(program.axes[0])]
    elif program.kind == "max":
        found = [a.max(program.axes)]
    else:
        found = [a.astype("float64").sum(program.axes)]
    kinds = program.results()
    return [
        one.reshape(shape).astype(dtype) for one, (shape, dtype) in zip(found, kinds, strict=True)
    ]


def gives_numpys(program: Program, sch: Any) -> Report:
    """Simulate a schedule of a program: its results are NumPy's, and there is no hazard."""
    inputs, results = values(program), len(program.results())
    report = simulate(sch, *inputs, *[None] * results, progress=False)
    found = list(report.outputs.values())[-results:]
    for got, want in zip(found, expected(program, *inputs), strict=True):
        np.testing.assert_array_equal(got, want, program.name)
    assert not report.hazards, program.name
    return report
