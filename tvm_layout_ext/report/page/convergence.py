"""The convergence curve: each trial's score, and the best so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...tune.records.log import Record
from ...tune.space.knobs import describe
from ..tuning import score_text

__all__ = ["Convergence", "Step", "convergence"]

#: From this ratio of worst to best on, scores are drawn on a logarithmic scale.
_LOGARITHMIC_FROM = 8.0


@dataclass(frozen=True)
class Step:
    """One trial of the curve.

    Attributes
    ----------
    number : int
        In the order of the log, from 1.
    score : float or None
        Microseconds or modelled cost; None if it failed.
    best : float or None
        The least score up to here.
    detail : str
        What to tell where one points at it.
    """

    number: int
    score: float | None
    best: float | None
    detail: str


@dataclass(frozen=True)
class Convergence:
    """A curve.

    Attributes
    ----------
    steps : list of Step
    unit : str
        Of the scores, for the axis.
    """

    steps: list[Step]
    unit: str

    @property
    def logarithmic(self) -> bool:
        """Whether the scores spread so far that a linear scale would show none of the end."""
        scores = [step.score for step in self.steps if step.score is not None]
        return bool(scores) and min(scores) > 0 and max(scores) / min(scores) > _LOGARITHMIC_FROM


def convergence(records: Sequence[Record]) -> Convergence:
    """Follow the best score through trials of one workload, in the log's order."""
    measured = records[0].measured
    best: float | None = None
    steps: list[Step] = []
    for index, record in enumerate(records, 1):
        score = None if record.score is None else record.score * (1e6 if measured else 1.0)
        if score is not None:
            best = score if best is None else min(best, score)
        steps.append(Step(index, score, best, _detail(record)))
    unit = "median, us" if measured else "modelled cost, cycles (a model, not a time)"
    return Convergence(steps, unit)


def _detail(record: Record) -> str:
    if record.score is None:
        return f"trial {record.trial} failed, {record.error_class}: {record.error_text}"
    kind = "" if record.measured else "modelled cost "
    return f"trial {record.trial}: {kind}{score_text(record)}; {describe(record.config)}"
