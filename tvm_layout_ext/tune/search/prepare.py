"""What a search needs before its first result, begun in other processes as early as may be."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tvm import s_tir

from ..measure.backend_pool import BackendPool
from ..space.candidate import config_of
from ..space.knobs import Config
from ..space.task import Task
from .cost_model import Fact, Facts, facts
from .design import Candidates, openers

#: At most so many candidates are ranked in closed form before the search, 4 a trial; one takes 20
#: to 50 ms to schedule, and a process takes so many at a time.
RANKED, SHARE = 256, 8
#: Candidates between two updates of the cost model. With a batch under way while the next is
#: proposed, twice as many are built at once at most; more cores than that have nothing to do. What
#: a search tries must not depend on the machine's cores, so it is a constant.
BATCH = 8
#: How many of the best are timed again before one is named.
FINALISTS = 3


class Prepared:
    """A task's default and the ranking of a sample of its space.

    A ranking takes as long as all else that a search does in its own process, so others share it.
    """

    def __init__(self, task: Task) -> None:
        self.task, self.candidates = task, Candidates(task)
        self.default, self.rng = self._default(), random.Random(task.seed)
        self.facts = Facts(self.candidates)
        self._shares: list[tuple[list[Config], Callable[[], list[Fact | None]]]] = []
        self._openers: list[s_tir.Schedule] | None = None

    def _default(self) -> Config:
        """The configuration of trial 0, which is only known to be legal once it is scheduled."""
        while True:
            config = self.task.space.default()
            self.candidates.schedule(config)
            if self.candidates.is_legal(config):
                return config

    def rank(self, asked: Callable[..., Callable[[], Any]], trials: int) -> None:
        """Begin to rank a seeded sample by :meth:`.Backend.asked`, unless that was begun before."""
        if self._shares:
            return
        legal, count = self.task.space.legal, min(RANKED, 4 * trials)
        sample = legal if len(legal) <= count else self.rng.sample(legal, count)
        # A copy of the task: what was worked out of it stays here.
        task = replace(self.task)
        for start in range(0, len(sample), SHARE):
            share: list[Config] = [dict(one) for one in sample[start : start + SHARE]]
            self._shares.append((share, asked(facts, task, share)))

    def ranking(self) -> list[tuple[Config, float | None]]:
        """The sample, each candidate with its modelled seconds; None if it cannot be scheduled."""
        found: list[tuple[Config, float | None]] = []
        for share, result in self._shares:
            for config, one in zip(share, result(), strict=True):
                found.append((config, None if one is None else one[1]))
                if one is not None:
                    self.facts.add(config, one)
        return found

    def openers(self, count: int) -> list[s_tir.Schedule]:
        """So many candidates, from which a search begins; they are drawn once."""
        if self._openers is None:
            self._openers = openers(self.candidates, self.ranking(), self.rng, count)
        return self._openers

    def begin(self, pool: BackendPool, trials: int) -> None:
        """Begin all of this before its turn, where the pool has processes that will serve it."""
        sch = self.candidates.schedule(self.default)
        is_final = trials <= FINALISTS
        backend = None if sch is None else pool.prepare(self.task, self.default, sch.mod, is_final)
        if backend is not None and trials > 1:
            self.rank(backend.asked, trials)

    def begin_all(self, pool: BackendPool, trials: int) -> None:
        """Begin to build, before its turn, all that a search of few trials will try.

        What it tries no result decides, only the ranking, which was begun before.
        """
        total = min(trials, len(self.task.space.legal))
        if not self._shares or total > BATCH:
            return
        knobs = self.task.operator.knobs
        for sch in self.openers(total)[: total - 1]:
            pool.prepare(self.task, config_of(sch.mod, knobs), sch.mod, total <= FINALISTS)
