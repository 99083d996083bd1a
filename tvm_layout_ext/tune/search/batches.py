"""TVM's search in batches: one is proposed and built while another is measured."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tvm.s_tir import meta_schedule as ms

from ..._compat import initialise_search
from .interrupt import Interrupt

#: Batches that stay under way while the next one is proposed. Results that come a batch late cost
#: next to nothing: 64 trials replayed on the sweep of a GEMM of 1024x4096x4096 in float16 come to
#: 0.954 of the best at least in ten seeds (median 0.99), batch after batch to 0.955 (median 1.00).
AHEAD = 1
#: Seconds that TVM's database has for a candidate that failed.
FAILED = 1e10


@dataclass
class _Batch:
    """Candidates under way; those that could not be built have no future."""

    candidates: list[Any]
    built: list[Any]
    futures: list[Any]

    def results(self) -> list[Any]:
        """Wait for all, in their order."""
        return [
            ms.runner.RunnerResult(None, build.error_msg) if future is None else future.result()
            for build, future in zip(self.built, self.futures, strict=True)
        ]


class Batches:
    """Drives the search strategy, builder, runner and cost model of one task.

    TVM's task scheduler waits for a batch before it asks for the next, so that most cores and the
    GPU idle. Here ``ahead`` batches are under way meanwhile. Batch ``k`` is proposed with the
    results of the batches up to ``k - 1 - ahead``, whatever else has come in: a search depends on
    its seed and on results, never on when they came. Builder and runner begin, and do not wait.
    """

    def __init__(
        self,
        context: ms.TuneContext,
        builder: Any,
        runner: Any,
        model: Any,
        ahead: int = AHEAD,
        interrupt: Interrupt | None = None,
    ) -> None:
        self._context, self._model, self._ahead = context, model, ahead
        self._interrupt = interrupt or Interrupt()
        self._builder, self._runner = builder, runner
        self._database = ms.database.MemoryDatabase()
        self._workload = self._database.commit_workload(context.mod)
        self._flight: deque[_Batch] = deque()

    def run(self, trials: int, size: int) -> None:
        """Try ``trials`` candidates, ``size`` at a time; fewer if the strategy has no more."""
        with self._interrupt.held():
            initialise_search(self._context)
            spaces = self._context.generate_design_space()
            self._context.pre_tuning(trials, size, spaces, self._database, self._model)
        left = trials
        while left > 0 and (proposed := self._propose()) is not None:
            # The strategy counts only those of which it has results.
            chosen = list(islice(proposed, left))
            left -= len(chosen)
            self._flight.append(self._begin(chosen))
            while len(self._flight) > self._ahead:
                self._land()
        while self._flight:
            self._land()
        self._context.post_tuning()

    def _propose(self) -> Any:
        with self._interrupt.held():
            return self._context.generate_measure_candidates()

    def _begin(self, candidates: list[Any]) -> _Batch:
        target = self._context.target
        built = self._builder.build(
            [ms.builder.BuilderInput(one.sch.mod, target) for one in candidates]
        )
        inputs = [
            ms.runner.RunnerInput(build.artifact_path, target.kind.name, one.args_info)
            for one, build in zip(candidates, built, strict=True)
            if build.error_msg is None
        ]
        begun = iter(self._runner.run(inputs))
        futures = [next(begun) if build.error_msg is None else None for build in built]
        return _Batch(candidates, list(built), futures)

    def _land(self) -> None:
        """Wait for the oldest batch, and show it to the strategy and to the cost model."""
        batch = self._flight.popleft()
        results = batch.results()
        with self._interrupt.held():
            self._context.notify_runner_results(batch.candidates, results)
            for candidate, result in zip(batch.candidates, results, strict=True):
                self._commit(candidate, result)
            self._learn(batch, results)

    def _commit(self, candidate: Any, result: Any) -> None:
        seconds = [FAILED] if result.run_secs is None else result.run_secs
        target, trace = self._context.target, candidate.sch.trace
        self._database.commit_tuning_record(
            ms.database.TuningRecord(trace, self._workload, seconds, target, candidate.args_info)
        )

    def _learn(self, batch: _Batch, results: Sequence[Any]) -> None:
        """Hand on what was run; there is nothing to learn from what was not built."""
        ran = [
            (candidate, result)
            for candidate, future, result in zip(
                batch.candidates, batch.futures, results, strict=True
            )
            if future is not None
        ]
        candidates, learnt = [one for one, _ in ran], [result for _, result in ran]
        self._model.update(self._context, candidates, learnt)
