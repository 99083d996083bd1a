"""The RPC runner: candidates are measured on the servers behind a tracker, all at once.

A session with a server serves all trials of a run: inputs and reference are sent once a server, so
that a trial sends its library only. Slots that run no trial leave their sessions to those that do,
else one would wait for the server that another keeps. A trial that fails ends its session, and so
does a minute without a call. ``docs/tuning.md`` says how to start servers, and why TVM's own do not
do.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from ...._compat import open_session
from ....errors import TargetError
from ....gpu.hardware import Architecture
from ...space.task import Task
from ..backend import ReportedError
from ..builder.builder import LIBRARY
from ..protocol import Job, Measured, Timing
from ..worker import TrialTimeoutError, ask
from ..worker_slots import PooledRunner, ServerLostError, WorkerSlot
from . import session
from .server import GREETING, VARIABLE, behind
from .tracker import Free, NoServerError, Tracker

_log = logging.getLogger("tvm_layout_ext")
#: Bytes of a problem that travel at once.
_PART = 8 << 20
#: How often in a row a session is tried to be opened.
_OPENINGS = 3
#: A server ends a trial that is late by itself; so much later it is given up.
_GRACE = 5.0
_GREETING_SECONDS = 10.0


class UnfitServerError(TargetError):
    """A server that has no GPU, or another one than the kernels are built for."""


class Gpu(NamedTuple):
    """A session's server, its device, and compute capability, empty for a CPU."""

    server: str
    name: str
    capability: str


def misfit(architecture: Architecture, gpu: Gpu, first: str = "") -> str | None:
    """Say why a GPU cannot be used beside a first one; None if it can."""
    if not gpu.capability:
        return "has no CUDA GPU"
    if not architecture.runs_on([*map(int, gpu.capability.split("."))]):
        return (
            f"has the GPU {gpu.name} of compute capability {gpu.capability}, and machine code "
            f"for {architecture.name} runs on {architecture.runs_on_text}"
        )
    if first and gpu.name != first:
        return (
            f"has the GPU {gpu.name}, whose times cannot be compared with those of the {first} of "
            "the first server"
        )
    return None


class _Session:
    """An open connection to one server's process; ``trials`` are those it has served."""

    def __init__(self, free: Free) -> None:
        self.server = f"{free.host}:{free.port}"
        self._socket = open_session(free.host, free.port, behind(free.match))
        self.pipe = Connection(os.dup(self._socket.fileno()))
        self.gpu = Gpu(self.server, "", "")
        self.problem, self.trials = "", 0

    def end(self) -> None:
        """Let it go; its server ends it then."""
        with suppress(OSError):
            # Also wakes who waits for an answer.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.pipe.close()


@dataclass
class _Fleet:
    tracker: Tracker
    architecture: Architecture
    #: Open sessions that no client uses.
    spare: list[_Session] = field(default_factory=list)
    #: Name of the first server's GPU.
    first: str = ""
    warned: set[str] = field(default_factory=set)

    def require_fit(self, gpu: Gpu) -> None:
        problem = misfit(self.architecture, gpu, self.first)
        if problem is None:
            self.first = gpu.name
            return
        if gpu.server not in self.warned:
            self.warned.add(gpu.server)
            _log.warning("RPC server %s is not used: it %s.", gpu.server, problem)
        raise UnfitServerError(
            f"RPC server {gpu.server} cannot run kernels for {self.architecture.name}: it "
            f"{problem}. Start one on a machine with such a GPU and its driver."
        )


@lru_cache(maxsize=8)
def digest(folder: str) -> str:
    """32 digits that tell a problem's files from all others."""
    sums = hashlib.blake2b(digest_size=16)
    for path in sorted(Path(folder).iterdir()):
        with path.open("rb") as file:
            sums.update(f"{path.name} {path.stat().st_size} ".encode())
            while part := file.read(_PART):
                sums.update(part)
    return sums.hexdigest()


