"""The trials of a run: written down at once, looked up before anything is run again."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import FrameType
from typing import Any

import tvm
from tvm.s_tir import meta_schedule as ms

from ..measure import environment
from ..measure.backend import Backend, Begun, Measurement, ReportedError, config_key
from ..records.log import Reading
from ..records.record import Record, best_first
from ..records.records import Records
from ..space.candidate import config_of
from ..space.knobs import Config
from ..space.task import Task
from .design import Candidates


class Interrupt:
    """While entered, remembers that Ctrl-C was pressed, beside raising KeyboardInterrupt.

    Raised inside a callback from C++ the exception may come out as another one or not at all. TVM's
    search, whose callbacks run in threads, ends the process by it: see :meth:`held`.
    """

    def __init__(self) -> None:
        self.asked = False
        self._holders = 0
        self._previous: Any = None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True
        if not self._holders:
            raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let Ctrl-C wait for the end of a block, of nested ones the outermost."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
        if not self._holders:
            self.check()

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed since the block was entered."""
        if self.asked:
            raise KeyboardInterrupt


_LONGEST_TEXT = 2000
#: How many of the best are timed again before one is named.
FINALISTS = 3


@dataclass
class History:
    """What is known of one task's candidates, from a log and from this run.

    Trial 0 is the default schedule, ``resumed`` were in the log, ``changed`` are those that another
    schedule made, which run again.
    """

    candidates: Candidates
    backend: Backend
    records: Records | None
    reading: Reading[Record]
    limit: int
    progress: Callable[[Record, int, int], None] | None
    interrupt: Interrupt
    #: Does something of use while a trial is waited for; whether it did.
    meanwhile: Callable[[], bool] = bool
    trials: list[Record] = field(default_factory=list)
    resumed: int = 0
    changed: set[str] = field(default_factory=set)

    @property
    def task(self) -> Task:
        """What is tuned."""
        return self.candidates.task

    @property
    def total(self) -> int:
        """How many candidates will have been tried, by what is known of the space by now."""
        return min(self.limit, len(self.task.space.legal))

    def __post_init__(self) -> None:
        self._logged = {record.id: record for record in self.reading.records}
        self._position: dict[str, int] = {}
        self._begun: dict[tuple[Any, ...], Begun] = {}

    def begin(self, modules: Sequence[tvm.IRModule]) -> list[Begun]:
        """Begin to build and run the candidates of which nothing is known yet."""
        self.interrupt.check()
        configs = [config_of(module, self.task.operator.knobs) for module in modules]
        fresh: dict[tuple[Any, ...], tuple[Config, tvm.IRModule]] = {}
        for config, module in zip(configs, modules, strict=True):
            key = config_key(config)
            if record := self.known(config):
                # One that failed fails: the cost model learns from it as at first.
                self._begun[key] = Begun(partial(_result, record), lambda: True)
            elif key not in self._begun:
                fresh[key] = config, module
        begun = self.backend.begin(list(fresh.values())) if fresh else []
        for (key, (asked, _)), one in zip(fresh.items(), begun, strict=True):
            self._begun[key] = Begun(partial(self._ended, asked, one), one.done)
        return [self._begun[config_key(config)] for config in configs]

    def _ended(self, config: Config, begun: Begun) -> Any:
        """Wait for a trial and write it down; what TVM's tuner learns of it."""
        try:
            measured: Measurement | ReportedError = begun.result()
        except ReportedError as error:
            measured = error
        with self.interrupt.held():
            if record := self._trial(config):
                # Ctrl-C came while it was written down, and it is asked for again.
                return _result(record)
            if isinstance(measured, ReportedError):
                return _result(self.failed(config, str(measured)))
            done = worked(self._planned(config), self.task, measured)
            return _result(self._enter(self._keep(done)))

    def wait(self, begun: Begun) -> Any:
        """Wait for a trial that was begun; what TVM's tuner learns of it."""
        while not begun.done() and self.meanwhile():
            pass
        return begun.result()

    def foresee(self) -> None:
        """Let the backend know which trials lead, before the last ones have ended."""
        ranked = [one for one in best_first(self.trials) if one.score is not None]
        self.backend.foresee([one.config for one in ranked[:FINALISTS]])

    def note_finished(self) -> None:
        """Write down trials that have ended since, after Ctrl-C."""
        for one in self._begun.values():
            if one.done():
                with suppress(KeyboardInterrupt):
                    one.result()

    def begun(self, config: Config) -> bool:
        """Whether a candidate is under way, or has been."""
        return config_key(config) in self._begun or self._trial(config) is not None

    def is_logged(self, config: Config) -> bool:
        """Whether the log has a record of a candidate."""
        return self._blank(config).id in self._logged

    def _trial(self, config: Config) -> Record | None:
        """The record of a candidate that is a trial of this run already."""
        position = self._position.get(self._blank(config).id)
        return None if position is None else self.trials[position]

    def known(self, config: Config) -> Record | None:
        """The record of a candidate that need not be run; a logged one becomes a trial now."""
        if record := self._trial(config):
            return record
        blank = self._blank(config)
        logged = self._logged.get(blank.id)
        if logged is None:
            return None
        if logged.program != self.candidates.program(config):
            self.changed.add(blank.id)
            return None
        self.resumed += 1
        return self._enter(replace(logged, trial=blank.trial))

    def failed(self, config: Config, text: str) -> Record:
        """Write down a trial that did not, with its reason."""
        self.interrupt.check()
        with self.interrupt.held():
            return self._enter(self._keep(failed(self._planned(config), text)))

    def correct(self, record: Record) -> Record:
        """Put a later record in the place of a trial's first one."""
        with self.interrupt.held():
            self.trials[self._position[record.id]] = self._keep(record)
        return record

    def _enter(self, record: Record) -> Record:
        self._position[record.id] = len(self.trials)
        self.trials.append(record)
        if self.progress is not None:
            self.progress(record, len(self.trials), self.total)
        return record

    def _keep(self, record: Record) -> Record:
        if self.records is not None:
            self.records.add(self.task, record, self.candidates.schedule(record.config))
        return record

    def _planned(self, config: Config) -> Record:
        return replace(self._blank(config), program=self.candidates.program(config))

    def _blank(self, config: Config) -> Record:
        return Record(
            time=environment.now(),
            runner=self.backend.name,
            device=self.backend.device,
            arch=self.task.architecture.name,
            versions=environment.versions(),
            workload=self.task.workload,
            trial=len(self.trials),
            config=dict(config),
            status="error",
            seed=self.task.seed,
            git_id=environment.git_id(),
        )


