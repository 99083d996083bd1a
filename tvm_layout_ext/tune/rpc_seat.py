"""A seat of the RPC runner: a client process and its session with one server at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from .measure import Measured, failed
from .rpc_client import ServerLostError, close_session, open_session, prepare, run, upload
from .rpc_fit import Fit, Gpu
from .rpc_session import IDLE, PREPARE
from .run_local import GROWTH
from .tracker import Free, Tracker
from .trial_queue import TryAgainError
from .trials import Job, device_kind
from .worker import GRACE, TrialCrashError, TrialTimeoutError, Worker

__all__ = ["ATTEMPTS", "Loss", "Seat"]

#: How often a trial is started where servers go away, and where only its sessions end.
ATTEMPTS, CRASHES = 3, 2
#: How often in a row a seat tries to open a session.
OPENINGS = 3
#: A session that has lasted so many seconds is given back if others wait for a server.
LEASE = 30.0
#: A session that was idle for so long is not used again: its server is about to end it.
STALE = IDLE - GRACE
#: The tracker has noticed by then that a server is gone.
NOTICE = 0.2


class Loss(NamedTuple):
    """An attempt at a trial that does not count.

    Attributes
    ----------
    server : str
    spoilt : bool
        Whether earlier trials of the session may be to blame; else the session ended meanwhile.
    server_lives : bool
        Whether its server is still there.
    """

    server: str
    spoilt: bool = False
    server_lives: bool = False


class Seat:
    """Runs trials with one server as long as nothing goes wrong, then with the next free one.

    Parameters
    ----------
    log : Path
        Of the client process.
    fit : Fit
        Which servers are used; the runner's seats share it.

    Attributes
    ----------
    server : str
        Address of the server that it has a session with; empty without one.
    device : str
        Name of the last server's GPU.
    used : float
        When the session was used last.
    lock : threading.RLock
        Held while the client process is used.
    """

    def __init__(self, log: Path, fit: Fit) -> None:
        self.fit = fit
        self.server = self.device = ""
        self.used = 0.0
        self.lock = threading.RLock()
        self._worker = Worker(log)
        # It takes seconds to, while the first candidates are built.
        self._worker.begin()
        self._problem = ""
        self._opened = self._opening = 0.0
        self._trials = self._memory = 0

    def close(self) -> None:
        """End the client process, and with it the session."""
        self.server = self._problem = ""
        self._worker.close()

    def ready(
        self, tracker: Tracker, job: Job | None, needed: Callable[[], bool] = lambda: True
    ) -> bool:
        """Have a session that holds a trial's problem; False if it is needed no longer.

        A server that does not fit is let go before it has seen a trial, and the next one is asked.

        Raises
        ------
        NoServerError
            If there is no server.
        UnfitServerError
            If none of them fits.
        ServerLostError
            If no session could be opened in several attempts.
        """
        with self.lock:
            if self._is_over(tracker):
                self._drop()
            reason: Exception | None = None
            for _ in range(OPENINGS):
                try:
                    # First: a server is kept for a client for a few seconds only.
                    self._worker.start()
                    kind = device_kind("cuda") if job is None else job.kind
                    if not (self.server or self._seated(tracker, kind, needed)):
                        return False
                    if job is not None:
                        self._prepare(job)
                    return True
                except (ServerLostError, TrialCrashError, TrialTimeoutError) as error:
                    reason = error
                    self._drop()
                except Exception:
                    self._drop()
                    raise
            raise ServerLostError(f"No session could be opened, {OPENINGS} times: {reason}")

    def attempt(self, tracker: Tracker, job: Job, seconds: float, lost: list[Loss]) -> Measured:
        """Run a trial in the session that is ready.

        A wrong result, and a lack of memory, count only in a session in which no other ran before.

        Parameters
        ----------
        tracker : Tracker
        job : Job
        seconds : float
            That the trial may take from when the server has its library.
        lost : list of Loss
            Earlier attempts; this one is added if it does not count.

        Raises
        ------
        TryAgainError
            If the attempt does not count, and was not the last; the session has ended then.
        """
        with self.lock:
            used = self._trials > 0
            if used and any(one.spoilt for one in lost):
                self._drop()
                raise TryAgainError
            server, measured = self.server, self._once(tracker, job, seconds, lost)
            suspect = measured.verified is False or measured.error_class == "OutOfMemoryError"
            if used and suspect:
                lost.append(Loss(server, spoilt=True))
                raise TryAgainError
            return measured

    def _once(self, tracker: Tracker, job: Job, seconds: float, lost: list[Loss]) -> Measured:
        server, start = self.server, time.perf_counter()
        if not server:
            raise TryAgainError
        try:
            self._worker.call(upload, job, timeout=PREPARE)
            sent = time.perf_counter()
        except (ServerLostError, TrialCrashError, TrialTimeoutError):
            # Nothing of the candidate has run yet.
            return self._lost(lost, Loss(server))
        try:
            answer = self._worker.call(run, job, seconds, timeout=seconds + GRACE)
        except (ServerLostError, TrialCrashError, TrialTimeoutError) as error:
            if isinstance(error, TrialTimeoutError) or time.perf_counter() - sent >= seconds:
                self._drop()
                late = TrialTimeoutError(f"It was ended after {seconds:g} seconds.")
                return replace(failed(late), server=server)
            time.sleep(NOTICE)
            return self._lost(lost, Loss(server, server_lives=server in tracker.servers()))
        return self._noted(answer, server, sent - start)

    def _noted(self, answer: dict[str, Any], server: str, uploading: float) -> Measured:
        """Count a trial, and end the session after a failure or much growth."""
        measured, memory = Measured(**answer["measured"]), int(answer["memory"])
        phases = measured.phases | {"session": round(self._opening, 6)}
        phases["upload"] = round(uploading, 6)
        self._opening, self.used = 0.0, time.monotonic()
        self._memory = self._memory if self._trials else memory
        self._trials += 1
        if measured.error or memory > self._memory + GROWTH:
            self._drop()
        return replace(measured, server=server, phases=phases)

    def _lost(self, lost: list[Loss], loss: Loss) -> Measured:
        """End the session; TryAgainError unless the trial was tried often enough."""
        self._drop()
        lost.append(loss)
        broken = [one for one in lost if not one.spoilt]
        crashes = sum(one.server_lives for one in broken)
        if len(broken) < ATTEMPTS and crashes < CRASHES:
            raise TryAgainError
        servers = ", ".join(one.server for one in broken)
        text = (
            f"The connection was lost {len(broken)} times while this candidate ran ({servers}); "
            "probably it crashes the server's process."
        )
        return failed(ServerLostError(text))

    def _is_over(self, tracker: Tracker) -> bool:
        """Whether the session should not be used again."""
        if not self.server:
            return False
        now = time.monotonic()
        return now - self.used > STALE or (now - self._opened > LEASE and tracker.wanted())

    def _drop(self) -> None:
        """End the session, whatever state it is in."""
        self.server = self._problem = ""
        with suppress(TrialCrashError, TrialTimeoutError):
            # A client process that does not survive it is replaced.
            self._worker.call(close_session, timeout=GRACE)

    def _seated(self, tracker: Tracker, kind: str, needed: Callable[[], bool]) -> bool:
        """Open a session with a server that fits; False if none is needed any longer."""
        while (free := tracker.next_free(needed)) is not None:
            if str(free) not in self.fit.dropped and self._open(free, kind):
                return True
            self.fit.left(tracker.servers())
            # The tracker hands the server out again as soon as it is back.
            time.sleep(NOTICE)
        return False

    def _open(self, free: Free, kind: str) -> bool:
        """Open a session; False if the server does not fit, and has been let go."""
        start = time.monotonic()
        gpu = Gpu(*self._worker.call(open_session, *free, timeout=PREPARE))
        if not self.fit.accepts(str(free), gpu, kind):
            self._drop()
            return False
        self.device = gpu.name
        self.server, self._opened = str(free), time.monotonic()
        self.used = self._opened
        self._opening = self._opened - start
        self._trials = self._memory = 0
        return True

    def _prepare(self, job: Job) -> None:
        """Bring the problem to the server, unless the session has it."""
        key = f"{job.problem} {job.kind} {job.timing.l2_bytes}"
        if key == self._problem:
            return
        start = time.monotonic()
        self._worker.call(prepare, job, timeout=PREPARE)
        self._problem, self.used = key, time.monotonic()
        self._opening += self.used - start