class Client(WorkerSlot):
    """A session with one server at a time, whichever is free; others get it between trials."""

    def __init__(self, fleet: _Fleet) -> None:
        super().__init__()
        self.fleet = fleet
        self._session: _Session | None = None
        self._closed = False
        #: Seconds to open the session, or to bring a problem there, which the next trial tells.
        self._opening = 0.0

    @property
    def gpu(self) -> Gpu | None:
        """The server of the session, if there is one."""
        return None if self._session is None else self._session.gpu

    def ask(self, function: Callable[..., Any], *args: Any, timeout: float = session.IDLE) -> Any:
        """Call one of the session's functions; ServerLostError if there is no session now."""
        try:
            if self._session is None:
                raise EOFError
            return ask(self._session.pipe, function, *args, timeout=timeout, read=json.loads)
        except (EOFError, OSError) as error:
            raise ServerLostError(str(error) or "the session has ended") from None

    def open(self, free: Free) -> Gpu:
        """Begin a session with a server."""
        try:
            opened = self._session = _Session(free)
            greeted = opened.pipe.poll(_GREETING_SECONDS) and opened.pipe.recv_bytes()
            if greeted == GREETING:
                opened.pipe.recv_bytes()
        except (EOFError, OSError) as error:
            raise ServerLostError(
                f"the server could not be reached, or has another {VARIABLE}: {error}"
            ) from None
        if greeted != GREETING:
            raise TargetError(
                f"The server at {opened.server} is not one of this package, of this version; start "
                "it by: python -m tvm_layout_ext.tune.rpc_server"
            )
        opened.gpu = Gpu(opened.server, *self.ask(session.gpu))
        return opened.gpu

    def end(self) -> None:
        """Let the session go, if there is one."""
        held, self._session = self._session, None
        if held is not None:
            held.end()

    def renew(self) -> None:
        """End the session; the next trial has one of its own."""
        super().renew()
        self.end()

    def release(self) -> None:
        """Leave the session to whoever waits for a server: this client may need none again."""
        if self._session is not None:
            self._session.trials, self.trials = self.trials, 0
            self.fleet.spare.append(self._session)
            self._session = None

    def close(self) -> None:
        """End the session and all that wait, and open none again."""
        self._closed = True
        self.end()
        while self._take():
            self.renew()

    def ready(self, job: Job | None) -> None:
        """Have a session that holds a trial's problem; wait for a free server if there is none.

        NoServerError or ServerLostError if there is none, TargetError if it does not fit.
        """
        reason: Exception | None = None
        for _ in range(_OPENINGS):
            try:
                return self._ready(job)
            except ServerLostError as error:
                reason = error
                self.renew()
        raise ServerLostError(f"No session could be opened, {_OPENINGS} times: {reason}")

    def _ready(self, job: Job | None) -> None:
        held = self._held()
        if job is not None and job.kind + job.problem != held.problem:
            start = time.monotonic()
            self._prepare(job)
            held.problem = job.kind + job.problem
            self._opening += time.monotonic() - start
        if job is not None and job.kind == "cuda":
            self.fleet.require_fit(held.gpu)

    def _held(self) -> _Session:
        """Have a session: its own, a spare one, or one with the next server that gets free."""
        while not self._is_alive():
            self.renew()
            if not self._take() and self._open_next():
                break
        assert self._session is not None
        return self._session

    def _open_next(self) -> bool:
        """Open a session with the next free server; False if a session is spare before that."""
        free = self.fleet.tracker.next_free(lambda: self._closed or bool(self.fleet.spare))
        if self._closed:
            raise NoServerError("The runner was closed.")
        if free is not None:
            start = time.monotonic()
            self.open(free)
            self._opening += time.monotonic() - start
        return free is not None

    def _take(self) -> bool:
        """Take a spare session, the last that was in use; False if there is none."""
        with suppress(IndexError):
            self._session = self.fleet.spare.pop()
            self.trials = self._session.trials
        return self._session is not None

    def _is_alive(self) -> bool:
        try:
            self.ask(session.holds, "none")
        except (ServerLostError, ReportedError):
            return False
        return True

    def _prepare(self, job: Job) -> None:
        """Bring a trial's inputs and reference to the server's device, unless they are there."""
        known = digest(job.problem)
        if not self.ask(session.holds, known):
            for path in sorted(Path(job.problem).iterdir()):
                with path.open("rb") as file:
                    while part := file.read(_PART):
                        self.ask(session.put, known, path.name, part)
            self.ask(session.keep, known)
        self.ask(session.prepare, replace(job, problem=known), timeout=session.PREPARE + _GRACE)

    def run(self, job: Job, timeout: float) -> Measured:
        """Send a trial's library and try it."""
        server = "" if self.gpu is None else self.gpu.server
        start = sent = time.monotonic()
        sends = replace(job, problem=digest(job.problem))
        try:
            self.ask(session.library, (Path(job.artifact) / LIBRARY).read_bytes())
            sent = time.monotonic()
            late = session.PREPARE + timeout + _GRACE
            facts = self.ask(session.measure, sends, timeout, timeout=late)
        except ServerLostError:
            if sent > start and time.monotonic() - sent >= timeout:
                raise TrialTimeoutError(f"It was ended after {timeout:g} seconds.") from None
            raise ServerLostError(
                f"The connection to {server} was lost while this candidate ran; if that happens "
                "again, it crashes the server's process."
            ) from None
        phases = {"session": round(self._opening, 6), "upload": round(sent - start, 6)}
        self._opening = 0.0
        facts["phases"] |= phases
        return Measured(**facts | {"server": server})


class RpcRunner(PooledRunner):
    """Measures candidates on all servers of one key, each with a session of its own.

    A trial whose connection is lost is tried once more, on another server if there is one; one for
    which no server fits fails by an :class:`UnfitServerError`.
    """

    def __init__(
        self,
        task: Task,
        host: str,
        port: int,
        key: str,
        timeout: float = 60.0,
        timing: Timing | None = None,
    ) -> None:
        tracker = Tracker(host, port, key)
        servers = tracker.require_servers()
        super().__init__(task, timeout, timing)
        self.fleet = _Fleet(tracker, task.architecture)
        self._use([Client(self.fleet) for _ in servers])

    def device_name(self) -> str:
        """Name of the GPU of the next free server; an error if it does not fit."""
        slot = self._slots[0]
        assert isinstance(slot, Client)
        with slot.lock:
            slot.ready(None)
            gpu = slot.gpu
            slot.release()
        assert gpu is not None
        if self.kind == "cuda":
            self.fleet.require_fit(gpu)
        return gpu.name
