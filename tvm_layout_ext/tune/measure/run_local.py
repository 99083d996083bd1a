"""The local runner: candidates are measured one at a time a device, in a process of their own."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import tvm

from ..space.task import Task
from . import environment
from .builder.builder import LIBRARY
from .protocol import Arguments, Job, Measured, Timing, failed, measure, memory_in_use
from .reference.problem import Problem
from .worker import Worker
from .worker_slots import GROWTH, PooledRunner, WorkerSlot

#: For so long a GPU's clock is taken to be what it was.
CLOCK_SECONDS = 10.0


class DeviceSlot(WorkerSlot):
    """A device of this machine, and the process that measures on it."""

    def __init__(self, log: Path, device: int) -> None:
        super().__init__()
        self.device, self.worker = device, Worker(log)
        # It takes seconds to start, while the first candidate is built.
        self.worker.begin()

    def run(self, job: Job, timeout: float) -> tuple[Measured, int]:
        """Measure in the process; also the bytes in use afterwards."""
        facts, memory = self.worker.call(measure_here, job, self.device, timeout=timeout)
        return Measured(**facts), memory

    def renew(self) -> None:
        """End the process; the next trial gets a fresh one."""
        super().renew()
        self.worker.replace()

    def close(self) -> None:
        """End the process for good."""
        self.worker.close()


class LocalRunner(PooledRunner):
    """Measures on devices of this machine, given by number, as :class:`.PooledRunner` says."""

    def __init__(
        self,
        task: Task,
        devices: Sequence[int] = (0,),
        timeout: float = 60.0,
        timing: Timing | None = None,
        growth: int = GROWTH,
    ) -> None:
        super().__init__(task, timeout, timing, growth)
        folder = self._inputs.folder
        self._use([DeviceSlot(folder / f"worker{index}.log", index) for index in devices])


class Here:
    """What a measuring process keeps between trials: arguments on its device, and its clock."""

    known: ClassVar[dict[tuple[str, str, int, int | None], tuple[Problem, Arguments]]] = {}
    clock: ClassVar[int | None] = None
    asked: ClassVar[float] = -CLOCK_SECONDS

    @classmethod
    def arguments(cls, job: Job, index: int) -> tuple[Problem, Arguments]:
        """The problem of a trial, and its arguments on the device of a number."""
        key = (job.problem, job.kind, index, job.timing.l2_bytes)
        if key not in cls.known:
            # A winner's fresh inputs take the place of the trials'.
            cls.known.clear()
            problem = Problem.load(Path(job.problem))
            device = tvm.runtime.device(job.kind, index)
            cls.known[key] = problem, Arguments(problem, device, job.timing)
        return cls.known[key]

    @classmethod
    def with_clock(cls, measured: Measured, index: int) -> Measured:
        """Add the clock, asked for after a trial, while the GPU runs fast."""
        if time.monotonic() >= cls.asked + CLOCK_SECONDS:
            cls.clock, _ = environment.clock_and_temperature(index)
            cls.asked = time.monotonic()
        return replace(measured, clock_mhz=cls.clock)


def measure_here(job: Job, index: int) -> tuple[dict[str, Any], int]:
    """Measure in this process: fields, and the bytes that it and its device hold afterwards."""
    try:
        start = time.perf_counter()
        problem, arguments = Here.arguments(job, index)
        ready = time.perf_counter()
        library = tvm.runtime.load_module(os.path.join(job.artifact, LIBRARY))
        measured = measure(library, arguments, problem, job.timing, job.best)
        end = time.perf_counter()
        phases = {"session": round(ready - start, 6), "run": round(end - ready, 6)}
        measured = replace(measured, phases=phases)
        if job.kind == "cuda":
            measured = Here.with_clock(measured, index)
        return asdict(measured), memory_in_use(arguments.device)
    except Exception as error:
        return asdict(failed(error)), 0
