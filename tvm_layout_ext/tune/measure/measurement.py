"""What a runner learns about one candidate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from statistics import median, quantiles
from typing import Any, Protocol

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
    """One candidate's figures; fields are as of :class:`.record.Record`.

    ``times`` is empty for the simulator; ``conflict_model`` is None if it does not model the
    kernel.
    """

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

    @property
    def name(self) -> str:
        """The ``runner`` of its records."""

    @property
    def device(self) -> str:
        """Name of the GPU."""

    def run(self, task: Task, config: Config) -> Measurement:
        """Try a candidate; any exception is the candidate's failure."""

    def verify(self, task: Task, config: Config) -> str:
        """Compare a winner's output with NumPy's on fresh inputs; say on what shape it was done."""
