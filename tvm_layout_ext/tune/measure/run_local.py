"""The local runner: candidates are measured one at a time a device, in a process of their own."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import tvm

from ..space.task import Task
from . import environment
from .builder.builder import LIBRARY
from .protocol import Arguments, Job, Measured, Timing, failed, measure
from .reference.problem import Problem
from .worker import Worker
from .worker_slots import PooledRunner, WorkerSlot

#: For so long a GPU's clock is taken to be what it was.
CLOCK_SECONDS = 10.0


class DeviceSlot(WorkerSlot):
    """The first device of this machine, and the process that measures on it."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self.worker = Worker(log, __name__)
        # It takes seconds to start, while the first candidate is built.
        self.worker.begin()

    def run(self, job: Job, timeout: float) -> Measured:
        """Measure in the process."""
        return Measured(**self.worker.call(measure_here, job, timeout=timeout))

    def renew(self) -> None:
        """End the process; the next trial gets a fresh one."""
        super().renew()
        self.worker.replace()

    def close(self) -> None:
        """End the process for good."""
        self.worker.close()


class LocalRunner(PooledRunner):
    """Measures on the first device of this machine, as :class:`.PooledRunner` says."""

    def __init__(self, task: Task, timeout: float = 60.0, timing: Timing | None = None) -> None:
        super().__init__(task, timeout, timing)
        self._use([DeviceSlot(self.inputs.folder / "worker.log")])


class Here:
    """What a measuring process keeps between trials: arguments on its device, and its clock."""

    known: ClassVar[dict[tuple[str, str, int | None], tuple[Problem, Arguments]]] = {}
    clock: ClassVar[int | None] = None
    asked: ClassVar[float] = -CLOCK_SECONDS

    @classmethod
    def arguments(cls, job: Job) -> tuple[Problem, Arguments]:
        """The problem of a trial, and its arguments on the device."""
        key = (job.problem, job.kind, job.timing.l2_bytes)
        if key not in cls.known:
            # A winner's fresh inputs take the place of the trials'.
            cls.known.clear()
            problem = Problem.load(Path(job.problem))
            device = tvm.runtime.device(job.kind, 0)
            cls.known[key] = problem, Arguments(problem, device, job.timing)
        return cls.known[key]

    @classmethod
    def with_clock(cls, measured: Measured) -> Measured:
        """Add the clock, asked for after a trial, while the GPU runs fast."""
        if time.monotonic() >= cls.asked + CLOCK_SECONDS:
            cls.clock = environment.clock_mhz()
            cls.asked = time.monotonic()
        return replace(measured, clock_mhz=cls.clock)


def measure_here(job: Job) -> dict[str, Any]:
    """Measure in this process; the fields of what that gave."""
    try:
        start = time.perf_counter()
        problem, arguments = Here.arguments(job)
        ready = time.perf_counter()
        library = tvm.runtime.load_module(os.path.join(job.artifact, LIBRARY))
        measured = measure(library, arguments, problem, job.timing, job.best)
        end = time.perf_counter()
        phases = {"session": round(ready - start, 6), "run": round(end - ready, 6)}
        measured = replace(measured, phases=phases)
        if job.kind == "cuda":
            measured = Here.with_clock(measured)
        return asdict(measured)
    except Exception as error:
        return asdict(failed(error))
