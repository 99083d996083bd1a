"""The trials of a run: written down at once, looked up before anything is run again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from ..measure import environment
from ..measure.backend import Backend, config_key
from ..measure.measurement import Measurement
from ..records.log import Reading
from ..records.record import Record
from ..space.candidate import config_of
from ..space.knobs import Config
from ..space.task import Task
from .interrupt import Interrupt

_KNOWN = "known:"
_LONGEST_TEXT = 2000


@dataclass
class History:
    """What is known of one task's candidates, from a log and from this run.

    ``keep`` writes a record down for good, ``told`` is called with each trial of this run,
    ``program`` gives the :attr:`Record.program` of a configuration by now. Of ``trials``, 0 is the
    default schedule and ``resumed`` were in the log; ``changed`` are those that another schedule
    made, which run again.
    """

    task: Task
    backend: Backend
    keep: Callable[[Record], None]
    reading: Reading
    told: Callable[[Record], None]
    interrupt: Interrupt
    program: Callable[[Config], str | None]
    trials: list[Record] = field(default_factory=list)
    resumed: int = 0
    changed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._logged = {record.id: record for record in self.reading.records}
        self._position: dict[str, int] = {}

    def tried(self, config: Config) -> bool:
        """Whether a candidate is a trial of this run already."""
        return self._blank(config).id in self._position

    def known(self, config: Config) -> Record | None:
        """The record of a candidate that need not be run; a logged one becomes a trial now."""
        blank = self._blank(config)
        if blank.id in self._position:
            return self.trials[self._position[blank.id]]
        logged = self._logged.get(blank.id)
        if logged is None:
            return None
        if logged.program != self.program(config):
            self.changed.add(blank.id)
            return None
        self.resumed += 1
        return self._enter(replace(logged, trial=blank.trial))

    def succeeded(self, config: Config, measured: Measurement) -> Record:
        """Write down a trial that worked."""
        with self.interrupt.held():
            return self._enter(self._keep(worked(self._planned(config), self.task, measured)))

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
        self.told(record)
        return record

    def _keep(self, record: Record) -> Record:
        self.keep(record)
        return record

    def _planned(self, config: Config) -> Record:
        return replace(self._blank(config), program=self.program(config))

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
        times=measured.times,
        median=seconds,
        spread=measured.spread,
        tflops=flops / seconds / 1e12 if seconds else None,
        gbps=traffic / seconds / 1e9 if seconds else None,
        smem_bytes=measured.smem_bytes,
        registers=measured.registers,
        spill_bytes=measured.spill_bytes,
        conflict_model=measured.conflict_model,
        verified_on=measured.verified_on,
        l2=measured.l2,
        protocol=measured.protocol,
        clock_mhz=measured.clock_mhz,
        server=measured.server,
        phases=measured.phases,
    )


_TWICE = ms.builder.BuilderResult(None, "This candidate is being tried already.")


@derived_object
class CachingBuilder(ms.builder.PyBuilder):
    """Begins to build the candidates of which nothing is known yet.

    One that cannot be built is told of when it is run, so that others run meanwhile.
    """

    def __init__(self, history: History, configs: dict[str, dict[str, Any]]) -> None:
        super().__init__()
        self.history, self.configs = history, configs
        self._begun: set[tuple[Any, ...]] = set()

    def build(self, build_inputs: Sequence[Any]) -> list[Any]:
        """Begin with the unknown ones; results are in the order of the inputs."""
        self.history.interrupt.check()
        knobs = self.history.task.operator.knobs
        configs = [config_of(given.mod, knobs) for given in build_inputs]
        known = [self.history.known(config) for config in configs]
        # TVM's replay may draw a candidate twice, in one batch or while an earlier one is tried.
        again = [not record and self._is_begun(c) for c, record in zip(configs, known, strict=True)]
        fresh = [
            given
            for given, record, twice in zip(build_inputs, known, again, strict=True)
            if record is None and not twice
        ]
        built = iter(self.history.backend.build(fresh) if fresh else ())
        return [
            self._old(record) if record else _TWICE if twice else self._fresh(next(built), config)
            for config, record, twice in zip(configs, known, again, strict=True)
        ]

    def _is_begun(self, config: Config) -> bool:
        """Whether a candidate was begun before; now it is."""
        key = config_key(config)
        begun = key in self._begun
        self._begun.add(key)
        return begun

    def _fresh(self, artifact: str, config: dict[str, Any]) -> Any:
        self.configs[artifact] = config
        return ms.builder.BuilderResult(artifact, None)

    def _old(self, record: Record) -> Any:
        # One that failed is run, too, and fails: the cost model learns from it as at first.
        said = (
            f"{record.error_class}: {record.error_text}" if record.score is None else record.score
        )
        return ms.builder.BuilderResult(f"{_KNOWN}{json.dumps(said)}", None)


@derived_object
class CachingRunner(ms.runner.PyRunner):
    """Runs what was built, and answers for the rest."""

    def __init__(self, history: History, configs: dict[str, dict[str, Any]]) -> None:
        super().__init__()
        self.history, self.configs = history, configs
        self._begun: list[Any] = []

    def run(self, runner_inputs: Sequence[Any]) -> list[Any]:
        """Start the unknown ones; futures are in the order of the inputs."""
        said = [_said(given) for given in runner_inputs]
        pairs = list(zip(runner_inputs, said, strict=True))
        fresh = [str(given.artifact_path) for given, known in pairs if known is None]
        futures = iter(self.history.backend.run(fresh) if fresh else ())
        return [
            self._noted(next(futures), given) if known is None else _Answer(known)
            for given, known in pairs
        ]

    def note_finished(self) -> None:
        """Write down trials that have ended since, after Ctrl-C."""
        for one in self._begun:
            if not one.noted and one.done():
                with suppress(KeyboardInterrupt):
                    one.result()

    def _noted(self, future: Any, given: Any) -> Any:
        artifact = str(given.artifact_path)
        self._begun.append(_Noted(self.history, self.configs[artifact], artifact, future))
        return self._begun[-1]


def _said(given: Any) -> Any:
    """What became of a candidate that was run before, a score or an error; None of a fresh one."""
    path = str(given.artifact_path)
    return json.loads(path.removeprefix(_KNOWN)) if path.startswith(_KNOWN) else None


@derived_object
class _Answer(ms.runner.PyRunnerFuture):
    """The score, or the error, of a candidate that was run before."""

    def __init__(self, said: float | str) -> None:
        super().__init__()
        self.said = said

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        if isinstance(self.said, str):
            return ms.runner.RunnerResult(None, self.said)
        return ms.runner.RunnerResult([self.said], None)


@derived_object
class _Noted(ms.runner.PyRunnerFuture):
    """Writes a trial down when its result is there."""

    def __init__(self, history: History, config: Config, artifact: str, future: Any) -> None:
        super().__init__()
        self.history, self.config = history, config
        self.artifact, self.future = artifact, future
        self.noted = False

    def done(self) -> bool:
        return bool(self.future.done())

    def result(self) -> Any:
        result = self.future.result()
        with self.history.interrupt.held():
            self.noted = True
            if result.error_msg is not None:
                self.history.failed(self.config, str(result.error_msg))
                return result
            measured = self.history.backend.read(self.artifact, self.config)
            record = self.history.succeeded(self.config, measured)
        return ms.runner.RunnerResult([float(record.score or 0.0)], None)
