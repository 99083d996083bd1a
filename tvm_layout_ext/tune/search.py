"""``tune``: try configurations of an operator, keep a record of each, name a verified winner."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from .. import hardware
from .._compat import has_gpu
from ..checks import whole_number
from ..errors import ScheduleError, TargetError
from ..target import default_arch
from . import environment
from .cuda import CudaRunner
from .interrupt import Interrupt
from .knobs import Config
from .measurement import Measurement, Runner
from .operator import Operator, find_operator
from .ranking import best_first
from .records import Log, Reading, Record
from .simulated import SimulatedRunner
from .task import Task

__all__ = ["RUNNERS", "Progress", "Result", "make_runner", "make_task", "tune"]

RUNNERS = ("auto", "cuda", "simulate")
_MOST_ELEMENTS = 2**31 - 1
#: Called after each trial with its record, how many are done, and how many there will be.
Progress = Callable[[Record, int, int], None]


@dataclass(frozen=True)
class Result:
    """What a run of the tuner found.

    Attributes
    ----------
    task : Task
        What was tuned.
    best : Record or None
        The verified winner; None if no candidate worked. After an interruption it is the best so
        far, and ``best.verified_on`` says whether it was verified.
    trials : list of Record
        Every trial, the default schedule (trial 0) first.
    resumed : int
        How many of them were taken from the log.
    interrupted : bool
        Whether Ctrl-C ended the run early.
    warning : str or None
        What was skipped in the log.
    """

    task: Task
    best: Record | None
    trials: list[Record]
    resumed: int = 0
    interrupted: bool = False
    warning: str | None = None

    @property
    def default(self) -> Record:
        """The default schedule's trial."""
        return self.trials[0]

    @property
    def ranking(self) -> list[Record]:
        """The trials that worked, best first, then those that failed."""
        return best_first(self.trials)

    def edges(self) -> list[str]:
        """Sentences on knobs whose best value ends its range."""
        if self.best is None:
            return []
        return [
            f"The best {knob.name} is {self.best.config[knob.name]}, the end of its range "
            f"{knob.values[0]} to {knob.values[-1]}; a larger one was not tried."
            for knob in self.task.operator.knobs
            if knob.at_upper_edge(self.best.config[knob.name])
        ]


def make_runner(name: str) -> Runner:
    """Build a runner; ``"auto"`` is ``"cuda"`` where there is a GPU, else ``"simulate"``.

    Raises
    ------
    TargetError
        If the name is unknown, or is ``"cuda"`` where there is no GPU.
    """
    if name not in RUNNERS:
        raise TargetError(f"Unknown runner {name!r}; known are {', '.join(RUNNERS)}.")
    if name == "cuda" and not has_gpu():
        raise TargetError("Runner cuda needs a CUDA GPU and there is none; use --runner simulate.")
    return CudaRunner() if name == "cuda" or (name == "auto" and has_gpu()) else SimulatedRunner()


def make_task(operator: str | Operator, shape: Sequence[int], dtype: str, seed: int = 0) -> Task:
    """Check an operator, shape and element type, and put them together.

    Raises
    ------
    ScheduleError
        If the operator is unknown, the shape wrong or too large for it, or it lacks the type.
    """
    found = operator if isinstance(operator, Operator) else find_operator(operator)
    architecture = hardware.architecture(default_arch())
    task = Task(found, found.check_shape(shape), found.check_dtype(dtype), architecture, seed)
    largest = max(math.prod(extents) for extents in task.argument_shapes())
    if largest > _MOST_ELEMENTS:
        raise ScheduleError(
            f"{task.workload} has an array of {largest:,} elements, and the ready schedules index "
            f"with 32 bits: at most {_MOST_ELEMENTS:,} are legal."
        )
    return task


