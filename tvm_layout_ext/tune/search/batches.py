"""TVM's search in batches: one is proposed and built while another is measured."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from tvm import s_tir
from tvm.s_tir import meta_schedule as ms

from ..._compat import initialise_search
from ..space.candidate import config_of
from .history import History, Interrupt

#: Batches that stay under way while the next one is proposed. Results that come a batch late cost
#: next to nothing: 64 trials replayed on the sweep of a GEMM of 1024x4096x4096 in float16 come to
#: 0.954 of the best at least in ten seeds (median 0.99), batch after batch to 0.955 (median 1.00).
AHEAD = 1
#: Proposals in which nothing is new before the strategy counts as at its end.
ATTEMPTS = 3
#: Seconds that TVM's database has for a candidate that failed.
FAILED = 1e10


class Batches:
    """Drives the search strategy and the cost model of one task.

    TVM's task scheduler waits for a batch before it asks for the next. Here :data:`AHEAD` batches
    are under way meanwhile. Batch ``k`` is proposed with the results of the batches up to ``k - 1 -
    AHEAD``, whatever else has come in, so that a search depends on its seed and on results alone.
    """

    def __init__(
        self, context: ms.TuneContext, history: History, model: Any, interrupt: Interrupt
    ) -> None:
        self._context, self._model, self._interrupt = context, model, interrupt
        self._history = history
        self._database = ms.database.MemoryDatabase()
        self._workload = self._database.commit_workload(context.mod)
        #: Candidates under way, and their futures.
        self._flight: deque[tuple[list[Any], list[Any]]] = deque()

    def run(self, first: Sequence[s_tir.Schedule], trials: int, size: int) -> None:
        """Try ``trials`` candidates, ``size`` at a time, the ``first`` ones before any proposal.

        Fewer if the strategy has no more.
        """
        with self._interrupt.held():
            initialise_search(self._context)
            spaces = self._context.generate_design_space()
            self._context.pre_tuning(trials, size, spaces, self._database, self._model)
        arguments = ms.arg_info.ArgInfo.from_prim_func(self._context.mod["main"])
        known = [ms.MeasureCandidate(sch, arguments) for sch in first]
        given = deque(known[start : start + size] for start in range(0, len(known), size))
        left = trials
        while left > 0 and (proposed := given.popleft() if given else self._propose()):
            # The strategy counts only those of which it has results.
            chosen = proposed[:left]
            left -= len(chosen)
            self._flight.append((chosen, self._history.begin([one.sch.mod for one in chosen])))
            while len(self._flight) > AHEAD:
                self._land()
        while self._flight:
            self._land()
        self._context.post_tuning()

    def _propose(self) -> list[Any]:
        """What the strategy tries next, without what was tried before it was asked."""
        knobs = self._history.task.operator.knobs
        for _ in range(ATTEMPTS):
            with self._interrupt.held():
                proposed = self._context.generate_measure_candidates() or []
            fresh = [one for one in proposed if not self._history.begun(config_of(one.sch, knobs))]
            if fresh or not proposed:
                return fresh
        return []

    def _land(self) -> None:
        """Wait for the oldest batch, and show it to the strategy and to the cost model."""
        candidates, futures = self._flight.popleft()
        results = [self._history.wait(future) for future in futures]
        with self._interrupt.held():
            self._context.notify_runner_results(candidates, results)
            for candidate, result in zip(candidates, results, strict=True):
                self._commit(candidate, result)
            self._learn(candidates, results)
        self._history.foresee()

    def _learn(self, candidates: list[Any], results: list[Any]) -> None:
        self._model.update(self._context, candidates, results)

    def _commit(self, candidate: Any, result: Any) -> None:
        seconds = [FAILED] if result.run_secs is None else result.run_secs
        target, trace = self._context.target, candidate.sch.trace
        self._database.commit_tuning_record(
            ms.database.TuningRecord(trace, self._workload, seconds, target, candidate.args_info)
        )
