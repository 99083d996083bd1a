"""The RPC runner: candidates are measured on the servers behind a tracker, all at once.

Start a tracker on any machine, and on each machine with GPUs one server a GPU::

    python -m tvm.exec.rpc_tracker --host 0.0.0.0 --port 9190
    CUDA_VISIBLE_DEVICES=0 python -m tvm_layout_ext.tune.rpc_server --tracker HOST:9190 --key h200
    CUDA_VISIBLE_DEVICES=1 python -m tvm_layout_ext.tune.rpc_server --tracker HOST:9190 --key h200
    python -m tvm.exec.query_rpc_tracker --host HOST --port 9190

TVM's own server (``python -m tvm.exec.rpc_server``) forks its sessions. TVM 0.27 initialises CUDA
when it is imported where there is a GPU, and a forked process cannot use it then; that server also
ends when a candidate crashes its session. All servers of one key should have the same GPU, as their
times are compared. Kernels are built where the tuner runs, so the servers need no nvcc, but the
same processor architecture, TVM and this package. A trial opens a session of its own and sends its
inputs, which takes seconds where they are large. RPC is neither encrypted nor authenticated: use it
in a network that you trust.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import tvm
from tvm import rpc
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.runner import PyRunner, RunnerInput

from .builder import LIBRARY
from .measure import Arguments, Measured, Timing, device_name, failed, measure
from .problem import Problem
from .task import Task
from .tracker import Tracker
from .trials import FRESH, Inputs, Job, MeasuredFuture, share
from .worker import GRACE, TrialCrashError, TrialTimeoutError, Worker

__all__ = ["RpcRunner", "ServerLostError", "remote_device"]

#: How often a trial is started, on the same server or another.
ATTEMPTS = 3


class ServerLostError(ConnectionError):
    """A server that went away while it measured a candidate."""


@dataclass
class _Seat:
    """A client process, which serves one server at a time."""

    worker: Worker
    lock: Any = field(default_factory=threading.Lock)


@derived_object
class RpcRunner(PyRunner):
    """Measures candidates on all servers of one key, each with a client process of its own.

    A trial has a session of its own, so that servers can be shared with others; waiting for a free
    server is not counted as the trial's time. A server that is lost is no longer asked, and the
    trial is started again, at most twice. Failures are told as by :class:`LocalRunner`.

    Parameters
    ----------
    task : Task
    host, port, key : str, int, str
        The tracker's address, and the key of the servers.
    timeout : float
        Seconds that one trial may take from the moment that it has a session.
    timing : Timing, optional

    Attributes
    ----------
    best_so_far : float or None
        As of :class:`LocalRunner`.

    Raises
    ------
    NoServerError
        If the tracker is not there, or has no server with the key.
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
        super().__init__()
        self.tracker = Tracker(host, port, key)
        self.tracker.require_servers()
        self.timeout, self.timing = timeout, timing or Timing()
        self.best_so_far: float | None = None
        self._inputs = Inputs(task)
        self._seats: list[_Seat] = []

    def run(self, runner_inputs: Sequence[RunnerInput]) -> list[MeasuredFuture]:
        """Start all trials; the futures are in the inputs' order."""
        self._inputs.path()

        def trial(seat: _Seat, one: RunnerInput) -> Measured:
            job = self._inputs.job(str(one.artifact_path), str(one.device_type), self.timing)
            with seat.lock:
                return self._attempts(seat, [replace(job, best=self.best_so_far)])[0]

        return share(self._enough_seats(), runner_inputs, trial)

    def in_turn(self, artifacts: Sequence[str], kind: str = "cuda") -> list[Measured]:
        """Measure on one server in one session, one after the other, without the early stop."""
        jobs = [self._inputs.job(artifact, kind, self.timing) for artifact in artifacts]
        return self._on_one(jobs)

    def verify(self, artifact: str, kind: str = "cuda") -> Measured:
        """Compare a candidate's whole output on inputs that no trial has seen.

        Returns
        -------
        Measured
            With ``verified`` true, or with the error.
        """
        timing = replace(self.timing, compared=None, repeats=1, most_repeats=1)
        return self._on_one([self._inputs.job(artifact, kind, timing, FRESH)])[0]

    def close(self) -> None:
        """End the client processes and remove the inputs."""
        for seat in self._seats:
            seat.worker.close()
        self._inputs.remove()

    def _enough_seats(self) -> list[_Seat]:
        """One seat for each server that the tracker knows now."""
        count = max(1, len(self.tracker.servers()))
        while len(self._seats) < count:
            log = self._inputs.folder / f"client{len(self._seats)}.log"
            self._seats.append(_Seat(Worker(log)))
        return self._seats[:count]

    def _on_one(self, jobs: list[Job]) -> list[Measured]:
        seat = self._enough_seats()[0]
        with seat.lock:
            return self._attempts(seat, jobs)

    def _attempts(self, seat: _Seat, jobs: list[Job]) -> list[Measured]:
        """Run trials in one session; in another one, at most twice, if the server is lost."""
        lost: list[str] = []
        seconds = self.timeout * len(jobs)
        while len(lost) < ATTEMPTS:
            server = ""
            try:
                server = seat.worker.call(_open, self.tracker, seconds + GRACE)
                measured: list[Measured] = seat.worker.call(_measure_there, jobs, timeout=seconds)
                return [replace(one, server=server) for one in measured]
            except (ServerLostError, TrialCrashError):
                lost.append(server or "one that could not be reached")
                seat.worker.replace()
            except TrialTimeoutError as error:
                return [replace(failed(error), server=server) for _ in jobs]
            except Exception as error:
                seat.worker.replace()
                return [failed(error) for _ in jobs]
        text = (
            f"The connection was lost {len(lost)} times while this candidate ran "
            f"({', '.join(lost)}); probably it crashes the server's process."
        )
        return [failed(ServerLostError(text)) for _ in jobs]


