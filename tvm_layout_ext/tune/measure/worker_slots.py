"""What the measuring runners share: slots that take trials from one queue, a process each."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from ..space.task import Task
from .protocol import FRESH, Inputs, Job, Measured, Timing, failed
from .trial_queue import Trial, TrialQueue, TryAgainError

#: So many trials a process serves: libraries that it has loaded stay in its memory.
USES = 200
#: How often a trial is started whose server was lost, or whose process others may have spoilt.
ATTEMPTS = 2


class ServerLostError(ConnectionError):
    """A server that went away while it measured a candidate."""


class WorkerSlot:
    """What measures on one device; ``trials`` are those of its present process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.trials = 0

    def ready(self, job: Job | None) -> None:
        """Wait until a trial can begin; an error lets the slot go."""

    def release(self) -> None:
        """Let other slots have what this one holds, as it runs no trial now."""

    def run(self, job: Job, timeout: float) -> Measured:
        """Measure in the process."""
        raise NotImplementedError

    def once(self, job: Job, timeout: float) -> Measured:
        """Run a trial, and replace the process after a failure or many of them."""
        try:
            measured = self.run(job, timeout)
        except Exception as error:
            measured = failed(error)
        self.trials += 1
        if measured.error or self.trials >= USES:
            self.renew()
        return measured

    def renew(self) -> None:
        """End the process; the next trial gets a fresh one."""
        self.trials = 0

    def close(self) -> None:
        """End the process for good, also under a trial."""
        raise NotImplementedError


class PooledRunner:
    """Measures candidates on slots, one at a time each.

    A process is replaced after a crash, hang, wrong result or lack of memory, for its CUDA context
    may be lost, and after :data:`USES` trials. A candidate that gave a wrong result in a process
    that others had used is tried again in a fresh one.
    """

    #: Of the devices; candidates may also be built for a ``cpu``.
    kind = "cuda"

    def __init__(self, task: Task, timeout: float, timing: Timing | None) -> None:
        self.timeout, self.timing = timeout, timing or Timing()
        self.best_so_far: float | None = None
        self.inputs = Inputs(task)

    def _use(self, slots: Sequence[WorkerSlot]) -> None:
        self._slots = slots
        self._queue = TrialQueue(slots, self._measured, self._ready, self._release)

    def take(self, task: Task) -> None:
        """Go on with another task, on the same slots."""
        self.best_so_far = None
        self.inputs.take(task)

    def begin(
        self, artifacts: Sequence[str], after: Sequence[Future[str | None]] = ()
    ) -> list[Future[Measured]]:
        """Start a trial of each artifact once its build ends, of which ``after`` tells."""
        jobs = [self.inputs.job(one, self.kind, self.timing) for one in artifacts]
        return self._queue.submit(jobs, after)

    def _ready(self, slot: WorkerSlot, job: Job) -> None:
        with slot.lock:
            slot.ready(job)

    def _release(self, slot: WorkerSlot) -> None:
        with slot.lock:
            slot.release()

    def _measured(self, slot: WorkerSlot, trial: Trial) -> Measured:
        trial.job = replace(trial.job, best=self.best_so_far)
        return self._attempt(slot, trial)

    def in_turn(self, artifacts: Sequence[str]) -> list[Measured]:
        """Measure on one slot, one after the other, without the early stop."""
        return self._alone([self.inputs.job(one, self.kind, self.timing) for one in artifacts])

    def verify(self, artifact: str) -> Measured:
        """Compare a candidate's output, as far as it is known, on inputs that no trial has seen."""
        timing = replace(self.timing, repeats=1, most_repeats=1)
        return self._alone([self.inputs.job(artifact, self.kind, timing, FRESH)])[0]

    def close(self) -> None:
        """End the processes and remove the inputs."""
        for slot in self._slots:
            slot.close()
        self.inputs.remove()

    def _alone(self, jobs: Sequence[Job]) -> list[Measured]:
        """Run trials on one slot; all of them again if its server is lost."""
        for _ in range(ATTEMPTS):
            queue = TrialQueue(self._slots[:1], self._attempt, self._ready)
            measured = [future.result() for future in queue.submit(jobs)]
            if len({one.server for one in measured if one.server}) <= 1:
                break
        return measured

    def _attempt(self, slot: WorkerSlot, trial: Trial) -> Measured:
        """Run a trial; TryAgainError if it may not be to blame, and has not been tried before."""
        with slot.lock:
            if trial.lost and slot.trials:
                slot.renew()
                slot.ready(trial.job)
            used = slot.trials > 0
            measured = slot.once(trial.job, self.timeout)
            slot.release()
        spoilt = used and measured.verified is False
        lost = (measured.error or "").startswith(f"{ServerLostError.__name__}: ")
        if (spoilt or lost) and trial.lost + 1 < ATTEMPTS:
            raise TryAgainError
        return measured
