"""How a candidate is measured, in a worker process or through an RPC session.

The output is poisoned before a first run and compared with the reference after it. Then TVM's
``time_evaluator`` times repeats of several launches, whose arguments rotate through so many copies
that no launch finds its inputs in the L2 cache.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tvm

from ..space.task import Task
from .backend import Begun, called_later, failure_text, quartile_distance
from .builder.host_objects import ROTATED
from .reference.problem import Problem

#: More copies of the arguments are not made; tiny workloads stay in the cache, and say so.
MOST_COPIES = 128


@dataclass(frozen=True)
class Timing:
    """How long and how often a candidate is timed.

    A repeat lasts ``repeat_ms``; there are so many ``repeats`` between two looks at the quartiles,
    until these lie within ``spread`` of the median or ``most_repeats`` are done. A first repeat of
    ``stop_factor`` times the best so far is the last. ``l2_bytes`` None asks the device.
    """

    repeat_ms: float = 5.0
    repeats: int = 5
    most_repeats: int = 25
    spread: float = 0.01
    stop_factor: float = 3.0
    l2_bytes: int | None = None


@dataclass(frozen=True)
class Measured:
    """What a trial gave; ``times`` are seconds a launch, one number a repeat.

    ``l2`` is ``"rotated"`` or ``"warm"``. ``verified`` is None if the output was not
    compared. ``phases`` are seconds of ``wait`` for a slot, ``session``, ``upload`` and ``run``.
    """

    times: list[float] = field(default_factory=list)
    l2: str | None = None
    verified: bool | None = None
    early_stop: bool = False
    error: str | None = None  #: As of :func:`.failure_text`
    server: str | None = None
    clock_mhz: int | None = None
    phases: dict[str, float] = field(default_factory=dict)


def failed(error: BaseException) -> Measured:
    """The measurement of a candidate that raised: the first line of its text."""
    name, _, text = failure_text(error).splitlines()[0].partition(": ")
    if "out of memory" in text.lower():
        name = "OutOfMemoryError"
    elif "CUDA" in text:
        name = "DeviceError"
    wrong = name == "WrongResultError"
    return Measured(error=f"{name}: {text}", verified=False if wrong else None)


class Arguments:
    """Copies of a problem's arguments on a device; the output of the first is compared."""

    def __init__(self, problem: Problem, device: Any, timing: Timing) -> None:
        self.device = device
        count = _copies(problem.bytes, device, timing.l2_bytes)
        self.l2 = "rotated" if count > 1 else "warm"
        first = [tvm.runtime.tensor(array, device) for array in problem.inputs]
        self._poison = tvm.runtime.tensor(problem.poisoned(), device)
        # To an RPC server each array goes once.
        others = [[_twin(array) for array in first] for _ in range(count - 1)]
        self.copies = [[*inputs, _twin(self._poison)] for inputs in [first, *others]]

    def poison(self) -> None:
        """Fill every output with what no kernel leaves behind by chance."""
        for copy in self.copies:
            self._poison.copyto(copy[-1])

    @property
    def output(self) -> np.ndarray:
        """The first copy's output."""
        result: np.ndarray = self.copies[0][-1].numpy()
        return result

    @property
    def flat(self) -> list[Any]:
        """What ``rotated`` takes: how many arguments a launch has, then all copies."""
        return [len(self.copies[0]), *(array for copy in self.copies for array in copy)]


def _twin(array: Any) -> Any:
    twin = tvm.runtime.empty(array.shape, array.dtype, array.device)
    array.copyto(twin)
    return twin


def _copies(size: int, device: Any, l2_bytes: int | None) -> int:
    """Copies that together are twice the cache; 1 where they would be too many or too large."""
    cache = l2_bytes if l2_bytes is not None else _attribute(device, "l2_cache_size_bytes")
    if not cache:
        return 1
    count = max(2, math.ceil(2 * cache / size))
    room = _attribute(device, "available_global_memory")
    fits = room is None or count * size <= room // 2
    return count if count <= MOST_COPIES and fits else 1


def _attribute(device: Any, name: str) -> int | None:
    """A property of a device; None where it has no such, as a CPU has none."""
    try:
        value = getattr(device, name)
    except (RuntimeError, ValueError, TypeError, AttributeError):
        return None
    return int(value) if value else None


