"""A task's inputs and reference as files that many processes map."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import LayoutExtError
from ...space.operator import Shape, Tolerance
from ...space.task import Task
from .reference import Expected, Reference

#: Elements that are compared at a time: in float64 they stay in a core's cache, which compares a
#: 4096x4096 output in 0.3 s instead of 2.8 s.
_CHUNK = 1 << 14


class WrongResultError(LayoutExtError):
    """A kernel's output is not what NumPy computes."""


def poison(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Array of what no kernel leaves behind by chance: not-a-number, or bytes of 0x5A."""
    array = np.empty(shape, dtype)
    if array.dtype.kind == "f":
        array.fill(np.nan)
    else:
        array.view(np.uint8).fill(0x5A)
    return array


def require_close(got: np.ndarray, want: np.ndarray, tolerance: Tolerance) -> None:
    """Raise WrongResultError unless ``|got - want| <= atol + rtol * |want|`` everywhere.

    The sentence counts the wrong elements and shows the worst.
    """
    if got.shape != want.shape:
        raise WrongResultError(f"The output has shape {got.shape}, NumPy's {want.shape}.")
    flat_got, flat_want = got.reshape(-1), want.reshape(-1)
    parts = (slice(start, start + _CHUNK) for start in range(0, got.size, _CHUNK))
    if all((_excess(flat_got[p], flat_want[p], tolerance) <= 0).all() for p in parts):
        return
    if np.array_equal(got, want):
        return
    excess = np.nan_to_num(_excess(got, want, tolerance), nan=np.inf)
    count = int(np.count_nonzero(excess > 0))
    if count:
        worst = np.unravel_index(int(np.argmax(excess)), got.shape)
        place = ", ".join(str(int(index)) for index in worst)
        raise WrongResultError(
            f"{count:,} of {got.size:,} elements differ from NumPy's; at [{place}] the kernel has "
            f"{got[worst]} and NumPy {want[worst]}."
        )


def _excess(got: np.ndarray, want: np.ndarray, tolerance: Tolerance) -> np.ndarray:
    """By how much each element misses the tolerance, above 0 if it does; nan stays nan."""
    wide = want.astype(np.float64)
    error: np.ndarray = np.abs(got.astype(np.float64) - wide)
    return error - tolerance.atol - tolerance.rtol * np.abs(wide)


_FILE = "problem.json"
#: Operations up to which NumPy computes the whole output: 1024x1024x4096 takes 2 cores 0.7 s.
WHOLE = 1 << 33


def expected(task: Task, inputs: Sequence[np.ndarray], shape: Shape | None = None) -> Expected:
    """What a task's output should hold, at its shape or another; of a large one some rows."""
    operator, shape = task.operator, shape or task.shape
    reference = operator.reference
    if not isinstance(reference, Reference):
        if operator.flops(shape) <= WHOLE:
            return Expected(reference(*inputs))
        reference = Reference(operator.unscheduled(shape, task.dtype)["main"])
    return reference.expect(*inputs)


@dataclass(frozen=True)
class Problem:
    """Inputs, the output that they should give, maybe some rows of it, and the tolerance."""

    inputs: tuple[np.ndarray, ...]
    want: Expected
    output_dtype: str
    tolerance: Tolerance

    @classmethod
    def draw(cls, task: Task, stream: int) -> Problem:
        """Draw a task's inputs; another ``stream`` gives other values."""
        inputs = task.draw(stream)
        want = expected(task, inputs)
        output = task.operator.compute(task.shape, task.dtype)[-1]
        tolerance = task.operator.tolerance(task.shape, task.dtype)
        return cls(tuple(inputs), want, str(output.dtype), tolerance)

    @property
    def bytes(self) -> int:
        """Of one copy of the arguments."""
        output = self.want.values.size * np.dtype(self.output_dtype).itemsize
        return sum(array.nbytes for array in self.inputs) + output

    def poisoned(self) -> np.ndarray:
        """What the output holds before a kernel runs."""
        return poison(self.want.values.shape, self.output_dtype)

    def require_close(self, got: np.ndarray) -> None:
        """Raise WrongResultError unless an output is the reference, as far as that is known."""
        known, want = self.want.known(got), self.want.known(self.want.values)
        if want.size < got.size:
            count = int(np.count_nonzero(np.isnan(got))) if got.dtype.kind == "f" else 0
            if count and not np.isnan(want).any():
                raise WrongResultError(
                    f"{count:,} of {got.size:,} elements are not-a-number or were never written."
                )
        require_close(known, want, self.tolerance)

    def save(self, folder: Path) -> None:
        """Write it into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        arrays = [*self.inputs, self.want.values]
        rows = self.want.rows
        for index, array in enumerate(arrays):
            np.ascontiguousarray(array).reshape(-1).view(np.uint8).tofile(folder / f"{index}.bin")
        facts = {
            "arrays": [{"shape": array.shape, "dtype": str(array.dtype)} for array in arrays],
            "rows": None if rows is None else rows.tolist(),
            "axis": self.want.axis,
            "output_dtype": self.output_dtype,
            "tolerance": [self.tolerance.rtol, self.tolerance.atol],
        }
        (folder / _FILE).write_text(json.dumps(facts))

    @classmethod
    def load(cls, folder: Path) -> Problem:
        """Map what :meth:`save` wrote."""
        facts = json.loads((folder / _FILE).read_text())
        *inputs, want = [_map(folder / f"{i}.bin", a) for i, a in enumerate(facts["arrays"])]
        rows = None if facts["rows"] is None else np.array(facts["rows"])
        expect = Expected(want, rows, facts["axis"])
        return cls(tuple(inputs), expect, facts["output_dtype"], Tolerance(*facts["tolerance"]))


def _map(path: Path, facts: dict[str, Any]) -> np.ndarray:
    shape: Sequence[int] = facts["shape"]
    # Element types such as bfloat16 have no name in NumPy's own files.
    flat = np.asarray(np.memmap(path, np.uint8, mode="c"))
    return flat.view(np.dtype(facts["dtype"])).reshape(shape)
