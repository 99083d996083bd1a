"""The RPC runner: candidates are measured on the servers behind a tracker, all at once.

A session with a server serves all trials of a run: inputs and reference are sent once a server, so
that a trial sends its library only. A trial that fails ends its session, and so does a minute
without a call. ``docs/tuning.md`` says how to start servers, and why TVM's own do not do.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from ....errors import TargetError
from ....gpu.hardware import Architecture
from ...space.task import Task
from ..protocol import Job, Measured, Timing, device_kind
from ..worker import GRACE
from ..worker_slots import PooledRunner, WorkerSlot
from .client import Gpu, ready, run
from .session import PREPARE
from .tracker import Tracker

_log = logging.getLogger("tvm_layout_ext")


class UnfitServerError(TargetError):
    """A server that has no GPU, or another one than the kernels are built for."""


def misfit(architecture: Architecture, gpu: Gpu, first: str = "") -> str | None:
    """Say why a GPU cannot be used beside a first one; None if it can."""
    if not gpu.capability:
        return "has no CUDA GPU"
    major, minor = architecture.capability
    here = tuple(map(int, gpu.capability.split(".")))
    # PTX ISA, "Release Notes", and nvcc's manual, "GPU Feature List": machine code runs on GPUs of
    # its major and at least its minor capability; that of sm_90a on 9.0 alone.
    special = not architecture.name[-1].isdigit()
    if here[0] != major or here[1] < minor or (special and here[1] != minor):
        needed = f"{major}.{minor}" if special else f"{major}.{minor} to {major}.x"
        return (
            f"has the GPU {gpu.name} of compute capability {gpu.capability}, and machine code "
            f"for {architecture.name} runs on {needed}"
        )
    if first and gpu.name != first:
        return (
            f"has the GPU {gpu.name}, whose times cannot be compared with those of the {first} of "
            "the first server"
        )
    return None


@dataclass
class _Fleet:
    tracker: Tracker
    architecture: Architecture
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


class _Client(WorkerSlot):
    def __init__(self, log: Path, fleet: _Fleet) -> None:
        super().__init__(log)
        self.fleet = fleet
        self.gpu: Gpu | None = None

    def ready(self, job: Job | None) -> None:
        """Have a session that holds a trial's problem, with a server that fits."""
        gpu = Gpu(*self.worker.call(ready, self.fleet.tracker, job))
        if self.gpu is not None and gpu.server != self.gpu.server:
            self.trials = 0
        self.gpu = gpu
        if (device_kind("cuda") if job is None else job.kind) == "cuda":
            self.fleet.require_fit(gpu)

    def run(self, job: Job, timeout: float) -> tuple[Measured, int]:
        most = PREPARE + timeout + GRACE
        facts, memory = self.worker.call(run, job, timeout, timeout=most)
        return Measured(**facts), memory


class RpcRunner(PooledRunner):
    """Measures candidates on all servers of one key, each with a client process of its own.

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
        folder = self._inputs.folder
        self._use([_Client(folder / f"client{i}.log", self.fleet) for i in range(len(servers))])

    def device_name(self) -> str:
        """Name of the GPU of the next free server; an error if it does not fit."""
        slot = self._slots[0]
        assert isinstance(slot, _Client)
        with slot.lock:
            slot.ready(None)
        return "" if slot.gpu is None else slot.gpu.name
