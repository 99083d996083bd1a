"""What reductions of :mod:`benchmarks.thread_programs` give, by NumPy."""

from __future__ import annotations

import numpy as np

from benchmarks.thread_programs import Program


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
