"""What a search tried: trials by the knobs that vary, and how much each knob matters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import log
from typing import Any

from ...tune.records.log import Record
from ..tuning import score_text


@dataclass(frozen=True)
class KnobAxis:
    """A knob with at least two values, in order."""

    name: str
    values: list[str]


@dataclass(frozen=True)
class Tried:
    """Number, score or None, its text, and by axis the place of the trial's value."""

    trial: int
    score: float | None
    text: str
    at: list[int]


@dataclass(frozen=True)
class Search:
    """Trials of one workload by the knobs that vary.

    ``importance`` has each knob and its share, the largest first; empty where too few trials
    worked.
    """

    axes: list[KnobAxis]
    trials: list[Tried]
    importance: list[tuple[str, float]]

    def drawn(self) -> dict[str, Any]:
        """What the page's script draws."""
        return {
            "axes": [asdict(one) for one in self.axes],
            "trials": list(map(asdict, self.trials)),
        }


def search_of(records: Sequence[Record]) -> Search | None:
    """Trials in the order given; None if no knob varies."""
    axes, places = [], []
    for name in dict.fromkeys(name for record in records for name in record.config):
        values = [record.config.get(name) for record in records]
        known = sorted(set(values), key=_order)
        if len(known) > 1:
            axes.append(KnobAxis(name, ["-" if value is None else str(value) for value in known]))
            places.append([known.index(value) for value in values])
    if not axes:
        return None
    trials = [
        Tried(record.trial, record.score, score_text(record), [place[n] for place in places])
        for n, record in enumerate(records)
    ]
    shares = {
        axis.name: importance([(at[n], one.score) for n, one in enumerate(records)])
        for axis, at in zip(axes, places, strict=True)
    }
    told = [(name, share) for name, share in shares.items() if share is not None]
    return Search(axes, trials, sorted(told, key=lambda one: -one[1]))


def _order(value: Any) -> tuple[int, float, str]:
    """Numbers by size, then words."""
    is_number = isinstance(value, int | float)
    return (0, float(value), "") if is_number else (1, 0.0, str(value))


def importance(tried: Sequence[tuple[int, float | None]]) -> float | None:
    """The share of the variance of the scores' logarithms that a knob's value explains, alone.

    Less what as many groups of random trials would explain: omega squared. ``tried`` are values and
    scores. None where that is not known: one value, under three trials a value, or equal scores.
    """
    groups: dict[int, list[float]] = {}
    for value, score in tried:
        if score:
            groups.setdefault(value, []).append(log(score))
    count, between = sum(map(len, groups.values())), len(groups) - 1
    if between < 1 or count < 3 * len(groups):
        return None
    mean = sum(map(sum, groups.values())) / count
    means = {value: sum(one) / len(one) for value, one in groups.items()}
    explained = sum(len(one) * (means[value] - mean) ** 2 for value, one in groups.items())
    rest = sum((x - means[value]) ** 2 for value, one in groups.items() for x in one)
    chance = rest / (count - len(groups))
    if explained + rest + chance < 1e-12:
        return None
    return max(0.0, (explained - between * chance) / (explained + rest + chance))
