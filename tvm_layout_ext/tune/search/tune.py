"""``tune``: try configurations of an operator, keep a record of each, name a verified winner."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tvm
from tvm import s_tir, tirx
from tvm.target import Target

from ...build import build, cuda_source
from ...checks import is_function, is_one_of, whole_number
from ...errors import RecordError, ScheduleError
from ...target import cuda_target
from ..measure.backend import Runner
from ..measure.backend_pool import BackendPool
from ..measure.environment import code_versions
from ..records.log import Reading, Record
from ..records.record import best_first
from ..records.records import Records
from ..space.knobs import Config, Knob
from ..space.operator import Operator, operator_of
from ..space.task import Task, make_task
from .history import History
from .prepare import Prepared
from .run import STRATEGIES, Run

#: Called after each trial with its record, how many are done, and how many there will be.
Progress = Callable[[Record, int, int], None]


@dataclass(frozen=True, repr=False)
class Result:
    """What a run of the tuner found.

    ``trials`` has the default schedule first, ``resumed`` of them are from the log. ``best`` is the
    verified winner, or None; after an interruption ``best.verified_on`` says whether it was
    verified. ``warning`` says what was skipped in the log. ``lower``, ``build``, ``simulate`` and
    ``explain`` take a result for the schedule of its winner.
    """

    task: Task
    best: Record | None
    trials: list[Record]
    resumed: int = 0
    interrupted: bool = False
    warning: str | None = None

    def __repr__(self) -> str:
        best, trials = self.best, f"{len(self.trials)} trials of {self.task.workload}"
        if best is None:
            return f"Result: no winner in {trials}"
        gain = ""
        if best.score and self.default.score:
            gain = f", {self.default.score / best.score:.2f} times as fast as the default"
        return f"Result: trial {best.trial} wins {trials}{gain}\n  {best!r}"

    @property
    def default(self) -> Record:
        """The default schedule's trial."""
        return self.trials[0]

    @property
    def ranking(self) -> list[Record]:
        """The trials that worked, best first, then those that failed."""
        return best_first(self.trials)

    @property
    def target(self) -> Target:
        """What its kernels are for."""
        return cuda_target(self.task.architecture.name)

    def schedule(self) -> s_tir.Schedule:
        """The winner's schedule; RecordError if no trial worked."""
        if self.best is None:
            raise RecordError(
                f"No trial of {self.task.workload} worked, so there is no kernel; "
                "error_text of result.trials says why."
            )
        return self.task.schedule(self.best.config)

    def build(self) -> Any:
        """The winner, compiled: :func:`tvm_layout_ext.build`."""
        return build(self.schedule(), target=self.target)

    @property
    def cuda(self) -> str:
        """The winner's CUDA source."""
        return cuda_source(self.schedule(), target=self.target)

    def edges(self) -> list[str]:
        """Sentences on knobs whose best value ends its range."""
        if self.best is None:
            return []
        return [
            f"The best {knob.name} is {knob.of(self.best.config)}, the end of its range "
            f"{knob.values[0]} to {knob.values[-1]}; a larger one was not tried."
            for knob in self.task.operator.knobs
            if knob.at_upper_edge(knob.of(self.best.config))
        ]


