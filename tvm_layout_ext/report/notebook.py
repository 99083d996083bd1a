"""How results show themselves in a notebook: HTML of the tables that ``print`` gives as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import prod
from typing import Any

from ..errors import LayoutExtError
from ..layout import Layout
from ..layout.distributed import BlockedLayout
from ..schedule import Schedule
from ..simulate.report import Report
from ..tune.apply.module import ModuleResult
from ..tune.search.tune import Result
from .comparison import why
from .explain import Explanation
from .layout_picture import render
from .tuning import score_text

#: Trials, and accesses, of a table.
_MOST = 20
#: Tensors on which layouts without a size of their own are drawn.
_SIDE = 16


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]], title: str = "") -> str:
    """Set rows as an HTML table; of many, the first ones."""
    rest = f"<p>and {len(rows) - _MOST:,} more</p>" if len(rows) > _MOST else ""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>"
        for row in rows[:_MOST]
    )
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"


def _text(text: str) -> str:
    return f"<pre>{escape(text)}</pre>" if text else ""


def _explanation(found: Explanation) -> str:
    said = "\n".join([str(found.limit or ""), *map(str, found.advice), *found.hazards]).strip()
    code = f"<details><summary>Device code</summary>{_text(found.listing)}</details>"
    return "".join(table(*one) for one in found.tables()) + _text(said) + code


def _report(report: Report) -> str:
    heads, rows = report.table()
    return table(heads, rows) + _text(report.summary())


def _result(result: Result) -> str:
    if not result.trials:
        return _text(repr(result))
    best = result.best.score if result.best else None
    rows = [
        [
            str(one.trial),
            score_text(one),
            f"{one.score / best:.2f}" if one.score and best else "",
            " ".join(f"{key}={value}" for key, value in one.config.items()),
            one.error_text or "",
        ]
        for one in result.ranking
    ]
    heads = ("trial", "score", "of best", "configuration", "error")
    return table(heads, rows, str(result.task.workload)) + _text(why(result))


def _module_result(result: ModuleResult) -> str:
    rows = [
        [
            name,
            score_text(one.best) if one.best else "none",
            score_text(one.default),
            len(one.trials),
        ]
        for name, one in result.results.items()
        if one.trials
    ]
    skipped = [[name, why] for name, why in result.skipped.items()]
    shown = table(("function", "best", "default", "trials"), rows)
    return shown + (table(("skipped", "why"), skipped) if skipped else "")


def _layout(layout: Layout) -> str:
    shape = [_SIDE] * layout.rank
    if isinstance(layout, BlockedLayout):
        counts = (layout.size_per_thread, layout.threads_per_warp, layout.warps_per_cta)
        shape = [prod(sizes) for sizes in zip(*counts, strict=True)]
    try:
        return render(layout, shape, kind="svg")
    except LayoutExtError:
        return _text(repr(layout))


def _schedule(schedule: Schedule) -> str:
    rows = [[stage.name, stage.scope or "", str(stage.leaf)] for stage in schedule.stages]
    return table(("stage", "scope", "loops"), rows)


_SHOWN: dict[type, Callable[[Any], str]] = {
    Explanation: _explanation,
    Report: _report,
    Result: _result,
    ModuleResult: _module_result,
    Layout: _layout,
    Schedule: _schedule,
}


def install() -> None:
    """Give each class the method by which a notebook shows it."""
    for kind, show in _SHOWN.items():
        kind._repr_html_ = show  # type: ignore[attr-defined]
