"""Trials that wait for a seat, where a seat may go and a trial may come back."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tvm.s_tir.meta_schedule.runner import RunnerInput

from .measure import Measured, failed

__all__ = ["Trial", "TryAgainError", "share"]

Seat = TypeVar("Seat")


class TryAgainError(Exception):
    """A trial that was stopped by no fault of its own; any seat may take it."""


@dataclass
class Trial:
    """One candidate on its way through the queue.

    Attributes
    ----------
    given : RunnerInput
    future : Future
        Of its measurement.
    entered : float
        When it was put in.
    lost : list
        What became of earlier attempts, as whoever makes them writes it down.
    """

    given: RunnerInput
    future: Future[Measured] = field(default_factory=Future)
    entered: float = field(default_factory=time.monotonic)
    lost: list[Any] = field(default_factory=list)

    def end(self, measured: Measured) -> None:
        """Write the measurement into the artifact's folder, and hand it on."""
        try:
            measured.write(str(self.given.artifact_path))
        except OSError as error:
            measured = failed(error)
        self.future.set_result(measured)


class _Queue:
    """Trials until all have ended.

    Parameters
    ----------
    trials : sequence of Trial
    seats : int
        How many take from it.
    """

    def __init__(self, trials: Sequence[Trial], seats: int) -> None:
        self._waiting, self._open, self._seats = deque(trials), len(trials), seats
        self._changed = threading.Condition()

    def some(self) -> bool:
        """Wait until a trial waits; False when all have ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or not self._open)
            return bool(self._open)

    def waits(self) -> bool:
        """Whether a trial waits now."""
        return bool(self._waiting)

    def take(self) -> Trial | None:
        """The first that waits, if any still does."""
        with self._changed:
            return self._waiting.popleft() if self._waiting else None

    def put_back(self, trial: Trial) -> None:
        """Let a trial wait again, before all others."""
        with self._changed:
            self._waiting.appendleft(trial)
            self._changed.notify_all()

    def ended(self, trial: Trial, measured: Measured) -> None:
        """Give a trial its result."""
        trial.end(measured)
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    def leave(self, error: Exception) -> None:
        """Let a seat go; with the last one, all that wait fail by its error."""
        with self._changed:
            self._seats -= 1
            left = [] if self._seats else list(self._waiting)
            if left:
                self._waiting.clear()
        for trial in left:
            self.ended(trial, failed(error))


def share(
    seats: Sequence[Seat],
    inputs: Sequence[RunnerInput],
    trial: Callable[[Seat, Trial], Measured],
    ready: Callable[[Seat, Callable[[], bool]], bool] = lambda seat, needed: True,
) -> list[Future[Measured]]:
    """Let seats take trials from one queue, each in a thread, until all have ended.

    A seat gets ready before it takes a trial, so that none waits with a seat that waits itself.
    Whatever a trial raises is its own failure, but for :class:`TryAgainError`. Each measurement is
    written into the artifact's folder before its future is done.

    Parameters
    ----------
    seats : sequence
        Devices or servers.
    inputs : sequence of RunnerInput
    trial : callable
        ``trial(seat, trial)``.
    ready : callable, optional
        ``ready(seat, needed)``: prepares a seat while ``needed()``; whether it is ready. A seat for
        which this raises leaves; when the last one does, the trials left fail by its error.

    Returns
    -------
    list of Future
        In the order of the inputs.
    """
    trials = [Trial(one) for one in inputs]
    used = seats[: len(trials)]
    queue = _Queue(trials, len(used))

    def attempt(seat: Seat, one: Trial) -> None:
        taken = time.monotonic()
        try:
            measured = trial(seat, one)
        except TryAgainError:
            queue.put_back(one)
            return
        except Exception as error:
            measured = failed(error)
        waited = max(0.0, taken - one.entered - measured.phases.get("session", 0.0))
        phases = {"wait": round(waited, 6)} | measured.phases
        queue.ended(one, replace(measured, phases=phases))

    def work(seat: Seat) -> None:
        try:
            while queue.some():
                if ready(seat, queue.waits) and (one := queue.take()) is not None:
                    attempt(seat, one)
        except Exception as error:
            queue.leave(error)

    for seat in used:
        threading.Thread(target=work, args=(seat,), daemon=True).start()
    return [one.future for one in trials]
