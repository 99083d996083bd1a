"""How a candidate is measured, in a worker process or through an RPC session.

Inputs are random, the output is poisoned before the run and compared with the reference after it,
which also warms up. Then TVM's ``time_evaluator`` times repeats of several launches; the arguments
rotate through enough copies of them that no launch finds its inputs in the L2 cache. A candidate
that is hopeless after its first repeat is not timed further; the others are repeated until their
quartiles are close.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Protocol

import numpy as np
import psutil
import tvm

from .builder.host_objects import ROTATED
from .reference.problem import Problem

#: The measurement's file in an artifact's folder.
MEASUREMENT = "measurement.json"
#: More copies of the arguments are not made; tiny workloads stay in the cache, and say so.
MOST_COPIES = 128
#: With these words TVM's RPC hands on what was raised at the server.
_FROM_SERVER = "RPCError: Error caught from RPC call:"


@dataclass(frozen=True)
class Timing:
    """How long and how often a candidate is timed.

    Attributes
    ----------
    repeat_ms : float
        A repeat makes as many launches as last this long.
    repeats : int
        Repeats at least, and between two looks at the spread.
    most_repeats : int
        Repeats at most.
    spread : float
        Enough repeats were made when their quartiles lie this close, relative to the median.
    stop_factor : float
        A candidate whose first repeat takes this many times the best so far is not repeated.
    compared : int or None
        Elements of the output that are compared with the reference, drawn at random; None: all.
    l2_bytes : int or None
        Size of the cache that inputs shall not be found in; None asks the device.
    """

    repeat_ms: float = 5.0
    repeats: int = 5
    most_repeats: int = 25
    spread: float = 0.01
    stop_factor: float = 3.0
    compared: int | None = None
    l2_bytes: int | None = None


@dataclass(frozen=True)
class Measured:
    """What ``measurement.json`` holds; ``times`` are seconds a launch, one number a repeat.

    Attributes
    ----------
    l2 : str or None
        ``"rotated"``: each launch had other copies of the arguments than those in the cache;
        ``"warm"``: the same.
    verified : bool or None
        Whether the output is the reference's; None if not all of it was compared.
    early_stop : bool
        Whether it was found hopeless after one repeat.
    device, server, clock_mhz, temperature, driver
        Where it ran; None where nobody could ask.
    phases : dict of str to float
        Seconds of ``wait`` for a slot, ``session`` until the server was ready, ``upload`` of the
        library, and ``run``.
    """

    times: list[float] = field(default_factory=list)
    l2: str | None = None
    verified: bool | None = None
    early_stop: bool = False
    error_class: str | None = None
    error_text: str | None = None
    device: str | None = None
    server: str | None = None
    clock_mhz: int | None = None
    temperature: int | None = None
    driver: str | None = None
    phases: dict[str, float] = field(default_factory=dict)

    @property
    def error(self) -> str | None:
        """``<ErrorClass>: <sentence>``, or None if it worked."""
        return f"{self.error_class}: {self.error_text}" if self.error_class else None

    def write(self, artifact: str) -> None:
        """Write ``measurement.json`` into an artifact's folder."""
        (Path(artifact) / MEASUREMENT).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, artifact: str) -> Measured:
        """Read what :meth:`write` wrote."""
        return cls(**json.loads((Path(artifact) / MEASUREMENT).read_text()))


def failed(error: BaseException) -> Measured:
    """The measurement of a candidate that raised.

    The first line of the text is kept, an RPC server's wrapping around it left out.
    """
    text = (str(error).strip() or "no text").removeprefix(_FROM_SERVER).strip().splitlines()[0]
    name = type(error).__name__
    if "out of memory" in text.lower():
        name = "OutOfMemoryError"
    elif "CUDA" in text:
        name = "DeviceError"
    wrong = name == "WrongResultError"
    return Measured(error_class=name, error_text=text, verified=False if wrong else None)


class Arguments:
    """Copies of a problem's arguments on a device, here or at an RPC server.

    The first copy's output is the one that is compared.
    """

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
    """A copy of a tensor on its device."""
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


def memory_in_use(device: Any) -> int:
    """Bytes that this process holds, and those in use on a local GPU."""
    held = int(psutil.Process().memory_info().rss)
    total = _attribute(device, "total_global_memory")
    free = _attribute(device, "available_global_memory")
    return held + (total - free if total and free else 0)


def measure(
    library: Any,
    arguments: Arguments,
    problem: Problem,
    timing: Timing,
    best: float | None,
    check: bool = True,
) -> Measured:
    """Check a candidate's output and time it; WrongResultError if it is not the reference's.

    ``library`` has ``main`` and ``rotated``, here or at an RPC server. ``best`` are the seconds of
    the best candidate so far, for the early stop.
    """
    arguments.poison()
    # This call is also the warm-up: it loads the kernel.
    library["main"](*arguments.copies[0])
    arguments.device.sync()
    if check:
        problem.require_close(arguments.output, timing.compared)

    def repeat(launches: int, repeats: int) -> list[float]:
        timer = library.time_evaluator(ROTATED, arguments.device, number=launches, repeat=repeats)
        results = timer(*arguments.flat).results
        return [float(seconds) / len(arguments.copies) for seconds in results]

    times, stopped = timed(repeat, len(arguments.copies), timing, best)
    return Measured(
        times=times,
        l2=arguments.l2,
        verified=True if check and timing.compared is None else None,
        early_stop=stopped,
    )


def timed(
    repeat: Callable[[int, int], list[float]], copies: int, timing: Timing, best: float | None
) -> tuple[list[float], bool]:
    """Repeat until the quartiles are close; the times, and whether it was stopped as hopeless.

    ``repeat(launches, repeats)`` gives seconds a kernel for some repeats; a launch runs ``copies``
    kernels.
    """
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
        if relative_spread(times) <= timing.spread:
            break
    return times, False


def relative_spread(times: Sequence[float]) -> float:
    """Distance between the quartiles, relative to the median; 0 for a single time."""
    if len(times) < 2:
        return 0.0
    low, middle, high = quantiles(times, n=4, method="inclusive")
    return (high - low) / middle if middle else 0.0


class InTurn(Protocol):
    """A runner that can keep to one device."""

    def in_turn(self, artifacts: Sequence[str]) -> list[Measured]:
        """Measure one after the other on one device, without the early stop."""


def interleaved(runner: InTurn, artifacts: Sequence[str], rounds: int) -> list[list[float]]:
    """Time finalists round by round on one device, so that a drift of its clock meets all alike.

    For each artifact, the median seconds of its rounds; rounds that failed are left out.
    """
    order = [artifact for _ in range(rounds) for artifact in artifacts]
    measured = runner.in_turn(order)
    count = len(artifacts)
    return [
        [median(one.times) for one in measured[index::count] if one.times] for index in range(count)
    ]
