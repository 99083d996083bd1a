"""Measure every legal candidate of some workloads, and keep what was found.

``python -m benchmarks.sweep gemm 4096x4096x4096 float16 --out FILE`` builds all candidates in
parallel, in an order drawn by a fixed seed, so that a sweep which is cut off is a fair sample; each
is checked and timed on GPU 0 as soon as it is built (:mod:`benchmarks.sweep_measure`). Several
workloads, ``WORKLOAD=FILE ...`` with a workload written ``gemm:4096x4096x4096:float16``, share one
run of ``many``: while the last candidates of one are measured, those of the next are built. Lines
are written as they come; :mod:`.sweep` reads them. A file that holds a part of
its sweep is continued.
"""

from __future__ import annotations

import json
import os
import queue
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from benchmarks.sweep_build import Built, Candidate, Workers
from benchmarks.sweep_file import Header, Sweep, SweepEntry
from benchmarks.sweep_measure import PROTOCOL, Job, measure, prepare
from tvm_layout_ext.errors import RecordError
from tvm_layout_ext.tune.measure import environment
from tvm_layout_ext.tune.measure.backend import failure_text
from tvm_layout_ext.tune.measure.builder.builder import INFO
from tvm_layout_ext.tune.measure.worker import Worker
from tvm_layout_ext.tune.space.knobs import describe
from tvm_layout_ext.tune.space.task import Task, make_task

#: Seconds for one measurement, and for putting a workload's arguments on the GPU.
MEASURING, PREPARING = 20.0, 180.0
SEED = 0


class Meter(Protocol):
    """Measures libraries."""

    def device(self, job: Job) -> str:
        """Name of the GPU, with the workload's arguments ready on it."""

    def times(self, job: Job, folder: str) -> list[float] | str:
        """Seconds of each repeat, or ``<ErrorClass>: <sentence>``."""

    def close(self) -> None:
        """End all processes."""


