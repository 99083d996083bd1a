"""Where candidates are tried: what search, replay and check ask of a builder and a runner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from statistics import median, quantiles
from typing import Any, Protocol

import tvm

from ...errors import LayoutExtError
from ..space.knobs import Config
from ..space.task import Task


def quartile_distance(times: Sequence[float]) -> float | None:
    """Distance between the quartiles; None for a single time."""
    if len(times) < 2:
        return None
    low, _, high = quantiles(times, n=4, method="inclusive")
    return high - low


@dataclass(frozen=True)
class Measurement:
    """One candidate's figures, as of :class:`.record.Record`; a simulator has no ``times``."""

    smem_bytes: int
    conflict_model: dict[str, Any] | None
    times: tuple[float, ...] = ()
    verified_on: str | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    l2: str | None = None
    protocol: dict[str, Any] | None = None
    clock_mhz: float | None = None
    server: str | None = None
    phases: dict[str, float] | None = None

    @property
    def score(self) -> float:
        """Seconds if measured, else the modelled cost; infinite if neither is known."""
        seconds = self.median
        return float((self.conflict_model or {}).get("cost", inf)) if seconds is None else seconds

    @property
    def median(self) -> float | None:
        """Median of the times."""
        return median(self.times) if self.times else None

    @property
    def spread(self) -> float | None:
        """Distance between the quartiles of the times."""
        return quartile_distance(self.times)


class Runner(Protocol):
    """Tries candidates of one task."""

    name: str  #: The ``runner`` of its records
    device: str  #: Name of the GPU

    def run(self, task: Task, config: Config) -> Measurement:
        """Try a candidate; any exception is the candidate's failure."""

    def verify(self, task: Task, config: Config) -> str:
        """Compare a winner's output with NumPy's on fresh inputs; say on what shape it was done."""


class ReportedError(LayoutExtError):
    """Why a candidate failed, here or in another process; its text is :func:`failure_text`."""


def config_key(config: Config) -> tuple[Any, ...]:
    """A configuration as a key of dictionaries."""
    return tuple(sorted(config.items()))


def failure_text(error: BaseException) -> str:
    """Write an error as it is handed on: its class, a colon, and its text."""
    if isinstance(error, ReportedError):
        return str(error)
    return f"{type(error).__name__}: {str(error).strip() or 'no text'}"


class Begun:
    """Something under way, finished when it is asked for unless it has ``ended`` before."""

    def __init__(
        self, finish: Callable[[], Any], ended: Callable[[], bool] = lambda: False
    ) -> None:
        self._finish, self._ended = finish, ended
        self._found: Any = None
        self._finished = False

    def done(self) -> bool:
        """Whether its result is there."""
        return self._finished or self._ended()

    def result(self) -> Any:
        """Wait for its result; of a candidate a Measurement, or a ReportedError if it failed."""
        if not self._finished:
            self._found = self._finish()
            self._finished = True
        return self._found


def called_later(function: Callable[..., Any], *args: Any) -> Begun:
    """A function that is called here, once, when its result is asked for."""
    return Begun(partial(function, *args))


class Backend(Protocol):
    """Tries the candidates of one task; ``name`` is the ``runner`` of its records."""

    name: str
    device: str

    def prepare(self, task: Task, config: Config, module: tvm.IRModule, is_final: bool) -> bool:
        """Begin what a candidate of this task, or one to come, needs before it runs.

        What ``is_final`` will be timed again, and is simulated now. Whether anything was begun.
        """

    def foresee(self, configs: Sequence[Config]) -> None:
        """Begin what :meth:`remeasure` of these would do besides timing them."""

    def begin(self, candidates: Sequence[tuple[Config, tvm.IRModule]]) -> list[Begun]:
        """Begin to build scheduled modules, and to run each once it is built."""

    def asked(self, function: Callable[..., Any], *args: Any) -> Begun:
        """Begin a function elsewhere if there are processes; what is returned has its result."""

    def verify(self, config: Config) -> str:
        """Compare a candidate's output with the reference on fresh inputs; say on what shape."""

    def remeasure(self, configs: Sequence[Config]) -> list[Measurement | None]:
        """Time finalists again, taking turns; None for each where there is nothing to add."""

    def close(self) -> None:
        """Stop processes and remove files."""


def try_one(backend: Backend, task: Task, config: Config) -> Measurement:
    """Build and run one candidate outside of a search; ReportedError if it failed."""
    (begun,) = backend.begin([(config, task.module(config))])
    measured: Measurement = begun.result()
    return measured


class InProcess:
    """Tries one configuration at a time in this process, when it is asked for."""

    def __init__(self, task: Task, runner: Runner) -> None:
        self.name, self.device = runner.name, runner.device
        self._task, self._runner = task, runner

    def prepare(self, task: Task, config: Config, module: tvm.IRModule, is_final: bool) -> bool:
        """Nothing: the runner does it all."""
        return False

    def foresee(self, configs: Sequence[Config]) -> None:
        """Nothing is timed again."""

    def begin(self, candidates: Sequence[tuple[Config, tvm.IRModule]]) -> list[Begun]:
        """Put candidates aside; the runner schedules them anew."""
        return [Begun(partial(self.measure, config)) for config, _ in candidates]

    def asked(self, function: Callable[..., Any], *args: Any) -> Begun:
        """A function with its arguments, for there are no other processes."""
        return called_later(function, *args)

    def measure(self, config: Config) -> Measurement:
        """Run a candidate."""
        try:
            return self._runner.run(self._task, config)
        except Exception as error:
            raise ReportedError(failure_text(error)) from error

    def verify(self, config: Config) -> str:
        """Compare its output with the reference on fresh inputs."""
        return self._runner.verify(self._task, config)

    def remeasure(self, configs: Sequence[Config]) -> list[Measurement | None]:
        """Nothing: a count is the same each time."""
        return [None] * len(configs)

    def close(self) -> None:
        """Nothing is held."""