def tune(
    operator: str | Operator,
    *,
    shape: Sequence[int],
    dtype: str = "float32",
    trials: int = 64,
    runner: str = "auto",
    log: str | os.PathLike[str] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Result:
    """Search an operator's knobs for the fastest legal configuration.

    Trial 0 is the default schedule; the others are drawn without repeats from the legal space, in
    an order that the seed fixes. A candidate that fails is one failed trial with its reason. The
    winner is compared with NumPy on fresh inputs before it is named; if that fails it becomes a
    failed trial and the next best is tried.

    Parameters
    ----------
    operator : str or Operator
        Name of a schedule in ``schedules/``, or one of your own.
    shape : sequence of int
        One number a dimension of the operator.
    dtype : str
        Element type.
    trials : int
        How many configurations to try, the default included; fewer if the space is smaller.
    runner : str
        ``"cuda"`` measures; ``"simulate"`` ranks by the simulated GPU's counters, see
        :func:`tvm_layout_ext.tune.cost.modelled_terms`; ``"auto"`` measures where there is a GPU.
    log : path, optional
        Folder to which each trial is appended at once; trials already in it are not run again.
    seed : int
        Of the order of configurations and of the input values.
    progress : callable, optional
        Called after each trial.

    Returns
    -------
    Result
        After Ctrl-C, what was found until then.

    Raises
    ------
    ScheduleError, TargetError, RecordError
        If an argument cannot be, or the log cannot be written.
    """
    trials = whole_number("The number of trials", trials, 1, ScheduleError)
    seed = whole_number("The seed", seed, 0, ScheduleError)
    task = make_task(operator, shape, dtype, seed)
    task.space.default()
    return _Run.open(task, make_runner(runner), log).search(trials, progress or _silent)


def _silent(_record: Record, _done: int, _total: int) -> None:
    """Progress nobody asked for."""


@dataclass
class _Run:
    """The state of one call of ``tune``."""

    task: Task
    runner: Runner
    log: Log | None
    reading: Reading
    trials: list[Record] = field(default_factory=list)
    resumed: int = 0
    interrupt: Interrupt = field(default_factory=Interrupt)

    @classmethod
    def open(cls, task: Task, runner: Runner, folder: str | os.PathLike[str] | None) -> _Run:
        """Start a run, with what the log already holds."""
        if folder is None:
            return cls(task, runner, None, Reading([]))
        log = Log(folder)
        log.prepare()
        return cls(task, runner, log, log.read())

    def search(self, count: int, progress: Progress) -> Result:
        """Run the trials, then verify from the best on."""
        total = min(count, len(self.task.space.legal))
        best, interrupted = None, False
        try:
            with self.interrupt:
                for record in self._records(total):
                    self.trials.append(record)
                    progress(record, len(self.trials), total)
                best = self._verified_best()
        except KeyboardInterrupt:
            interrupted = True
            best = next((r for r in best_first(self.trials) if r.score is not None), None)
        return Result(
            task=self.task,
            best=best,
            trials=self.trials,
            resumed=self.resumed,
            interrupted=interrupted,
            warning=self.reading.warning,
        )

    def _records(self, total: int) -> Iterator[Record]:
        known = {record.id: record for record in self.reading.records}
        configs = itertools.islice(self.task.space.sample(self.task.seed), total)
        for trial, config in enumerate(configs):
            planned = self._blank(trial, config)
            if planned.id in known:
                self.resumed += 1
                yield replace(known[planned.id], trial=trial)
            else:
                yield self._keep(self._try(planned))
            self.interrupt.check()

    def _blank(self, trial: int, config: Config) -> Record:
        return Record(
            time=environment.now(),
            runner=self.runner.name,
            device=self.runner.device,
            arch=self.task.architecture.name,
            versions=environment.versions(),
            workload=self.task.workload,
            trial=trial,
            config=dict(config),
            status="error",
            seed=self.task.seed,
            git_id=environment.git_id(),
        )

    def _try(self, planned: Record) -> Record:
        """Run one candidate; whatever it raises is its own failure."""
        try:
            measured = self.runner.run(self.task, planned.config)
        except Exception as error:
            self.interrupt.check()
            return _failed(planned, error)
        return _worked(planned, self.task, measured)

    def _keep(self, record: Record) -> Record:
        if self.log is not None:
            self.log.append(record)
        return record

    def _verified_best(self) -> Record | None:
        """Verify from the best on; the first that is right is the winner."""
        for record in best_first(self.trials):
            if record.score is None:
                break
            checked = self._verify(record)
            self.trials[self.trials.index(record)] = checked
            if checked.status == "ok":
                return checked
        return None

    def _verify(self, record: Record) -> Record:
        """Verify on fresh inputs, unless an earlier run of the simulator has done it."""
        if record.verified_on is not None and record.runner == "simulate":
            return record
        try:
            workload = self.runner.verify(self.task, record.config)
        except Exception as error:
            self.interrupt.check()
            return self._keep(_failed(record, error))
        if record.verified_on == workload:
            return record
        return self._keep(replace(record, verified_on=workload))


def _failed(record: Record, error: Exception) -> Record:
    """Turn a record into that of a failed trial."""
    text = (str(error).strip() or "no text")[-2000:]
    return replace(
        record,
        time=environment.now(),
        status="error",
        verified_on=None,
        error_class=type(error).__name__,
        error_text=text,
    )


def _worked(planned: Record, task: Task, measured: Measurement) -> Record:
    """Turn a planned record into that of a trial that worked."""
    seconds = measured.median
    flops, traffic = task.operator.flops(task.shape), task.operator.traffic(task.shape, task.dtype)
    return replace(
        planned,
        time=environment.now(),
        status="ok",
        times=measured.times,
        median=seconds,
        spread=measured.spread,
        tflops=flops / seconds / 1e12 if seconds else None,
        gbps=traffic / seconds / 1e9 if seconds else None,
        smem_bytes=measured.smem_bytes,
        registers=measured.registers,
        conflict_model=measured.conflict_model,
        verified_on=measured.verified_on,
    )
