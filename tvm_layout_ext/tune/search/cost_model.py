"""The cost model of the search: a closed form first, then TVM's XGBoost model on our features."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import tvm
from tvm import s_tir
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from ..measure.backend import config_key
from ..model.costs import costs
from ..model.features import FEATURES
from ..space.candidate import config_of
from ..space.knobs import Config, Refusal
from ..space.task import Task
from .design import Candidates, judged, mutated

#: Measured trials below which trees have nothing to go by, and the closed form decides alone.
WARM_UP = 8
#: Seconds in place of the infinite latency of a kernel without blocks: trees take finite numbers.
SLOWEST = 1e6


#: Of a generation: the best so far, and how many neighbours of each are ranked.
PARENTS, CHILDREN = 2, 3


#: A row of features, the logarithm of the modelled latency last, and that in seconds.
Fact = tuple[np.ndarray, float]


def fact(task: Task, config: Config, sch: s_tir.Schedule) -> Fact:
    """What is known of a candidate before it is measured."""
    found = costs(task, config, sch.mod)
    values, seconds = found.features, min(found.seconds, SLOWEST)
    row = [values[name] for name in FEATURES] + [float(np.log(seconds))]
    return np.array(row, "float32"), seconds


def facts(task: Task, configs: Sequence[Config]) -> list[Fact | None]:
    """The facts of candidates, in any process; None for one that cannot be scheduled."""
    found: list[Fact | None] = []
    for config in configs:
        with suppress(Exception):
            sch = judged(task, config)
            found.append(None if isinstance(sch, Refusal) else fact(task, config, sch))
            continue
        found.append(None)
    return found


def explored(
    task: Task, configs: Sequence[Config], seed: int, generations: int
) -> list[tuple[Config, Fact | None]]:
    """The facts of candidates, and of neighbours of the best so far, in so many generations."""
    rng, knobs = random.Random(seed), [k for k in task.operator.knobs if len(k.values) > 1]
    first = zip(configs, facts(task, configs), strict=True)
    known = {config_key(config): (config, found) for config, found in first}

    def is_new(config: Config) -> bool:
        place = task.shape, task.dtype, config, task.architecture
        return config_key(config) not in known and task.operator.refuse(*place) is None

    for _ in range(generations):
        ranked = sorted((one[1][1], key) for key, one in known.items() if one[1] is not None)
        for _, parent in ranked[:PARENTS] * CHILDREN:
            child = mutated(known[parent][0], knobs, rng, is_new)
            if child is not None:
                known[config_key(child)] = child, facts(task, [child])[0]
    return list(known.values())


class Facts:
    """Features and modelled latency of candidates, each worked out once."""

    def __init__(self, candidates: Candidates) -> None:
        self.candidates = candidates
        self._known: dict[tuple[Any, ...], Fact] = {}

    def add(self, config: Config, found: Fact) -> None:
        """Take in what another process has worked out."""
        self._known[self.candidates.key(config)] = found

    def of_schedule(self, sch: s_tir.Schedule) -> Fact:
        """The facts of a candidate that the tuner hands over."""
        task = self.candidates.task
        config = config_of(sch, task.operator.knobs)
        key = self.candidates.key(config)
        if key not in self._known:
            self._known[key] = fact(task, config, sch)
        return self._known[key]


@derived_object
class _Extractor(ms.feature_extractor.PyFeatureExtractor):
    """One row of features a candidate, for TVM's XGBoost model."""

    def __init__(self, facts: Facts) -> None:
        super().__init__()
        self.facts = facts

    def extract_from(self, _context: Any, candidates: Sequence[Any]) -> list[Any]:
        rows = [self.facts.of_schedule(candidate.sch)[0] for candidate in candidates]
        return [tvm.runtime.tensor(row[None, :]) for row in rows]


@derived_object
class GuidedModel(ms.cost_model.PyCostModel):
    """Ranks by modelled latency until enough was measured, then by boosted trees.

    The modelled latency is a feature of the trees, so that measurement corrects the closed form
    rather than replaces it.
    """

    def __init__(self, facts: Facts, seed: int) -> None:
        super().__init__()
        self.facts = facts
        self.measured = 0
        self.trees = ms.cost_model.XGBModel(
            extractor=_Extractor(facts),
            config=ms.cost_model.xgb_model.XGBConfig(seed=seed, nthread=1),
            num_warmup_samples=WARM_UP,
            adaptive_training=False,
            verbose_eval=0,
        )

    def update(self, context: Any, candidates: list[Any], results: list[Any]) -> None:
        """Learn from a batch of measured candidates."""
        self.measured += sum(bool(result.run_secs) for result in results)
        self.trees.update(context, candidates, results)

    def predict(self, context: Any, candidates: list[Any]) -> np.ndarray:
        """Scores, higher for faster candidates."""
        if self.measured < WARM_UP:
            seconds = [self.facts.of_schedule(candidate.sch)[1] for candidate in candidates]
            return np.min(seconds) / np.array(seconds, "float64")
        return np.asarray(self.trees.predict(context, candidates), "float64")