def remote_device(tracker: Tracker) -> str:
    """Name of the GPU of a key's next free server; ``cpu`` if it has none."""
    session, _ = tracker.session(GRACE)
    gpu = session.cuda(0)
    if not gpu.exist:
        return device_name(session.cpu(0))
    # A server process that has not used its GPU yet cannot tell its name.
    tvm.runtime.empty((1,), "int8", gpu)
    return device_name(gpu)


class _There:
    """A client process's session."""

    session: ClassVar[rpc.RPCSession | None] = None


def _open(tracker: Tracker, seconds: float) -> str:
    """Wait in the client process for a session; the server's address."""
    try:
        _There.session, server = tracker.session(seconds)
    except (OSError, RuntimeError) as error:
        raise ServerLostError(f"A server could not be reached: {error}") from None
    return server


def _measure_there(jobs: list[Job]) -> list[Measured]:
    """Measure in the client process, and give the session back."""
    session = _There.session
    assert session is not None
    try:
        return _Remote(session).measure(jobs)
    finally:
        _There.session = session = None
        # Tensors and functions at the server hold the session open.
        gc.collect()


class _Remote:
    """Trials through one session."""

    def __init__(self, session: rpc.RPCSession) -> None:
        self.session = session
        self._known: dict[str, tuple[Problem, Arguments]] = {}

    def measure(self, jobs: list[Job]) -> list[Measured]:
        """Measure all; a candidate's failure is its own."""
        return [self._one(index, job) for index, job in enumerate(jobs)]

    def _one(self, index: int, job: Job) -> Measured:
        try:
            problem, arguments = self._arguments(job)
            name = f"{index}_{LIBRARY}"
            self.session.upload(os.path.join(job.artifact, LIBRARY), name)
            library = self.session.load_module(name)
            measured = measure(library, arguments, problem, job.timing, job.best)
            return replace(measured, device=device_name(arguments.device))
        except Exception as error:
            if not self._alive():
                raise ServerLostError(str(error).splitlines()[0]) from None
            return failed(error)

    def _arguments(self, job: Job) -> tuple[Problem, Arguments]:
        if job.problem not in self._known:
            problem = Problem.load(Path(job.problem))
            device = self.session.device(job.kind, 0)
            self._known[job.problem] = problem, Arguments(problem, device, job.timing)
        return self._known[job.problem]

    def _alive(self) -> bool:
        try:
            self.session.get_function("tvm.rpc.server.workpath")("")
        except Exception:
            return False
        return True