def tune(
    what: str | Operator | tirx.PrimFunc | tvm.IRModule,
    target: str | Target | None = None,
    *,
    schedule: Callable[[s_tir.Schedule, Config], Any] | None = None,
    knobs: Sequence[Knob] = (),
    shape: Sequence[int] = (),
    dtype: str | None = None,
    trials: int = 64,
    runner: str | Runner | BackendPool = "auto",
    log: str | os.PathLike[str] | None = None,
    seed: int = 0,
    strategy: str = "evolutionary",
    progress: Progress | Literal[False] | None = None,
) -> Result:
    """Search the knobs of an operator, or of a function, for the fastest legal configuration.

    Trial 0 is the default schedule. A closed-form latency model chooses the next 16, which are
    built at once, and TVM's tuner (:mod:`tvm.s_tir.meta_schedule`) the others by boosted trees. The
    best few are timed again in turns, and the winner is compared with the reference on fresh
    inputs. A candidate that fails, or is wrong, is one failed trial with its reason. After Ctrl-C
    the result is what was found until then. What cannot be is refused by a ScheduleError, a
    TargetError or a RecordError.

    Parameters
    ----------
    what : str, Operator, PrimFunc or IRModule
        Name of a schedule in ``schedules/``, an operator, or an unscheduled function.
    target : str or tvm.target.Target, optional
        By default :func:`tvm_layout_ext.default_target`.
    schedule, knobs : callable and sequence of Knob, optional
        For a function: your own ``schedule(sch, config)`` and what it leaves open.
    shape, dtype : sequence of int and str, optional
        Of an operator; a function has its own.
    trials : int
        How many configurations to try, the default included; fewer if the space is smaller.
    runner : str
        ``"cuda"`` measures here, ``"rpc:HOST:PORT:KEY"`` on a tracker's servers, ``"simulate"``
        ranks by :func:`.cost.modelled_terms`; ``"auto"`` measures where there is a GPU. A
        :class:`.BackendPool` serves several calls with the same processes.
    log : path, optional
        Folder of the records; trials that are in it are not run again.
    seed : int
        Of the search and of the input values.
    strategy : str
        ``"evolutionary"``: guided by the cost model. ``"replay"``: drawn at random.
    progress : callable, optional
        Called after each trial with its record, how many are done, and how many there will be.
    """
    trials = whole_number("The number of trials", trials, 1, ScheduleError)
    seed = whole_number("The seed", seed, 0, ScheduleError)
    tell = _teller(progress)
    task = make_task(_operator(what, schedule, knobs), shape, dtype, seed, target)
    if not is_one_of(strategy, STRATEGIES):
        raise ScheduleError(f"Unknown strategy {strategy!r}; known are {', '.join(STRATEGIES)}.")
    pool = runner if isinstance(runner, BackendPool) else BackendPool(runner)
    # Before all else, as its processes take seconds to start.
    backend = pool.backend(task)
    try:
        prepared = pool.prepared.pop(task, None) or Prepared(task)
        records = None if log is None else Records(log)
        reading = Reading([]) if records is None else records.prepare()
        run = Run(prepared, backend, records, reading, trials, tell, pool.meanwhile)
        best, interrupted = run.search(strategy)
    finally:
        if pool is not runner:
            pool.close()
    history = run.history
    warning = _warning(reading, history)
    return Result(task, best, history.trials, history.resumed, interrupted, warning)


def _warning(reading: Reading[Record], history: History) -> str | None:
    told = reading.warning, _of_other_versions(reading, history), _of_other_schedules(history)
    return " ".join(filter(None, told)) or None


def _teller(progress: Any) -> Progress | None:
    if progress is None or progress is False:
        return None
    if not is_function(progress):
        raise ScheduleError(
            f"progress is a function of (record, done, total), or False, not {progress!r}."
        )
    told: Progress = progress
    return told


def _of_other_versions(reading: Reading[Record], history: History) -> str | None:
    """A sentence that counts the workload's records that were not gone on from for their age."""
    here, now = history.trials[0] if history.trials else None, code_versions()
    if here is None:
        return None
    place = (here.workload.hash, here.runner, here.arch)
    old = [
        one
        for one in reading.records
        if (one.workload.hash, one.runner, one.arch) == place and one.code_versions != now
    ]
    if not old:
        return None
    found = ", ".join(sorted({"{} and {}".format(*one.code_versions) for one in old}))
    return (
        f"Skipped {len(old)} {'record' if len(old) == 1 else 'records'} by other versions of TVM "
        f"and this package ({found}) than these, {now[0]} and {now[1]}."
    )


def _of_other_schedules(history: History) -> str | None:
    """A sentence that counts the candidates that a changed schedule made to be run again."""
    if not (count := len(history.changed)):
        return None
    return (
        f"Ran {count} {'candidate' if count == 1 else 'candidates'} again, which the log has of "
        "another schedule with these knobs."
    )


def _operator(
    what: str | Operator | tirx.PrimFunc | tvm.IRModule,
    schedule: Callable[[s_tir.Schedule, Config], Any] | None,
    knobs: Sequence[Knob],
) -> str | Operator:
    if isinstance(what, tirx.PrimFunc | tvm.IRModule):
        return operator_of(what, schedule, knobs)
    if not isinstance(what, str | Operator):
        raise ScheduleError(
            f"Cannot tune a {type(what).__name__}; give a PrimFunc, a module of one, an Operator, "
            "or the name of a schedule in schedules/."
        )
    if schedule is not None or knobs:
        raise ScheduleError("A schedule and knobs of your own belong to a PrimFunc; give one.")
    return what