def device_name(device: Any) -> str:
    """Name of a GPU, e.g. ``NVIDIA H200``; ``cpu`` for a device without a name."""
    return str(device.device_name or "cpu")


def measure(
    library: Any,
    arguments: Arguments,
    problem: Problem,
    timing: Timing,
    best: float | None,
) -> Measured:
    """Check a candidate's output and time it; WrongResultError if it is not the reference's.

    ``best`` are the seconds of the best candidate so far, for the early stop.
    """
    arguments.poison()
    # This call is also the warm-up: it loads the kernel.
    library["main"](*arguments.copies[0])
    arguments.device.sync()
    problem.require_close(arguments.output)

    def repeat(launches: int, repeats: int) -> list[float]:
        timer = library.time_evaluator(ROTATED, arguments.device, number=launches, repeat=repeats)
        results = timer(*arguments.flat).results
        return [float(seconds) / len(arguments.copies) for seconds in results]

    times, stopped = timed(repeat, len(arguments.copies), timing, best)
    return Measured(
        times=times,
        l2=arguments.l2,
        verified=True,
        early_stop=stopped,
    )


def timed(
    repeat: Callable[[int, int], list[float]], copies: int, timing: Timing, best: float | None
) -> tuple[list[float], bool]:
    """Repeat until the quartiles are close; the times, and whether it was stopped as hopeless."""
    limit = math.inf if best is None else timing.stop_factor * best
    times = repeat(1, 1)
    launches = max(1, math.ceil(timing.repeat_ms / 1e3 / max(times[0] * copies, 1e-9)))
    if times[0] > limit and launches > 1:
        # One launch alone may have met anything; a whole repeat has not.
        times = repeat(launches, 1)
    if times[0] > limit:
        return times, True
    times = []
    while len(times) < timing.most_repeats:
        times += repeat(launches, min(timing.repeats, timing.most_repeats - len(times)))
        if (quartile_distance(times) or 0.0) <= timing.spread * median(times):
            break
    return times, False


#: Streams of a task's random inputs: of the trials, and of a winner's verification.
TRIALS, FRESH = 0, 1


@dataclass(frozen=True)
class Job:
    """One trial, as a worker process gets it: folders of artifact and problem, kind of device.

    ``best`` are the seconds of the best candidate so far, for the early stop.
    """

    artifact: str
    problem: str
    kind: str
    timing: Timing
    best: float | None = None


def _draw(task: Task, stream: int, folder: Path) -> None:
    Problem.draw(task, stream).save(folder)


class Inputs:
    """Inputs and references of tasks in files, drawn once each; ``task`` is the one at hand.

    ``asked`` is :meth:`.Backend.asked`: they are drawn in processes where there are any.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.asked: Callable[..., Begun] = called_later
        self.folder = Path(tempfile.mkdtemp(prefix="tvm_layout_ext_run_"))
        self.remove = weakref.finalize(self, shutil.rmtree, str(self.folder), True)
        #: By task and stream.
        self._drawn: dict[tuple[Task, int], tuple[Path, Begun]] = {}
        self._count = 0

    def take(self, task: Task) -> None:
        """Go on with another task's."""
        for stream in (TRIALS, FRESH):
            if found := self._drawn.pop((self.task, stream), None):
                shutil.rmtree(found[0], ignore_errors=True)
        self.task = task

    def begin(self, task: Task) -> None:
        """Draw a task's; processes know problems by their folders' names."""
        for stream in (TRIALS, FRESH):
            if (task, stream) not in self._drawn:
                self._count += 1
                folder = self.folder / f"inputs{self._count}"
                # A copy: what is worked out of a task stays here.
                result = self.asked(_draw, replace(task), stream, folder)
                self._drawn[task, stream] = folder, result

    def job(self, artifact: str, kind: str, timing: Timing, stream: int = TRIALS) -> Job:
        """A trial of an artifact on a kind of device."""
        self.begin(self.task)
        folder, drawn = self._drawn[self.task, stream]
        drawn.result()
        return Job(artifact, str(folder), kind, timing)