def failed(record: Record, text: str) -> Record:
    """Turn a record into that of a failed trial; ``text`` begins with the error's class."""
    kind, _, sentence = text.strip().partition(": ")
    if not (sentence and kind.isidentifier()):
        kind, sentence = "RuntimeError", text.strip()
    return replace(
        record,
        time=environment.now(),
        status="error",
        verified_on=None,
        error_class=kind,
        error_text=sentence[-_LONGEST_TEXT:] or "no text",
    )


def worked(planned: Record, task: Task, measured: Measurement) -> Record:
    """Turn a planned record into that of a trial that worked."""
    seconds = measured.median
    flops, traffic = task.operator.flops(task.shape), task.operator.traffic(task.shape, task.dtype)
    return replace(
        planned,
        time=environment.now(),
        status="ok",
        median=seconds,
        spread=measured.spread,
        tflops=flops / seconds / 1e12 if seconds else None,
        gbps=traffic / seconds / 1e9 if seconds else None,
        **{one.name: getattr(measured, one.name) for one in fields(measured)},
    )


def _result(record: Record) -> Any:
    """What TVM's tuner learns of a trial; of one that failed, the reason."""
    if record.status == "ok":
        return ms.runner.RunnerResult([float(record.score or 0.0)], None)
    return ms.runner.RunnerResult(None, f"{record.error_class}: {record.error_text}")
