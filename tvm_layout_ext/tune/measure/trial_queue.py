"""Trials that wait for a slot, where a slot may go and a trial may come back."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from tvm.s_tir.meta_schedule.runner import RunnerInput

from .protocol import Measured, failed

__all__ = ["BatchOrder", "Trial", "TryAgainError", "share"]

WorkerSlot = TypeVar("WorkerSlot")
#: So many seconds a slot leaves to the batch before, at each trial.
PATIENCE = 5.0


class TryAgainError(Exception):
    """A trial that was stopped by no fault of its own; any slot may take it."""


@dataclass
class Trial:
    """One candidate on its way through the queue.

    Attributes
    ----------
    given : RunnerInput
    future : Future
        Of its measurement.
    entered : float
        When it could be taken.
    index : int
        Among its batch.
    lost : int
        Earlier attempts that were stopped by no fault of its own.
    """

    given: RunnerInput
    index: int
    future: Future[Measured] = field(default_factory=Future)
    entered: float = field(default_factory=time.monotonic)
    lost: int = 0

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
    trials : int
        How many will :meth:`enter`.
    slots : int
        How many take from it.
    """

    def __init__(self, trials: int, slots: int) -> None:
        self._open, self._slots = trials, slots
        self._waiting: deque[Trial] = deque()
        #: Why the last slot left.
        self._gone: Exception | None = None
        self._changed = threading.Condition()

    def enter(self, trial: Trial, error: str | None = None) -> None:
        """Let a trial wait that can be taken now; one that could not be built has ended."""
        trial.entered = time.monotonic()
        if error is not None:
            kind, _, text = error.partition(": ")
            # There is no folder to write it to.
            trial.future.set_result(Measured(error_class=kind, error_text=text))
            self._closed()
            return
        with self._changed:
            gone = self._gone
            if gone is None:
                self._waiting.append(trial)
                self._changed.notify_all()
        if gone is not None:
            self.ended(trial, failed(gone))

    def some(self) -> bool:
        """Wait until a trial waits; False when all have ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or not self._open)
            return bool(self._open)

    def take(self) -> Trial | None:
        """The first that waits, if any still does."""
        with self._changed:
            taken = self._waiting.popleft() if self._waiting else None
            self._changed.notify_all()
            return taken

    def wait_empty(self) -> None:
        """Wait until no trial waits, for a few seconds: its slots may have lost their servers."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, PATIENCE)

    def put_back(self, trial: Trial) -> None:
        """Let a trial wait again, before all others."""
        with self._changed:
            self._waiting.appendleft(trial)
            self._changed.notify_all()

    def ended(self, trial: Trial, measured: Measured) -> None:
        """Give a trial its result."""
        trial.end(measured)
        self._closed()

    def _closed(self) -> None:
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    def leave(self, error: Exception) -> None:
        """Let a slot go; with the last one, all that wait fail by its error."""
        with self._changed:
            self._slots -= 1
            left = [] if self._slots else list(self._waiting)
            if not self._slots:
                self._gone = error
                self._waiting.clear()
                self._changed.notify_all()
        for trial in left:
            self.ended(trial, failed(error))


@dataclass
class BatchOrder:
    """Lets the trials of a batch that are built go before those of the next, on all slots."""

    last: _Queue | None = None

    def behind(self, queue: _Queue) -> Callable[[], None]:
        """Put a batch last; what it calls before it takes a trial."""
        older, self.last = self.last, queue
        return (lambda: None) if older is None else older.wait_empty


def share(
    slots: Sequence[WorkerSlot],
    inputs: Sequence[RunnerInput],
    trial: Callable[[WorkerSlot, Trial], Measured],
    ready: Callable[[WorkerSlot], None] = lambda slot: None,
    after: Sequence[Future[str | None]] = (),
    order: BatchOrder | None = None,
) -> list[Future[Measured]]:
    """Let slots take trials from one queue, each in a thread, until all have ended.

    A slot gets ready before it takes a trial, so that none waits with a slot that waits itself.
    Whatever a trial raises is its own failure, but for :class:`TryAgainError`. Each measurement is
    written into the artifact's folder before its future is done.

    Parameters
    ----------
    slots : sequence
        Devices or servers.
    inputs : sequence of RunnerInput
    trial : callable
        ``trial(slot, trial)``.
    ready : callable, optional
        ``ready(slot)`` prepares a slot. One for which this raises leaves; when the last one does,
        the trials left fail by its error.
    after : sequence of Future, optional
        For each input, what it has to wait for: None, or why there is nothing to try. Seats take
        trials in the order in which these are done.
    order : Order, optional
        Shared with the calls before, whose trials go first.

    Returns
    -------
    list of Future
        In the order of the inputs.
    """
    trials = [Trial(one, index) for index, one in enumerate(inputs)]
    used = slots[: len(trials)]
    queue = _Queue(len(trials), len(used))
    let_others_go = (order or BatchOrder()).behind(queue)

    def attempt(slot: WorkerSlot, one: Trial) -> None:
        taken = time.monotonic()
        try:
            measured = trial(slot, one)
        except TryAgainError:
            one.lost += 1
            queue.put_back(one)
            return
        except Exception as error:
            measured = failed(error)
        waited = max(0.0, taken - one.entered - measured.phases.get("session", 0.0))
        phases = {"wait": round(waited, 6)} | measured.phases
        queue.ended(one, replace(measured, phases=phases))

    def work(slot: WorkerSlot) -> None:
        try:
            while queue.some():
                let_others_go()
                ready(slot)
                if (one := queue.take()) is not None:
                    attempt(slot, one)
        except Exception as error:
            queue.leave(error)

    def built(one: Trial, done: Future[str | None]) -> None:
        queue.enter(one, done.result())

    if after:
        for one, build in zip(trials, after, strict=True):
            build.add_done_callback(partial(built, one))
    else:
        for one in trials:
            queue.enter(one)
    for slot in used:
        threading.Thread(target=work, args=(slot,), daemon=True).start()
    return [one.future for one in trials]
