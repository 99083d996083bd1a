"""The queue from which the slots of a runner take trials; a slot may go, a trial may come back."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from .protocol import Job, Measured, failed


class TryAgainError(Exception):
    """A trial that was stopped by no fault of its own; any slot may take it."""


@dataclass(order=True)
class Trial:
    """One candidate; ``lost`` counts attempts that were stopped by no fault of its own."""

    batch: int
    number: int = 0
    job: Job = field(compare=False, kw_only=True)
    future: Future[Measured] = field(default_factory=Future, compare=False)
    entered: float = field(default=0.0, compare=False)
    lost: int = field(default=0, compare=False)


class TrialQueue:
    """Trials of all batches, which ``slots`` take one by one, each slot in a thread.

    ``ready(slot, job)`` prepares a slot before it takes a trial, so that none waits with a slot
    that waits itself; ``release(slot)`` follows if another slot took the last trial meanwhile. A
    slot that cannot get ready leaves until the next batch. Whatever ``attempt(slot, trial)`` raises
    is the trial's own failure, but for :class:`TryAgainError`.
    """

    def __init__(
        self,
        slots: Sequence[Any],
        attempt: Callable[[Any, Trial], Measured],
        ready: Callable[[Any, Job], None] = lambda slot, job: None,
        release: Callable[[Any], None] = lambda slot: None,
    ) -> None:
        self._attempt, self._ready, self._release = attempt, ready, release
        self._idle = list(slots)
        self._waiting: list[Trial] = []
        #: Slots whose threads run; trials that have not ended, and those that entered.
        self._working = self._open = self._entered = self._batches = 0
        #: Why the last slot left.
        self._gone: Exception | None = None
        self._changed = threading.Condition()

    def submit(
        self, jobs: Sequence[Job], after: Sequence[Future[str | None]] = ()
    ) -> list[Future[Measured]]:
        """Add a batch; ``after`` has what each waits for: None, or why there is nothing to try."""
        trials = [Trial(self._batches, job=job) for job in jobs]
        with self._changed:
            self._batches += 1
            self._open += len(trials)
            self._gone = None
            count = min(len(self._idle), max(0, self._open - self._working))
            started, self._idle = self._idle[:count], self._idle[count:]
            self._working += count
        for index, trial in enumerate(trials):
            if after:
                after[index].add_done_callback(partial(self._built, trial))
            else:
                self._enter(trial)
        for slot in started:
            threading.Thread(target=self._work, args=(slot,), daemon=True).start()
        return [trial.future for trial in trials]

    def _built(self, trial: Trial, done: Future[str | None]) -> None:
        error = done.result()
        if error is None:
            self._enter(trial)
        else:
            self._end(trial, Measured(error=error))

    def _enter(self, trial: Trial) -> None:
        with self._changed:
            self._entered += 1
            trial.entered, trial.number = time.monotonic(), self._entered
            if self._gone is None:
                self._push(trial)
            else:
                self._end(trial, failed(self._gone))

    def _push(self, trial: Trial) -> None:
        with self._changed:
            heapq.heappush(self._waiting, trial)
            self._changed.notify_all()

    def _end(self, trial: Trial, measured: Measured) -> None:
        trial.future.set_result(measured)
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    def _work(self, slot: Any) -> None:
        try:
            while (job := self._next_job(slot)) is not None:
                self._ready(slot, job)
                with self._changed:
                    trial = heapq.heappop(self._waiting) if self._waiting else None
                if trial is None:
                    self._release(slot)
                else:
                    self._run(slot, trial)
        except Exception as error:
            self._leave(slot, error)

    def _next_job(self, slot: Any) -> Job | None:
        """Wait until a trial waits; None, and the slot is idle, when all have ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or not self._open)
            if self._waiting:
                return self._waiting[0].job
            self._rest(slot)
            return None

    def _rest(self, slot: Any) -> None:
        self._working -= 1
        self._idle.append(slot)

    def _run(self, slot: Any, trial: Trial) -> None:
        taken = time.monotonic()
        try:
            measured = self._attempt(slot, trial)
        except TryAgainError:
            trial.lost += 1
            self._push(trial)
            return
        except Exception as error:
            measured = failed(error)
        waited = max(0.0, taken - trial.entered - measured.phases.get("session", 0.0))
        phases = {"wait": round(waited, 6)} | measured.phases
        self._end(trial, replace(measured, phases=phases))

    def _leave(self, slot: Any, error: Exception) -> None:
        with self._changed:
            self._rest(slot)
            if self._working:
                return
            self._gone = error
            while self._waiting:
                self._end(heapq.heappop(self._waiting), failed(error))