class GpuMeter:
    """Measures on GPU 0, in a process that is replaced when a candidate takes it down."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="sweep_meter_")
        self._worker = Worker(Path(self._folder.name) / "log")
        self._ready: dict[Job, str] = {}

    def device(self, job: Job) -> str:
        """Prepare a workload in the process, if that has not been done."""
        if job not in self._ready:
            self._ready[job] = self._worker.call(prepare, job, timeout=PREPARING)
        return self._ready[job]

    def times(self, job: Job, folder: str) -> list[float] | str:
        """Check and time a library."""
        self.device(job)
        try:
            found: list[float] | str = self._worker.call(measure, job, folder, timeout=MEASURING)
        except Exception as error:
            self._ready.clear()
            return failure_text(error)
        # A context that has seen a CUDA error is lost.
        if isinstance(found, str) and "CUDA" in found:
            self._worker.replace()
            self._ready.clear()
        return found

    def close(self) -> None:
        """End the process."""
        self._worker.close()
        self._folder.cleanup()


@dataclass
class Plan:
    """One sweep of a run.

    Attributes
    ----------
    task : Task
    path : Path
        Where its lines go.
    entries : list of Entry
        What was measured so far.
    header : Header, optional
        Of the file, if it holds a part of this sweep.
    """

    task: Task
    path: Path
    entries: list[SweepEntry] = field(default_factory=list)
    header: Header | None = None

    @classmethod
    def read(cls, workload: str, path: Path) -> Plan:
        """Parse ``gemm:4096x4096x4096:float16``; take up what the file has of that sweep.

        Raises
        ------
        RecordError
            If the file holds something else.
        """
        operator, shape, dtype = workload.split(":")
        task = make_task(operator, [int(n) for n in shape.split("x")], dtype)
        if not path.exists():
            return cls(task, path)
        known = Sweep.read(path)
        header, legal = known.header, len(task.space.legal)
        if header.workload != task.workload or header.legal != legal:
            raise RecordError(
                f"{path} is a sweep of {header.legal} candidates of {header.workload}, not of "
                f"{legal} of {task.workload}; name another file."
            )
        if problem := _other(known, task):
            raise RecordError(f"{path} cannot be continued: {problem}; name another file.")
        return cls(task, path, known.entries, header)

    @property
    def job(self) -> Job:
        """The workload, as the measuring process gets it."""
        return self.task.operator.name, self.task.shape, self.task.dtype

    def candidates(self, number: int, limit: int | None) -> list[Candidate]:
        """Legal candidates not yet measured: the default first, the others in a drawn order."""
        legal = self.task.space.legal
        order = list(range(len(legal)))
        random.Random(SEED).shuffle(order)
        order.sort(key=lambda index: legal[index] != self.task.space.default())
        known = {entry.index for entry in self.entries}
        return [Candidate(number, *self.job, i, legal[i]) for i in order[:limit] if i not in known]

    def begin(self, device: str) -> None:
        """Write the header, or when the sweep went on.

        Raises
        ------
        RecordError
            If it was begun on another kind of GPU.
        """
        if self.header is not None:
            if device != self.header.device:
                raise RecordError(f"{self.path} was begun on {self.header.device}, not {device}.")
            again = [*self.header.continued, environment.now()]
            Sweep(replace(self.header, continued=again), self.entries).write_compact(self.path)
            return
        clock = environment.clock_mhz()
        space = self.task.space
        header = Header(
            workload=self.task.workload,
            arch=self.task.architecture.name,
            device=device,
            versions=environment.versions(),
            protocol=PROTOCOL,
            knobs={knob.name: list(knob.values) for knob in self.task.operator.knobs},
            legal=len(space.legal),
            refused=dict(space.refused.most_common()),
            time=environment.now(),
            clock_mhz=clock,
            git_id=environment.git_id(),
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(header.to_json()) + "\n")

    def add(self, entry: SweepEntry) -> None:
        """Write a candidate's line."""
        self.entries.append(entry)
        with self.path.open("a") as file:
            file.write(json.dumps(entry.to_json()) + "\n")

    def summary(self) -> str:
        """A few lines about what was found."""
        worked = sorted((e for e in self.entries if e.seconds), key=lambda e: e.seconds or 0.0)
        errors = Counter((e.error or "").split(":")[0] for e in self.entries if not e.seconds)
        failures = ", ".join(f"{name} {count}" for name, count in errors.most_common()) or "none"
        title = f"{self.task.workload}: {len(self.entries)} of {len(self.task.space.legal)} legal"
        if not worked:
            return f"{title}; failed: {failures}"
        built = sum(e.build_seconds or 0.0 for e in self.entries) / len(self.entries)
        first, middle = worked[0], worked[len(worked) // 2]
        near = sum((e.seconds or 0) <= 1.05 * (first.seconds or 0) for e in worked)
        default = next((e for e in worked if e.config == self.task.space.default()), None)
        return "\n".join(
            [
                f"{title}; {built:.1f} s a build; failed: {failures}",
                f"  best {_micro(first)} {describe(first.config)}",
                f"  median {_micro(middle)}, worst {_micro(worked[-1])}, within 5%: {near}",
                f"  default {_micro(default) if default else 'not measured'}",
            ]
        )


def _other(known: Sweep, task: Task) -> str | None:
    """What sets a sweep of the same workload apart from the one to be made, or None."""
    header, legal = known.header, task.space.legal
    if header.arch != task.architecture.name:
        return f"it is of {header.arch}, not {task.architecture.name}"
    if header.protocol != PROTOCOL:
        return f"its times were taken by the protocol {header.protocol}, not {PROTOCOL}"
    newer = {knob.name: knob.before for knob in task.operator.knobs if knob.before is not None}
    same = {e.index: legal[e.index : e.index + 1] == [newer | e.config] for e in known.entries}
    if moved := [index for index, kept in same.items() if not kept]:
        return f"its candidate {moved[0]} is no longer that of the legal space"
    return None


def _micro(entry: SweepEntry) -> str:
    return f"{(entry.seconds or 0.0) * 1e6:.1f} us"


def run(
    plans: Sequence[Plan], workers: int, meter: Meter, seconds: float, limit: int | None = None
) -> None:
    """Build and measure all candidates of some sweeps, within some seconds.

    Parameters
    ----------
    plans : sequence of Plan
    workers : int
        Processes that build.
    meter : Meter
    seconds : float
        Nothing is begun later than this.
    limit : int, optional
        Candidates of each sweep at most.
    """
    deadline = time.monotonic() + seconds
    ready: queue.SimpleQueue[Built | None] = queue.SimpleQueue()
    listener = threading.Thread(target=_measure_all, args=(plans, ready, meter, deadline))
    listener.start()
    pool = Workers(workers)
    try:
        everything = [c for n, plan in enumerate(plans) for c in plan.candidates(n, limit)]
        for built in pool.results(everything, deadline):
            ready.put(built)
    finally:
        ready.put(None)
        listener.join()
        pool.close()
        meter.close()


def _measure_all(
    plans: Sequence[Plan], ready: queue.SimpleQueue[Built | None], meter: Meter, deadline: float
) -> None:
    begun: set[int] = set()
    while (built := ready.get()) is not None and time.monotonic() < deadline:
        number = built.candidate.sweep
        try:
            if number not in begun:
                plans[number].begin(meter.device(plans[number].job))
                begun.add(number)
            plans[number].add(_measured(built, plans[number], meter))
        except Exception as error:
            # The GPU itself is gone or a workload does not fit it; others may.
            print(f"{plans[number].task.workload}: {type(error).__name__}: {error}", flush=True)


def _measured(built: Built, plan: Plan, meter: Meter) -> SweepEntry:
    candidate = built.candidate
    seconds = round(built.seconds, 3)
    if built.folder is None:
        error = (built.error or "no text").splitlines()[0]
        return SweepEntry(candidate.index, candidate.config, build_seconds=seconds, error=error)
    info: dict[str, Any] = json.loads((Path(built.folder) / INFO).read_text())
    found = meter.times(plan.job, built.folder)
    return SweepEntry(
        index=candidate.index,
        config=candidate.config,
        times=[] if isinstance(found, str) else found,
        registers=info["registers"],
        spill_bytes=info["spill_bytes"],
        smem_bytes=info["smem_bytes"],
        build_seconds=seconds,
        error=found if isinstance(found, str) else None,
    )


def show(plans: Iterable[Plan]) -> None:
    """Print what was found."""
    for plan in plans:
        print(plan.summary(), flush=True)


app = typer.Typer(add_completion=False)
_Workers = Annotated[int, typer.Option(help="Processes that build.")]
_Deadline = Annotated[float, typer.Option(help="Seconds after which nothing new is begun.")]
_Limit = Annotated[int, typer.Option(help="Candidates of a sweep at most; 0 for all.")]
_CORES = os.cpu_count() or 1


@app.command()
def one(
    operator: str,
    shape: str,
    dtype: str,
    out: Annotated[Path, typer.Option(help="File of JSON lines.")],
    workers: _Workers = _CORES,
    deadline: _Deadline = 3600.0,
    limit: _Limit = 0,
) -> None:
    """Sweep one workload."""
    plan = Plan.read(f"{operator}:{shape}:{dtype}", out)
    run([plan], workers, GpuMeter(), deadline, limit or None)
    show([plan])


@app.command()
def many(
    sweeps: Annotated[list[str], typer.Argument(help="WORKLOAD=FILE, one after the other.")],
    workers: _Workers = _CORES,
    deadline: _Deadline = 3600.0,
    limit: _Limit = 0,
) -> None:
    """Sweep several workloads in one run."""
    pairs = [sweep.split("=", 1) for sweep in sweeps]
    plans = [Plan.read(workload, Path(path)) for workload, path in pairs]
    run(plans, workers, GpuMeter(), deadline, limit or None)
    show(plans)


@app.command()
def compact(source: Path, out: Annotated[Path, typer.Option(help="File of JSON lines.")]) -> None:
    """Write a sweep anew, in less than half of the bytes."""
    Sweep.read(source).write_compact(out)


if __name__ == "__main__":
    app()
