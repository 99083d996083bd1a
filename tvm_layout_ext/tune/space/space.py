"""The legal configurations of an operator for one workload, and their seeded order."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from ...errors import ScheduleError
from ...gpu.hardware import Architecture
from .knobs import Config, Knob, Refusal
from .operator import Operator


def _products(knobs: Sequence[Knob]) -> Iterator[dict[str, Any]]:
    names = [knob.name for knob in knobs]
    for values in itertools.product(*(knob.values for knob in knobs)):
        yield dict(zip(names, values, strict=True))


@lru_cache(maxsize=8)
def _judge(
    operator: Operator, shape: tuple[int, ...], dtype: str, architecture: Architecture
) -> tuple[list[dict[str, Any]], Counter[str], dict[str, str]]:
    """Legal configurations, and by rule how many others there are with the first one's sentence."""
    first = [knob for knob in operator.knobs if knob.before is None]
    newer = [knob for knob in operator.knobs if knob.before is not None]
    plain = {knob.name: knob.before for knob in newer}
    apart = {knob.name: knob.before for knob in newer if knob.apart}
    together: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for change in _products(newer):
        (together if apart.items() <= change.items() else others).append(change)
    beside = (operator.beside(shape, dtype) if operator.beside else {}).items()
    legal: list[dict[str, Any]] = []
    behind: list[dict[str, Any]] = []
    refused: Counter[str] = Counter()
    reasons: dict[str, str] = {}

    def judge(config: dict[str, Any], kept: list[dict[str, Any]], count: int = 1) -> bool:
        refusal = operator.refuse(shape, dtype, config, architecture)
        if refusal is None:
            kept.append(config)
        else:
            refused[refusal.rule] += count
            reasons.setdefault(*refusal)
        return refusal is None

    for base in _products(first):
        if not judge(base | plain, [], len(together) + len(others)):
            continue
        for change in together:
            if change == plain:
                legal.append(base | plain)
            else:
                judge(base | change, legal)
        if beside <= base.items():
            for change in others:
                judge(base | change, behind)
        elif others:
            # One tells the rule of all.
            judge(base | others[0], [], len(others))
    return legal + behind, refused, reasons


@dataclass(frozen=True)
class Space:
    """The combinations of an operator's knobs that are legal for one shape, dtype and GPU.

    Those that another is surely no worse than (:attr:`Operator.prune`) are left out, too. Of knobs
    with a value :attr:`Knob.before`, others are asked about only where that one is legal.
    """

    operator: Operator
    shape: tuple[int, ...]
    dtype: str
    architecture: Architecture

    @cached_property
    def _judged(self) -> tuple[list[dict[str, Any]], Counter[str], dict[str, str]]:
        # Copies: what scheduling refuses is taken out of this space's own.
        judged = _judge(self.operator, self.shape, self.dtype, self.architecture)
        legal, refused, reasons = judged
        return [dict(config) for config in legal], Counter(refused), dict(reasons)

    @property
    def legal(self) -> list[dict[str, Any]]:
        """The legal configurations worth trying, in the order of the knobs' values."""
        return self._judged[0]

    @property
    def refused(self) -> Counter[str]:
        """How many combinations each rule refused."""
        return self._judged[1]

    @property
    def reasons(self) -> dict[str, str]:
        """The sentence of the first combination that each rule refused."""
        return self._judged[2]

    def refuse(self, config: Config, refusal: Refusal) -> None:
        """Count a configuration that turned out not to be legal once it was scheduled."""
        self.legal.remove(dict(config))
        self.refused[refusal.rule] += 1
        self.reasons.setdefault(*refusal)

    def default(self) -> dict[str, Any]:
        """The configuration of trial 0: the operator's default, else its nearest legal neighbour.

        Nearest means the fewest knobs that differ, then the fewest steps. Then :attr:`Operator.fit`
        has its say: the nearest with its values is taken. ScheduleError if no combination is legal.
        """
        wanted = self.operator.default_config()
        if not self.legal:
            why = ", ".join(f"{rule} ({count})" for rule, count in self.refused.most_common())
            first = next(iter(self.reasons.values()), "").rstrip(".")
            shape = f"shape {'x'.join(map(str, self.shape))} " if self.shape else ""
            raise ScheduleError(
                f"{self.operator.name} has no legal configuration for {shape}{self.dtype} on "
                f"{self.architecture.name}: {why}"
                f"{f'; the first: {first}' if first else ''}."
            )
        found = wanted
        if wanted not in self.legal:
            found = min(self.legal, key=lambda config: self._distance(config, wanted))
        if self.operator.fit is None:
            return found
        fitted = self.operator.fit(self.shape, self.dtype, found, self.architecture)
        wished = {name: value for name, value in fitted.items() if name in found}
        better = found | wished
        if better in self.legal:
            return better
        near = [one for one in self.legal if one | wished == one]
        return min(near, key=lambda config: self._distance(config, better)) if near else found

    def _distance(self, one: dict[str, Any], other: dict[str, Any]) -> tuple[int, int]:
        steps = [
            abs(knob.values.index(one[knob.name]) - knob.values.index(other[knob.name]))
            for knob in self.operator.knobs
        ]
        return sum(step > 0 for step in steps), sum(steps)

    def sample(self, seed: int) -> Iterator[dict[str, Any]]:
        """All legal configurations once: the default first, the others in the seed's order."""
        first = self.default()
        rest = [config for config in self.legal if config != first]
        random.Random(seed).shuffle(rest)
        return itertools.chain([first], rest)
