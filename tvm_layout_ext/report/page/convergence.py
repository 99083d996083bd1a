"""The convergence curve: each trial's score, and the best so far."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from ...tune.records.log import Record
from ...tune.space.knobs import describe
from ..drawing.figures import Chart
from ..tuning import score_text

#: From this ratio of worst to best on, scores are drawn on a logarithmic scale: a linear one would
#: show nothing of the end.
_LOGARITHMIC_FROM = 8.0
_BEST, _TRIAL, _FAILED = "#0b6bcb", "#9aa4b1", "#c62828"


def convergence_chart(records: Sequence[Record]) -> Chart:
    """Draw trials of one workload by their numbers, or in the log's order if it has two of one.

    A dot is a trial, the line is the best so far, a cross is a trial that failed.
    """
    chart = Chart("best score so far by trial")
    trials = [record.trial for record in records]
    if len(set(trials)) < len(trials):
        trials = list(range(len(records)))
    by_number = dict(sorted(zip(trials, records, strict=True), key=lambda one: one[0]))
    axes, end = chart.axes, max(trials) + 0.5
    measured = records[0].measured
    unit = 1e6 if measured else 1.0
    told = {n: _detail(record) for n, record in by_number.items()}
    scores = {n: r.score * unit for n, r in by_number.items() if r.score is not None}
    least = dict(zip(scores, accumulate(scores.values(), min), strict=True))
    best = [n for n in scores if scores[n] == least[n]]
    others = [n for n in scores if scores[n] != least[n]]
    if best:
        line = [*(scores[n] for n in best), scores[best[-1]]]
        axes.step([*best, end], line, where="post", color=_BEST, label="best so far")
    for numbers, colour, label in ((others, _TRIAL, "trial"), (best, _BEST, "best trial")):
        if numbers:
            heights = [scores[n] for n in numbers]
            (dots,) = axes.plot(numbers, heights, "o", ms=6, color=colour, label=label)
            chart.tell(dots, [told[n] for n in numbers], "trial")
    if failed := [n for n in told if n not in scores]:
        bottom = {"ms": 8, "mew": 2, "color": _FAILED, "transform": axes.get_xaxis_transform()}
        (crosses,) = axes.plot(failed, [0.03] * len(failed), "x", label="failed", **bottom)
        chart.tell(crosses, [told[n] for n in failed], "failed")
    axes.set_xlim(min(trials) - 0.5, end)
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    axes.grid(visible=False, axis="x")
    if not scores:
        axes.set_yticks([])
    lowest, highest = min(scores.values(), default=1.0), max(scores.values(), default=1.0)
    chart.set_scales(y=lowest > 0 and highest / lowest > _LOGARITHMIC_FROM)
    chart.name_axes(
        "trial", "median, us" if measured else "modelled cost, cycles (a model, not a time)"
    )
    chart.add_legend()
    return chart


def _detail(record: Record) -> str:
    if record.score is None:
        return f"trial {record.trial} failed, {record.error_class}: {record.error_text}"
    kind = "" if record.measured else "modelled cost "
    return f"trial {record.trial}: {kind}{score_text(record)}; {describe(record.config)}"
