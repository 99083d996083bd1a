"""The measuring protocol, with counted calls instead of times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm

from tests.tune.artifacts import Shelf, doubling_task
from tvm_layout_ext.tune.measure.backend import ReportedError, called_later, quartile_distance
from tvm_layout_ext.tune.measure.builder.builder import LIBRARY
from tvm_layout_ext.tune.measure.protocol import (
    FRESH,
    MOST_COPIES,
    TRIALS,
    Arguments,
    Inputs,
    Timing,
    failed,
    measure,
    timed,
)
from tvm_layout_ext.tune.measure.reference.problem import Problem, WrongResultError
from tvm_layout_ext.tune.measure.reference.reference import Expected
from tvm_layout_ext.tune.space.operator import Tolerance
from tvm_layout_ext.tune.space.task import make_task


class Clock:
    """Stands for a kernel's timer: gives the seconds it was told to, and notes what was asked."""

    def __init__(self, *seconds: float) -> None:
        self.seconds, self.asked = seconds, list[tuple[int, int]]()
        self._next = self._all()

    def _all(self) -> Iterator[float]:
        while True:
            yield from self.seconds

    def __call__(self, launches: int, repeats: int) -> list[float]:
        self.asked.append((launches, repeats))
        return [next(self._next) for _ in range(repeats)]


LATE = (1e-3, *[1e-4] * 50)


@pytest.mark.parametrize(
    ("seconds", "copies", "timing", "best", "asked", "times", "stopped"),
    [
        ((1e-4,), 2, Timing(repeats=5), None, [(1, 1), (25, 5)], [1e-4] * 5, False),
        ((1.0, 2.0), 1, Timing(repeats=5, most_repeats=12), None,
         [(1, 1), (1, 5), (1, 5), (1, 2)], [2.0, 1.0] * 6, False),
        ((1e-3,), 1, Timing(), 1e-3 / 3.1, [(1, 1), (5, 1)], [1e-3], True),
        ((1e-3,), 1, Timing(), 1e-3 / 2.9, [(1, 1), (5, 5)], [1e-3] * 5, False),
        (LATE, 1, Timing(), 1e-4, [(1, 1), (5, 1), (5, 5)], [1e-4] * 5, False),
    ],
    ids=["as long as asked for", "unsteady", "hopeless", "within the factor", "one late launch"],
)  # fmt: skip
def test_repeats_until_the_quartiles_are_close_or_it_is_hopeless(
    seconds: tuple[float, ...], copies: int, timing: Timing, best: float | None,
    asked: list[tuple[int, int]], times: list[float], stopped: bool,
) -> None:  # fmt: skip
    clock = Clock(*seconds)
    assert timed(clock, copies, timing, best) == (times, stopped)
    assert clock.asked == asked


@pytest.mark.parametrize(
    ("times", "distance"), [([1.0], None), ([1.0, 1.0, 1.0], 0.0), ([1.0, 2.0, 3.0], 1.0)]
)
def test_spread_is_that_of_the_quartiles(times: list[float], distance: float | None) -> None:
    assert quartile_distance(times) == distance


_ILLEGAL = "CUDA: an illegal memory access"


@pytest.mark.parametrize(
    ("error", "name", "text"),
    [
        (RuntimeError(f"{_ILLEGAL}\nat x"), "DeviceError", _ILLEGAL),
        (ReportedError(f"RuntimeError: {_ILLEGAL}"), "DeviceError", _ILLEGAL),
        (RuntimeError("CUDA: out of memory"), "OutOfMemoryError", "CUDA: out of memory"),
        (WrongResultError("3 of 4 differ."), "WrongResultError", "3 of 4 differ."),
        (KeyError(), "KeyError", "no text"),
    ],
)
def test_failure_is_one_line(error: Exception, name: str, text: str) -> None:
    measured = failed(error)
    assert measured.error == f"{name}: {text}"
    assert measured.verified is (False if name == "WrongResultError" else None)
    assert measured.times == []


def test_each_copy_of_the_arguments_gets_its_launch(tmp_path: Path) -> None:
    shelf, problem = Shelf(tmp_path), Problem.draw(doubling_task(), 0)
    library = tvm.runtime.load_module(f"{shelf.artifact('right')}/{LIBRARY}")
    timing = Timing(repeat_ms=0.01, l2_bytes=20_000)
    arguments = Arguments(problem, tvm.cpu(), timing)
    assert problem.bytes == 8192
    assert not np.array_equal(problem.inputs[0], Problem.draw(doubling_task(), 1).inputs[0])
    assert len(arguments.copies) == 5
    measured = measure(library, arguments, problem, timing, None)
    assert measured.l2 == "rotated"
    assert measured.verified
    for copy in arguments.copies:
        problem.require_close(copy[-1].numpy())
    arguments.poison()
    assert all(np.isnan(copy[-1].numpy()).all() for copy in arguments.copies)
    library["rotated"](*arguments.flat)
    for copy in arguments.copies:
        problem.require_close(copy[-1].numpy())


@pytest.mark.parametrize("l2_bytes", [None, 0, 8192 * MOST_COPIES])
def test_arguments_that_stay_in_the_cache_say_so(l2_bytes: int | None) -> None:
    arguments = Arguments(Problem.draw(doubling_task(), 0), tvm.cpu(), Timing(l2_bytes=l2_bytes))
    assert (len(arguments.copies), arguments.l2) == (1, "warm")


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "bfloat16", "float8_e4m3fn"])
def test_problem_survives_its_files(tmp_path: Path, dtype: str) -> None:
    assert ml_dtypes.bfloat16 is not None
    want = np.arange(6).reshape(2, 3).astype(dtype)
    problem = Problem(
        (want.T.copy(), want), Expected(want, np.array([1])), dtype, Tolerance(0.1, 0.2)
    )
    problem.save(tmp_path)
    again = Problem.load(tmp_path)
    assert [a.dtype for a in again.inputs] == [want.dtype, want.dtype]
    assert all(map(np.array_equal, again.inputs, problem.inputs))
    assert np.array_equal(again.want.values, want)
    assert again.want.rows is not None
    assert again.want.rows.tolist() == [1]
    assert (again.output_dtype, again.tolerance) == (dtype, Tolerance(0.1, 0.2))


def test_inputs_of_a_task_to_come_are_drawn_once_and_outlive_the_task_before() -> None:
    first, later = (make_task("transpose", (n, 32), "float32") for n in (32, 64))
    inputs, drawn = Inputs(first), list[tuple[Any, ...]]()

    def asked(function: Any, *args: Any) -> Any:
        drawn.append(args[:2])
        return called_later(function, *args)

    inputs.asked = asked
    inputs.begin(later)
    before = Path(inputs.job("artifact", "cpu", Timing()).problem)
    assert Problem.load(before).want.values.shape == (32, 32)
    inputs.take(later)
    after = inputs.job("artifact", "cpu", Timing()).problem
    assert Problem.load(Path(after)).want.values.shape == (32, 64)
    assert not before.exists()
    assert drawn == [(task, stream) for task in (later, first) for stream in (TRIALS, FRESH)]
    inputs.remove()
