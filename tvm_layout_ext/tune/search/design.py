"""The design space that TVM's tuner searches: candidates to start from, and their neighbours."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from tvm import s_tir
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from ...errors import LayoutExtError
from ..model.limits import SCHEDULE, over_limits
from ..space.candidate import config_of, program_of, traced
from ..space.knobs import Config, Knob, Refusal
from ..space.task import Task

#: Share of the starting candidates that the closed-form model ranks first; the others are those of
#: which it does not think.
BEST = 0.75
#: How often a mutation moves two knobs at once: legality ties some together, as tiles and warps.
TWO_KNOBS = 0.35
ATTEMPTS = 40

#: Knobs in which a neighbour differs at most.
_NEAR = 2


def judged(task: Task, config: Config) -> s_tir.Schedule | Refusal:
    """A candidate's traced schedule, or why it turns out not to be legal."""
    late = task.operator.judged_late
    try:
        sch = traced(task, config)
    except LayoutExtError as error:
        if not late:
            raise
        return Refusal(SCHEDULE, str(error))
    return (over_limits(sch.mod, task.architecture) if late else None) or sch


def mutated(
    config: Config, knobs: Sequence[Knob], rng: random.Random, is_legal: Callable[[Config], bool]
) -> dict[str, Any] | None:
    """A legal configuration with one of the knobs changed, or two; None if none was drawn."""
    for _ in range(ATTEMPTS if knobs else 0):
        other = dict(config)
        count = 2 if rng.random() < TWO_KNOBS and len(knobs) > 1 else 1
        for knob in rng.sample(knobs, count):
            other[knob.name] = rng.choice([v for v in knob.values if v != knob.of(config)])
        if is_legal(other):
            return other
    return None


class Candidates:
    """Scheduled candidates of one task, each scheduled once."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._legal = {self.key(config) for config in task.space.legal}
        self._scheduled: dict[tuple[Any, ...], s_tir.Schedule | None] = {}
        #: Why a legal configuration could not be scheduled, by configuration.
        self.failed: dict[tuple[Any, ...], Exception] = {}

    def key(self, config: Config) -> tuple[Any, ...]:
        """A configuration's values in the order of the knobs."""
        return tuple(knob.of(config) for knob in self.task.operator.knobs)

    def is_legal(self, config: Config) -> bool:
        """Whether a configuration is in the legal space."""
        return self.key(config) in self._legal

    def schedule(self, config: Config) -> s_tir.Schedule | None:
        """The candidate's traced schedule; None if it fails, or turns out not to be legal."""
        key = self.key(config)
        if key not in self._scheduled:
            self._scheduled[key] = self._judged(config, key)
        return self._scheduled[key]

    def program(self, config: Config) -> str | None:
        """Digest of what a user's schedule makes of a configuration; None for ready ones."""
        sch = self.schedule(config) if self.task.operator.judged_late else None
        if sch is None or sch.trace is None:
            return None
        return program_of(sch.trace)

    def _judged(self, config: Config, key: tuple[Any, ...]) -> s_tir.Schedule | None:
        try:
            found = judged(self.task, config)
        except Exception as error:
            # A user's schedule may raise anything, e.g. TVM's own ScheduleError.
            self.failed[key] = error
            return None
        if not isinstance(found, Refusal):
            return found
        if key in self._legal:
            self._legal.remove(key)
            self.task.space.refuse(config, found)
        return None

    def neighbour(self, config: Config, rng: random.Random) -> dict[str, Any] | None:
        """Another legal configuration that differs in one knob, or in two."""
        knobs = [knob for knob in self.task.operator.knobs if len(knob.values) > 1]
        if found := mutated(config, knobs, rng, self.is_legal):
            return found
        # Of tiles that few values of the other knobs go with, hardly any draw is legal.
        near = [
            one
            for one in self.task.space.legal
            if 1 <= sum(knob.of(one) != knob.of(config) for knob in knobs) <= _NEAR
            and self.is_legal(one)
        ]
        return dict(rng.choice(near)) if near else None


@derived_object
class KnobMutator(ms.mutator.PyMutator):
    """Changes one knob or two of a candidate, to a legal value, and schedules it anew."""

    def __init__(self, candidates: Candidates, seed: int) -> None:
        super().__init__()
        self.candidates = candidates
        self.rng = random.Random(seed)

    def _initialize_with_tune_context(self, context: ms.TuneContext) -> None:
        """Needs nothing of the context."""

    def apply(self, trace: s_tir.Trace, _state: int) -> s_tir.Trace | None:
        """Return a neighbour's trace; None if the candidate has no legal neighbour."""
        config = config_of(trace, self.candidates.task.operator.knobs)
        other = self.candidates.neighbour(config, self.rng)
        sch = None if other is None else self.candidates.schedule(other)
        return None if sch is None else sch.trace

    def clone(self) -> Any:
        """Return a mutator that draws on from here."""
        return KnobMutator(self.candidates, self.rng.randrange(1 << 30))


def openers(
    candidates: Candidates,
    scored: Sequence[tuple[Config, float | None]],
    rng: random.Random,
    count: int,
) -> list[s_tir.Schedule]:
    """The candidates from which the search begins.

    The best of a sample by their scores, and a few others, so that a blind spot of the score is not
    one of the search. What has no score could not be scheduled, which is tried again for its sake.
    """
    for config in [config for config, score in scored if score is None]:
        candidates.schedule(config)
    order = sorted(((score, index) for index, (_, score) in enumerate(scored) if score is not None))
    first = round(count * BEST)
    best, rest = order[:first], order[first:]
    taken = [*best, *rng.sample(rest, min(count - first, len(rest)))]
    found = [candidates.schedule(scored[index][0]) for _, index in taken]
    return [sch for sch in found if sch is not None]


def space_generator(
    candidates: Candidates, start: Sequence[s_tir.Schedule], seed: int
) -> ms.space_generator.ScheduleFn:
    """Wrap the starting candidates, and the mutator that leads on from them, for TVM's tuner."""
    return ms.space_generator.ScheduleFn(
        lambda _sch: list(start),
        sch_rules=[],
        postprocs=[],
        mutator_probs={KnobMutator(candidates, seed): 1.0},
    )
