"""One run of the tuner: the default, then TVM's search, then what it left, then the finalists."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

from tvm import s_tir
from tvm.s_tir import meta_schedule as ms

from ..._compat import without_tensor_intrinsics
from ...errors import RecordError
from ...target import cuda_target
from ..measure.backend import Backend, failure_text
from ..model.latency import least_seconds
from ..records.log import Reading, Record
from ..records.record import best_first
from ..records.records import Records
from ..space.candidate import config_of
from ..space.knobs import Config
from .batches import Batches
from .cost_model import GuidedModel
from .design import space_generator
from .history import FINALISTS, History, Interrupt, failed, worked
from .prepare import BATCH, FIRST, Prepared

STRATEGIES = ("evolutionary", "replay")
#: A search ends where the default is so near to the least that its bytes take.
NEAR = 0.02
#: Of the evolutionary search, for each batch.
GENERATIONS = 2

_logger = logging.getLogger("tvm_layout_ext.search")
_logger.addHandler(logging.NullHandler())
_logger.propagate = False


class Run:
    """The state of one call of ``tune``; ``reading`` is what the log held when it began."""

    def __init__(
        self,
        prepared: Prepared,
        backend: Backend,
        records: Records | None,
        reading: Reading[Record],
        trials: int,
        progress: Callable[[Record, int, int], None] | None,
        meanwhile: Callable[[], bool] = bool,
    ) -> None:
        self.task, self.backend, self.prepared = prepared.task, backend, prepared
        self.interrupt = Interrupt()
        self.candidates = prepared.candidates
        self.history = History(
            self.candidates,
            backend,
            records,
            reading,
            trials,
            progress,
            self.interrupt,
            meanwhile,
        )
        #: Finalists of this run, which have not met fresh inputs.
        self._timed: set[str] = set()
        #: Trials under way, the first begun first.
        self._begun: list[Any] = []

    def search(self, strategy: str) -> tuple[Record | None, bool]:
        """Try the candidates and name a winner; whether Ctrl-C ended it early."""
        try:
            with self.interrupt:
                guided = strategy == "evolutionary" and self.history.total > 1
                if guided:
                    self._ahead()
                self._begin([self.prepared.default])
                if guided and self._left():
                    self._guided()
                self._settle()
                self._fill()
                self._settle()
                return self._winner(), False
        except BaseException as error:
            # What was raised in a callback from C++ may have come out as something else.
            pressed = self.interrupt.asked or isinstance(error, KeyboardInterrupt)
            if isinstance(error, RecordError) or not pressed:
                raise
            self.history.note_finished()
            ranked = best_first(self.history.trials)
            return next((r for r in ranked if r.score is not None), None), True

    def _left(self) -> int:
        return self.history.total - len(self.history.trials) - len(self._begun)

    def _begin(self, configs: Iterable[Config]) -> None:
        """Begin to build and run some candidates as TVM's tuner would."""
        scheduled = [(config, self.candidates.schedule(config)) for config in configs]
        for config, sch in scheduled:
            if sch is not None or not self.candidates.is_legal(config):
                continue
            if self.history.known(config) is None:
                error = self.candidates.failed[self.candidates.key(config)]
                self.history.failed(config, failure_text(error))
        for one in self.history.begin([sch.mod for _, sch in scheduled if sch]):
            if one.done():
                # What the log answers is a trial by now and must not be counted as begun, too.
                one.result()
            else:
                self._begun.append(one)

    def _ahead(self) -> None:
        """Begin to build the default, to rank others, and to build the first of these."""
        default = self.candidates.schedule(self.prepared.default)
        is_ahead = default is not None and self._build([default])
        self.prepared.rank(self.backend.asked, self.history.total)
        if is_ahead and self.history.total > BATCH:
            # The default's result decides whether others are run, but they take longer to build.
            self._build(self.prepared.first(self.history.total))

    def _build(self, schedules: Iterable[s_tir.Schedule]) -> bool:
        is_final, begun = self.history.total <= FINALISTS, False
        for sch in schedules:
            config = config_of(sch.mod, self.task.operator.knobs)
            if not self.history.is_logged(config):
                begun |= self.backend.prepare(self.task, config, sch.mod, is_final)
        return begun

    def _settle(self) -> None:
        """Wait for the trials that were begun, and write them down."""
        while self._begun:
            if len(self._begun) == 1 and self.history.total > FINALISTS:
                self.history.foresee()
            self.history.wait(self._begun.pop(0))

    def _guided(self) -> None:
        """Let TVM's evolutionary search choose, by modelled latency and then by boosted trees."""
        first = self.prepared.first(self.history.total)
        if self.history.total <= BATCH:
            self._build(first)
        else:
            self._settle()
            if self._is_at_the_bound():
                self.history.limit = len(self.history.trials)
                return
        if self._left() <= FIRST:
            # No result comes in time to tell what to try next.
            self._begin(config_of(sch.mod, self.task.operator.knobs) for sch in first)
            return
        start = self.prepared.population(self.history.total)
        strategy = ms.search_strategy.EvolutionarySearch(
            population_size=len(start),
            init_measured_ratio=0.3,
            init_min_unmeasured=1,
            genetic_num_iters=GENERATIONS,
            genetic_mutate_prob=0.85,
            eps_greedy=0.1,
        )
        self._tune(first, start, strategy, GuidedModel(self.prepared.facts, self.task.seed))

    def _is_at_the_bound(self) -> bool:
        """Whether the default takes as long as its bytes do, and nothing is left to be gained.

        Where it takes less, as a gather that reads a part of a table, the bytes are no bound.
        """
        default = self.history.trials[0]
        if default.l2 != "rotated" or default.score is None:
            return False
        return abs(default.score / least_seconds(self.task) - 1) <= NEAR

    def _tune(
        self, first: list[s_tir.Schedule], start: list[s_tir.Schedule], strategy: Any, model: Any
    ) -> None:
        if not start or not self._left():
            return
        with without_tensor_intrinsics():
            context = ms.TuneContext(
                mod=self.task.unscheduled,
                target=cuda_target(self.task.architecture.name),
                space_generator=space_generator(self.candidates, start, self.task.seed),
                search_strategy=strategy,
                task_name=str(self.task.workload),
                rand_state=self.task.seed + 1,
                num_threads=1,
                logger=_logger,
            )
        Batches(context, self.history, model, self.interrupt).run(first, self._left(), BATCH)

    def _fill(self) -> None:
        """Try others in the order of the seed, a batch beside the one that is under way."""
        fresh = (c for c in self.task.space.sample(self.task.seed) if not self.history.begun(c))
        while batch := list(islice(fresh, min(BATCH, self._left()))):
            self._begin(batch)
            while len(self._begun) > BATCH:
                self.history.wait(self._begun.pop(0))

    def _winner(self) -> Record | None:
        """Time the best few again in turns, and verify from the best on.

        Finalists go before other trials, whose times are of other moments.
        """
        self._remeasure()
        ranked = [one for one in best_first(self.history.trials) if one.score is not None]
        for record in sorted(ranked, key=lambda one: one.kind != "finalist"):
            checked = self._verified(record)
            if checked.status == "ok":
                return checked
        return None

    def _remeasure(self) -> None:
        ranked = [r for r in best_first(self.history.trials) if r.score is not None]
        finalists = ranked[:FINALISTS]
        if not finalists or all(record.kind == "finalist" for record in finalists):
            return
        again = self.backend.remeasure([record.config for record in finalists])
        for record, measured in zip(finalists, again, strict=True):
            if measured is not None:
                timed = replace(worked(record, self.task, measured), kind="finalist")
                self._timed.add(record.id)
                self.history.correct(replace(timed, verified_on=record.verified_on))

    def _verified(self, record: Record) -> Record:
        """Verify on fresh inputs, unless an earlier run has done it for this very record."""
        done = record.verified_on is not None
        is_older = record.kind == "finalist" and record.id not in self._timed
        if done and (not record.measured or is_older):
            return record
        try:
            workload = self.backend.verify(record.config)
        except Exception as error:
            self.interrupt.check()
            return self.history.correct(failed(record, failure_text(error)))
        return self.history.correct(replace(record, verified_on=workload))
