"""The legal configurations of an operator for one workload, and their seeded order."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import ScheduleError
from ..hardware import Architecture
from .operator import Operator

__all__ = ["Space"]


@dataclass(frozen=True)
class Space:
    """The combinations of an operator's knobs that are legal for one shape, dtype and GPU.

    Those that another is surely no worse than (:attr:`Operator.prune`) are left out, too.

    Attributes
    ----------
    operator : Operator
    shape : tuple of int
    dtype : str
    architecture : Architecture
        Whose limits candidates must keep.
    """

    operator: Operator
    shape: tuple[int, ...]
    dtype: str
    architecture: Architecture

    @cached_property
    def _judged(self) -> tuple[list[dict[str, Any]], Counter[str]]:
        names = [knob.name for knob in self.operator.knobs]
        legal: list[dict[str, Any]] = []
        refused: Counter[str] = Counter()
        for values in itertools.product(*(knob.values for knob in self.operator.knobs)):
            config = dict(zip(names, values, strict=True))
            refusal = self.operator.refuse(self.shape, self.dtype, config, self.architecture)
            if refusal is None:
                legal.append(config)
            else:
                refused[refusal.rule] += 1
        return legal, refused

    @property
    def legal(self) -> list[dict[str, Any]]:
        """The legal configurations worth trying, in the order of the knobs' values."""
        return self._judged[0]

    @property
    def refused(self) -> Counter[str]:
        """How many combinations each rule refused."""
        return self._judged[1]

    def default(self) -> dict[str, Any]:
        """The configuration of trial 0: the operator's default, else its nearest legal neighbour.

        Nearest means the fewest knobs that differ from the default, then the fewest steps between
        their values.

        Raises
        ------
        ScheduleError
            If no combination is legal; the sentence says which rules refused how many.
        """
        wanted = self.operator.default_config()
        if not self.legal:
            why = ", ".join(f"{rule} ({count})" for rule, count in self.refused.most_common())
            raise ScheduleError(
                f"{self.operator.name} has no legal configuration for shape "
                f"{'x'.join(map(str, self.shape))} {self.dtype} on {self.architecture.name}: {why}."
            )
        return min(self.legal, key=lambda config: self._distance(config, wanted))

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
