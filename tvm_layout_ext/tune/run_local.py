"""The local runner: candidates are measured one at a time a device, in a process of their own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.runner import PyRunner, RunnerInput

from . import environment
from .builder import LIBRARY
from .measure import Arguments, Measured, Timing, device_name, failed, measure, memory_in_use
from .problem import Problem
from .task import Task
from .trial_queue import Order, Trial, share
from .trials import FRESH, Inputs, Job, MeasuredFuture
from .worker import Worker

__all__ = ["GROWTH", "Here", "LocalRunner", "measure_here"]

#: A worker whose memory has grown by this much since its first trial is replaced.
GROWTH = 1 << 30


@dataclass
class _Seat:
    """A device and the process that measures on it."""

    device: int
    worker: Worker
    lock: Any = field(default_factory=threading.Lock)
    trials: int = 0
    memory: int = 0

    def replace_worker(self) -> None:
        self.worker.replace()
        self.trials = 0


@derived_object
class LocalRunner(PyRunner):
    """Measures candidates on devices of this machine.

    Each device has one worker process. A crash, hang, wrong result or lack of memory is that
    trial's failure; the process is replaced after it, because a CUDA context that has seen an error
    is lost, and a wrong kernel may have written anywhere. For the same reason a candidate that gave
    a wrong result in a process that others had used is tried again in a fresh one.

    Parameters
    ----------
    task : Task
        Its inputs and reference are drawn once and saved for the workers.
    devices : sequence of int
        Device numbers.
    timeout : float
        Seconds that one trial may take; a worker's start is not counted.
    timing : Timing, optional
    growth : int
        A worker is replaced when its memory and its device's have grown by this many bytes.

    Attributes
    ----------
    best_so_far : float or None
        Seconds of the best candidate so far, which whoever searches keeps up to date; candidates
        that take :attr:`Timing.stop_factor` times as long are stopped early.
    """

    def __init__(
        self,
        task: Task,
        devices: Sequence[int] = (0,),
        timeout: float = 60.0,
        timing: Timing | None = None,
        growth: int = GROWTH,
    ) -> None:
        super().__init__()
        self.timeout, self.growth, self.timing = timeout, growth, timing or Timing()
        self.best_so_far: float | None = None
        self._order = Order()
        self._inputs = Inputs(task)
        folder = self._inputs.folder
        self._seats = [_Seat(index, Worker(folder / f"worker{index}.log")) for index in devices]
        for seat in self._seats:
            # It takes seconds to start, while the first candidate is built.
            seat.worker.begin()

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
        self._inputs.path()
        clocks = _Clocks()

        def trial(seat: _Seat, one: Trial) -> Measured:
            artifact, kind = str(one.given.artifact_path), str(one.given.device_type)
            job = self._inputs.job(artifact, kind, self.timing)
            with seat.lock:
                measured = self._trial(seat, replace(job, best=self.best_so_far))
                if job.kind == "cuda":
                    measured = clocks.added(seat.device, measured)
            return measured

        shared = share(self._seats, runner_inputs, trial, after=after, order=self._order)
        return [MeasuredFuture(one) for one in shared]

    def in_turn(self, artifacts: Sequence[str], kind: str = "cuda") -> list[Measured]:
        """Measure on the first device, one after the other, without the early stop."""
        seat = self._seats[0]
        jobs = [self._inputs.job(artifact, kind, self.timing) for artifact in artifacts]
        with seat.lock:
            return [self._trial(seat, job) for job in jobs]

    def verify(self, artifact: str, kind: str = "cuda") -> Measured:
        """Compare a candidate's whole output on inputs that no trial has seen.

        Returns
        -------
        Measured
            With ``verified`` true, or with the error.
        """
        timing = replace(self.timing, compared=None, repeats=1, most_repeats=1)
        with self._seats[0].lock:
            return self._trial(self._seats[0], self._inputs.job(artifact, kind, timing, FRESH))

    def close(self) -> None:
        """End the workers and remove the inputs."""
        for seat in self._seats:
            seat.worker.close()
        self._inputs.remove()

    def _trial(self, seat: _Seat, job: Job) -> Measured:
        used = seat.trials > 0
        measured = self._once(seat, job)
        if used and measured.verified is False:
            return self._once(seat, job)
        return measured

    def _once(self, seat: _Seat, job: Job) -> Measured:
        """Run a trial in a seat's process, and replace that after a failure or much growth."""
        try:
            measured, memory = seat.worker.call(
                measure_here, job, seat.device, timeout=self.timeout
            )
        except Exception as error:
            measured, memory = failed(error), 0
        if seat.trials == 0:
            seat.memory = memory
        seat.trials += 1
        if measured.error or memory > seat.memory + self.growth:
            seat.replace_worker()
        return measured


class _Clocks:
    """Asks for a GPU's clock after its first trial of a batch, while it still runs fast."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int | None, int | None]] = {}

    def added(self, device: int, measured: Measured) -> Measured:
        """The measurement with clock, temperature and driver."""
        if device not in self._known:
            self._known[device] = environment.clock_and_temperature(device)
        clock, heat = self._known[device]
        driver = environment.versions()["driver"]
        return replace(measured, clock_mhz=clock, temperature=heat, driver=driver)


class Here:
    """What a measuring process keeps between trials: the arguments on its device."""

    known: ClassVar[dict[tuple[str, str, int, int | None], tuple[Problem, Arguments]]] = {}

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


def measure_here(job: Job, index: int) -> tuple[Measured, int]:
    """Measure in this process; also the bytes that it and its device hold afterwards."""
    try:
        start = time.perf_counter()
        problem, arguments = Here.arguments(job, index)
        ready = time.perf_counter()
        library = tvm.runtime.load_module(os.path.join(job.artifact, LIBRARY))
        measured = measure(library, arguments, problem, job.timing, job.best)
        end = time.perf_counter()
        phases = {"session": round(ready - start, 6), "run": round(end - ready, 6)}
        measured = replace(measured, device=device_name(arguments.device), phases=phases)
        return measured, memory_in_use(arguments.device)
    except Exception as error:
        return failed(error), 0
