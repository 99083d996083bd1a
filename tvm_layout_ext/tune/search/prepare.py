"""What a search needs before its first result, begun in other processes as early as may be."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tvm import s_tir

from ..measure.backend import Begun
from ..measure.backend_pool import BackendPool
from ..space.candidate import config_of
from ..space.knobs import Config
from ..space.task import Task
from .cost_model import Facts, explored
from .design import Candidates, openers
from .history import FINALISTS

#: At most so many candidates are ranked in closed form before the search, 4 a trial; one takes 20
#: to 50 ms to schedule, and a process takes so many at a time.
RANKED, SHARE = 256, 8
#: A sample beside which no process looks for better ones.
LARGE = 256
#: In each of which a process looks for better ones beside the best that it has ranked.
GENERATIONS = 2
#: Candidates between two updates of the cost model. With a batch under way while the next is
#: proposed, twice as many are built at once at most; more cores than that have nothing to do. What
#: a search tries must not depend on the machine's cores, so it is a constant.
BATCH = 8
#: So many are tried that no result has told to: of two batches, as one is always under way while
#: the next is proposed.
FIRST = 2 * BATCH
#: From which a search begins at most, and one for two trials; TVM's default of 512 is for spaces of
#: millions. Each of a population is replayed in each generation of each batch, for 7 ms.
POPULATION = 32


class Prepared:
    """A task's default and the ranking of a sample of its space.

    A ranking takes as long as all else that a search does in its own process, so others share it.
    """

    def __init__(self, task: Task) -> None:
        self.task, self.candidates = task, Candidates(task)
        self.default, self.rng = self._default(), random.Random(task.seed)
        self.facts = Facts(self.candidates)
        self._shares: list[Begun] = []
        self._is_built = False
        self._first: list[s_tir.Schedule] | None = None

    def _default(self) -> Config:
        """The configuration of trial 0, which is only known to be legal once it is scheduled."""
        while True:
            config = self.task.space.default()
            self.candidates.schedule(config)
            if self.candidates.is_legal(config):
                return config

    def rank(self, asked: Callable[..., Begun], trials: int) -> None:
        """Begin to rank a seeded sample by :meth:`.Backend.asked`, unless that was begun before."""
        if self._shares:
            return
        legal, count = self.task.space.legal, min(RANKED, 4 * trials)
        sample = legal if len(legal) <= count else self.rng.sample(legal, count)
        # Nothing is looked for beside a sample that has all, that is large itself, or of which one
        # or two are chosen.
        is_plain = len(sample) in (len(legal), LARGE) or trials <= FINALISTS
        generations = 0 if is_plain else GENERATIONS
        # A copy of the task: what was worked out of it stays here.
        task = replace(self.task)
        for start in range(0, len(sample), SHARE):
            share: list[Config] = [dict(one) for one in sample[start : start + SHARE]]
            seed = self.rng.randrange(1 << 30)
            self._shares.append(asked(explored, task, share, seed, generations))

    def ranking(self) -> list[tuple[Config, float | None]]:
        """What was ranked, each once, with modelled seconds; None if it cannot be scheduled."""
        found: dict[tuple[Any, ...], tuple[Config, float | None]] = {}
        for share in self._shares:
            for config, one in share.result():
                if self.candidates.is_legal(config):
                    key = self.candidates.key(config)
                    found[key] = config, None if one is None else one[1]
                    if one is not None:
                        self.facts.add(config, one)
        return list(found.values())

    def first(self, trials: int) -> list[s_tir.Schedule]:
        """What a search tries beside the default before a result can tell it what to try."""
        if self._first is None:
            scored = [one for one in self.ranking() if one[0] != self.default]
            self._first = openers(self.candidates, scored, self.rng, min(FIRST, trials - 1))
        return self._first

    def population(self, trials: int) -> list[s_tir.Schedule]:
        """Others, from which an evolutionary search begins; the first where there are none."""
        knobs, key = self.task.operator.knobs, self.candidates.key
        tried = {key(config_of(sch.mod, knobs)) for sch in self.first(trials)} | {key(self.default)}
        scored = [one for one in self.ranking() if key(one[0]) not in tried]
        found = openers(self.candidates, scored, self.rng, min(POPULATION, trials // 2))
        return found or self.first(trials)

    def begin(self, pool: BackendPool, trials: int) -> None:
        """Begin all of this before its turn, where the pool has processes that will serve it."""
        sch = self.candidates.schedule(self.default)
        is_final = trials <= FINALISTS
        backend = None if sch is None else pool.prepare(self.task, self.default, sch.mod, is_final)
        if backend is not None and trials > 1:
            self.rank(backend.asked, trials)

    def begin_all(self, pool: BackendPool, trials: int) -> bool:
        """Begin to build, before its turn, what a search tries first; whether anything was begun.

        No result decides that, only the ranking, which was begun before and must have ended.
        """
        if self._is_built or not self._shares or not all(one.done() for one in self._shares):
            return False
        self._is_built = True
        knobs, are_final = self.task.operator.knobs, trials <= FINALISTS
        for sch in self.first(trials):
            pool.prepare(self.task, config_of(sch.mod, knobs), sch.mod, are_final)
        return True
