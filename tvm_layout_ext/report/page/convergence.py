"""The convergence curve: each trial's score, and the best so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...tune.knobs import describe
from ...tune.records import Record
from ..tuning import score_text
from .drawing import Frame, Scale, mark, sheet

__all__ = ["Convergence", "Step", "convergence", "convergence_svg"]

_WIDTH, _HEIGHT = 480, 290
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 22, 34, 48
_BEST, _TRIAL, _FAILED = "#0b6bcb", "#9aa4b1", "#c62828"
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


def convergence_svg(curve: Convergence) -> str:
    """Draw a curve: a dot a trial, a line for the best so far, a cross for each that failed."""
    scores = [step.score for step in curve.steps if step.score is not None]
    bottom = _HEIGHT - _BOTTOM
    x = Scale(0.5, len(curve.steps) + 0.5, _LEFT, _WIDTH - _RIGHT)
    y = Scale.around(scores or [1.0], bottom, _TOP, logarithmic=curve.logarithmic)
    parts = Frame(x, y, "trial", curve.unit).draw()
    line = _line(curve, x, y)
    if line:
        parts.append(f'<path d="{line}" fill="none" stroke="{_BEST}" stroke-width="2"/>')
    for step in curve.steps:
        parts.append(_mark(step, x.at(step.number), y, bottom))
    return sheet(_WIDTH, _HEIGHT, "best score so far by trial", parts)


def _line(curve: Convergence, x: Scale, y: Scale) -> str:
    """Steps of the best so far."""
    known = [step for step in curve.steps if step.best is not None]
    moves: list[str] = []
    for step in known:
        at = y.at(step.best or 0.0)
        moves += [f"H{x.at(step.number):.1f}", f"V{at:.1f}"]
        if len(moves) == 2:
            moves = [f"M{x.at(step.number):.1f} {at:.1f}"]
    return "".join([*moves, f"H{x.at(len(curve.steps) + 0.5):.1f}"]) if moves else ""


def _mark(step: Step, at: float, y: Scale, bottom: float) -> str:
    if step.score is None:
        cross = (
            f'<path d="M{at - 4:.1f} {bottom - 4}l8 8m0 -8l-8 8" stroke="{_FAILED}" '
            'stroke-width="2"/>'
        )
        return mark(cross, step.detail, "failed")
    fill = _BEST if step.score == step.best else _TRIAL
    dot = f'<circle cx="{at:.1f}" cy="{y.at(step.score):.1f}" r="3.5" fill="{fill}"/>'
    return mark(dot, step.detail, "trial")
