"""The page's curves, for the page itself and as PNG files for documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import RecordError
from ...tune.records.files import replace_file
from ..drawing.figures import Chart
from ..text import number
from .convergence import Convergence
from .roofline import Point, Roofline
from .view import WorkloadView

__all__ = ["convergence_chart", "roofline_chart", "write_plots"]

_BEST, _TRIAL, _FAILED = "#0b6bcb", "#9aa4b1", "#c62828"
_COLOURS = {"winner": _BEST, "default": "#b26a00"}
_INK = "#1b1f24"


def write_plots(folder: Path, shown: Sequence[WorkloadView]) -> list[Path]:
    """Draw each workload's convergence, and its roofline where there is one.

    Parameters
    ----------
    folder : Path
        Made if it is not there.
    shown : sequence of Workload

    Returns
    -------
    list of Path
        The files written.

    Raises
    ------
    MissingExtraError
        If matplotlib is not installed.
    RecordError
        If a file cannot be written.
    """
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for one in shown:
            charts = {"convergence": convergence_chart(one.curve)}
            if one.roof is not None:
                charts["roofline"] = roofline_chart(one.roof)
            for kind, chart in charts.items():
                path = folder / f"{one.slug}_{kind}.png"
                replace_file(path, chart.png(f"{one.title}, {one.device}"))
                written.append(path)
    except OSError as error:
        raise RecordError(f"Cannot write plots in {folder}: {error.strerror}.") from None
    return written


def convergence_chart(curve: Convergence) -> Chart:
    """Draw a curve: a dot a trial, a line for the best so far, a cross for each that failed."""
    chart = Chart("best score so far by trial")
    axes = chart.axes
    worked = [step for step in curve.steps if step.score is not None]
    best = [step for step in worked if step.score == step.best]
    end = len(curve.steps) + 0.5
    if best:
        numbers, scores = [step.number for step in best], [step.best for step in best]
        axes.step(
            [*numbers, end], [*scores, scores[-1]], where="post", color=_BEST, label="best so far"
        )
    others = [step for step in worked if step.score != step.best]
    for steps, colour, label in ((others, _TRIAL, "trial"), (best, _BEST, "best trial")):
        if steps:
            (dots,) = axes.plot(
                [s.number for s in steps], [s.score for s in steps], "o", ms=6, color=colour,
                label=label,
            )  # fmt: skip
            chart.tell(dots, [step.detail for step in steps], "trial")
    failed = [step for step in curve.steps if step.score is None]
    if failed:
        bottom = axes.get_xaxis_transform()
        (crosses,) = axes.plot(
            [step.number for step in failed], [0.03] * len(failed), "x", ms=8, mew=2,
            color=_FAILED, transform=bottom, label="failed",
        )  # fmt: skip
        chart.tell(crosses, [step.detail for step in failed], "failed")
    axes.set_xlim(0.5, end)
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    axes.grid(visible=False, axis="x")
    if not worked:
        axes.set_yticks([])
    _scales(axes, y=curve.logarithmic)
    chart.name_axes("trial", curve.unit)
    chart.add_legend()
    return chart


def roofline_chart(found: Roofline) -> Chart:
    """Draw the roofs and the kernels; bars of bandwidth for kernels without arithmetic."""
    if not all(point.work > 0 for point in found.points):
        return _bars(found)
    chart = Chart("roofline")
    axes, roofs = chart.axes, found.roofs
    highest = max(height for _, height in roofs.peaks)
    ridge = highest / roofs.bandwidth
    low = min(ridge / 100, *(point.intensity for point in found.points)) / 1.6
    high = max(ridge, *(point.intensity for point in found.points)) * 20
    _scales(axes, x=True, y=True)
    (slope,) = axes.plot([low, ridge], [low * roofs.bandwidth, highest], color=_INK)
    chart.tell(slope, [f"memory: {number(roofs.bandwidth)} {roofs.traffic}"])
    for name, height in roofs.peaks:
        told = f"{name}: {number(height)} {roofs.work}"
        (roof,) = axes.plot([height / roofs.bandwidth, high], [height, height], color=_INK)
        chart.tell(roof, [told])
        axes.annotate(
            f"{name}: {number(height)}",
            (high, height),
            (0, 3),
            textcoords="offset points",
            ha="right",
            fontsize=12,
        )
    for point in found.points:
        _point(chart, found, point)
    axes.set_xlim(low, high)
    axes.margins(y=0.1)
    chart.name_axes("flops a byte of least traffic", roofs.work)
    return chart


def _point(chart: Chart, found: Roofline, point: Point) -> None:
    """A dot with its name: above the winner and below the default, which may be near."""
    colour = _COLOURS.get(point.name, _INK)
    at = point.intensity, point.work
    (dot,) = chart.axes.plot(*([value] for value in at), "o", ms=9, color=colour)
    detail = (
        f"{point.name}: {number(point.work)} {found.roofs.work} at {number(point.intensity)} flops "
        f"a byte, {found.bound(point):.0%} of the nearest roof"
    )
    chart.tell(dot, [detail], "point")
    away = 8 if point.name == "winner" else -18
    chart.axes.annotate(
        point.name,
        at,
        (0, away),
        textcoords="offset points",
        ha="center",
        color=colour,
        fontsize=12,
    )


def _bars(found: Roofline) -> Chart:
    """Bandwidth against the memory roof."""
    roofs = found.roofs
    chart = Chart("share of the memory roof", height=96 + 40 * len(found.points))
    axes = chart.axes
    names = [point.name for point in found.points]
    bars = axes.barh(
        names,
        [point.traffic for point in found.points],
        color=[_COLOURS.get(name, _INK) for name in names],
        height=0.6,
    )
    for bar, point in zip(bars, found.points, strict=True):
        share = f"{point.traffic / roofs.bandwidth:.0%} of the memory roof"
        chart.tell(
            bar, [f"{point.name}: {number(point.traffic)} {roofs.traffic}, {share}"], "point"
        )
    roof = axes.axvline(roofs.bandwidth, color=_INK, label="memory roof")
    chart.tell(roof, [f"memory: {number(roofs.bandwidth)} {roofs.traffic}"])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    _scales(axes, only="x")
    chart.name_axes(f"{roofs.traffic} of least traffic; there is no arithmetic")
    chart.add_legend()
    return chart


def _scales(axes: Any, *, x: bool = False, y: bool = False, only: str = "xy") -> None:
    """Make axes logarithmic, and write their numbers as the page does."""
    from matplotlib.ticker import FuncFormatter, LogFormatter

    for name, axis, logarithmic in (("x", axes.xaxis, x), ("y", axes.yaxis, y)):
        if logarithmic:
            axes.set(**{f"{name}scale": "log"})
            axis.set_minor_formatter(LogFormatter(minor_thresholds=(1.5, 0.5)))
        if name in only:
            axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
