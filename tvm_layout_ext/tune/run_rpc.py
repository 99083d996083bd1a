"""The RPC runner: candidates are measured on the servers behind a tracker, all at once.

Start a tracker on any machine, and on each machine with GPUs one server a GPU::

    python -m tvm.exec.rpc_tracker --host 0.0.0.0 --port 9190
    CUDA_VISIBLE_DEVICES=0 python -m tvm_layout_ext.tune.rpc_server --tracker HOST:9190 --key h200
    CUDA_VISIBLE_DEVICES=1 python -m tvm_layout_ext.tune.rpc_server --tracker HOST:9190 --key h200
    python -m tvm.exec.query_rpc_tracker --host HOST --port 9190

A session with a server serves many trials: inputs and reference are sent once a server, are on its
device once a session, and are compared there, so that a trial sends its library only. A trial that
fails ends its session, and the next begins with another; a session ends, too, when it has been idle
for a minute, or when others wait for the server and it has lasted half a minute.

TVM's own server (``python -m tvm.exec.rpc_server``) does not do. It forks its sessions: TVM 0.27
initialises CUDA when it is imported where there is a GPU, and a forked process cannot use it then;
that server also ends when a candidate crashes its session. Kernels are built where the tuner runs,
so the servers need no nvcc, but the same processor architecture, TVM and this package. All servers
of one key should have the same GPU, as their times are compared: each session says which it has,
and a server that cannot run the kernels, or has another GPU than the first one, is dropped with a
warning before it gets a trial. RPC is neither encrypted nor authenticated: use it in a network that
you trust.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace

from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.runner import PyRunner, RunnerInput

from .measure import Measured, Timing, failed
from .rpc_client import ServerLostError
from .rpc_fit import Fit
from .rpc_seat import ATTEMPTS, Loss, Seat
from .task import Task
from .tracker import Tracker
from .trial_queue import Order, Trial, TryAgainError, share
from .trials import FRESH, Inputs, Job, MeasuredFuture

__all__ = ["RpcRunner", "ServerLostError"]


@derived_object
class RpcRunner(PyRunner):
    """Measures candidates on all servers of one key, each with a client process of its own.

    All servers take trials from one queue. Waiting for a free one, opening a session and sending
    are not counted as a trial's time; what each took is in :attr:`Measured.phases`. A trial whose
    server is lost is started again, on another if there is one, at most twice; one that only ends
    its session is tried once more, and so is one that gave a wrong result, or found no memory,
    where others had run before. Failures are told as by :class:`LocalRunner`.

    Parameters
    ----------
    task : Task
    host, port, key : str, int, str
        The tracker's address, and the key of the servers.
    timeout : float
        Seconds that one trial may take from when the server has its library.
    timing : Timing, optional

    Attributes
    ----------
    best_so_far : float or None
        As of :class:`LocalRunner`.

    Raises
    ------
    NoServerError
        If the tracker is not there, or has no server with the key.

    Notes
    -----
    Trials for which no server fits fail with an :class:`~.rpc_fit.UnfitServerError`.
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
        servers = self.tracker.require_servers()
        self.timeout, self.timing = timeout, timing or Timing()
        self.best_so_far: float | None = None
        self._order = Order()
        self._inputs = Inputs(task)
        self._fit = Fit(task.architecture)
        self._seats: list[Seat] = []
        self._closed = False
        self._grow(servers)

    def run(self, runner_inputs: Sequence[RunnerInput]) -> list[MeasuredFuture]:
        """Start all trials; the futures are in the inputs' order."""
        return self.begin(runner_inputs)

    def begin(
        self, runner_inputs: Sequence[RunnerInput], after: Sequence[Future[str | None]] = ()
    ) -> list[MeasuredFuture]:
        """Start all trials, each once it is built; the futures are in the inputs' order.

        Parameters
        ----------
        runner_inputs : sequence of RunnerInput
        after : sequence of Future, optional
            The end of each input's build, as :class:`.builder.Building` has it.
        """
        if not runner_inputs:
            return []
        # All of a task have the same inputs on the same kind of device.
        any_job = self._job(str(runner_inputs[0].artifact_path), str(runner_inputs[0].device_type))

        def ready(seat: Seat, needed: Callable[[], bool]) -> bool:
            if self._closed:
                raise ServerLostError("The runner was closed.")
            return seat.ready(self.tracker, any_job, lambda: needed() and not self._closed)

        def trial(seat: Seat, one: Trial) -> Measured:
            job = replace(any_job, artifact=str(one.given.artifact_path), best=self.best_so_far)
            return seat.attempt(self.tracker, job, self.timeout, one.lost)

        servers = self.tracker.servers()
        seats = self._grow([one for one in servers if one not in self._fit.dropped])
        shared = share(seats, runner_inputs, trial, ready, after, self._order)
        return [MeasuredFuture(one) for one in shared]

    def in_turn(self, artifacts: Sequence[str], kind: str = "cuda") -> list[Measured]:
        """Measure on one server, one after the other, without the early stop.

        What is measured takes the place of the artifact's earlier measurement.
        """
        measured = self._on_one([self._job(artifact, kind) for artifact in artifacts])
        for artifact, one in zip(artifacts, measured, strict=True):
            if one.times:
                one.write(artifact)
        return measured

    def verify(self, artifact: str, kind: str = "cuda") -> Measured:
        """Compare a candidate's whole output on inputs that no trial has seen.

        Returns
        -------
        Measured
            With ``verified`` true, or with the error.
        """
        timing = replace(self.timing, compared=None, repeats=1, most_repeats=1)
        return self._on_one([self._inputs.job(artifact, kind, timing, FRESH)])[0]

    def device_name(self) -> str:
        """Name of the GPU of the next free server that fits.

        Raises
        ------
        TargetError
            If there is no server, or none that fits.
        ServerLostError
            If no session can be opened with any.
        """
        seat = self._seat()
        seat.ready(self.tracker, None)
        return seat.device

    def close(self) -> None:
        """End the client processes and remove the inputs."""
        self._closed = True
        for seat in self._seats:
            seat.close()
        self._inputs.remove()

    def _job(self, artifact: str, kind: str) -> Job:
        return self._inputs.job(artifact, kind, self.timing)

    def _grow(self, servers: Sequence[str]) -> list[Seat]:
        """One seat for each server; if there are more, those that have a session with one of them.

        A seat that is left out keeps its server from the others.
        """
        count = max(1, len(servers))
        while len(self._seats) < count:
            self._seats.append(
                Seat(self._inputs.folder / f"client{len(self._seats)}.log", self._fit)
            )
        return sorted(self._seats, key=lambda seat: seat.server not in servers)[:count]

    def _seat(self) -> Seat:
        """The seat whose session was used last: others may wait for a server in vain."""
        servers = self.tracker.servers()
        return max(self._seats, key=lambda seat: (seat.server in servers, seat.used))

    def _on_one(self, jobs: list[Job]) -> list[Measured]:
        """Run trials on one server; all of them again if that is lost meanwhile."""
        seat = self._seat()
        for _ in range(ATTEMPTS):
            measured = [self._with(seat, job) for job in jobs]
            if len({one.server for one in measured if one.server}) <= 1:
                break
        return measured

    def _with(self, seat: Seat, job: Job) -> Measured:
        """Run one trial with a seat."""
        lost: list[Loss] = []
        while True:
            try:
                seat.ready(self.tracker, job)
                return seat.attempt(self.tracker, job, self.timeout, lost)
            except TryAgainError:
                continue
            except Exception as error:
                return failed(error)
