"""The page's curves as PNG files, for documents."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from ...errors import RecordError
from ...tune.files import replace_file
from .convergence import Convergence
from .render import MissingExtraError
from .roofline import Roofline
from .view import Workload

__all__ = ["write_plots"]

_SIZE, _DOTS = (7.0, 4.0), 150


def write_plots(folder: Path, shown: Sequence[Workload]) -> list[Path]:
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
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib") from None
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for one in shown:
            for kind, found in (("convergence", one.curve), ("roofline", one.roof)):
                if found is None:
                    continue
                figure = Figure(figsize=_SIZE, layout="constrained")
                axes = figure.subplots()
                _draw(axes, found)
                axes.set_title(f"{one.title}, {one.device}", fontsize=10)
                path = folder / f"{one.slug}_{kind}.png"
                drawn = BytesIO()
                figure.savefig(drawn, dpi=_DOTS, format="png")
                replace_file(path, drawn.getvalue())
                written.append(path)
    except OSError as error:
        raise RecordError(f"Cannot write plots in {folder}: {error.strerror}.") from None
    return written


def _draw(axes: Any, found: Convergence | Roofline) -> None:
    if isinstance(found, Convergence):
        _curve(axes, found)
    else:
        _roofline(axes, found)


def _curve(axes: Any, curve: Convergence) -> None:
    worked = [step for step in curve.steps if step.score is not None]
    failed = [step.number for step in curve.steps if step.score is None]
    numbers = [step.number for step in worked]
    axes.plot(numbers, [step.score for step in worked], "o", ms=4, color="0.65", label="trial")
    axes.step(
        numbers, [step.best for step in worked], where="post", color="#0b6bcb", label="best so far"
    )
    if failed:
        bottom = axes.get_xaxis_transform()
        axes.plot(
            failed, [0.02] * len(failed), "x", color="#c62828", transform=bottom, label="failed"
        )
    if curve.logarithmic:
        axes.set_yscale("log")
    axes.set_xlabel("trial")
    axes.set_ylabel(curve.unit)
    axes.legend()


def _roofline(axes: Any, found: Roofline) -> None:
    roofs = found.roofs
    if not all(point.work > 0 for point in found.points):
        axes.barh([p.name for p in found.points], [p.traffic for p in found.points])
        axes.axvline(roofs.bandwidth, color="black", label="memory roof")
        axes.set_xlabel(f"{roofs.traffic} of least traffic; there is no arithmetic")
        axes.legend()
        return
    ridge = max(height for _, height in roofs.peaks) / roofs.bandwidth
    low = min(ridge / 100, *(point.intensity for point in found.points))
    high = 3 * max(ridge, *(point.intensity for point in found.points))
    axes.loglog([low, ridge], [low * roofs.bandwidth, ridge * roofs.bandwidth], color="black")
    for name, height in roofs.peaks:
        axes.loglog([height / roofs.bandwidth, high], [height, height], color="black")
        axes.annotate(name, (high, height), ha="right", va="bottom", fontsize=8)
    for point in found.points:
        axes.loglog([point.intensity], [point.work], "o", label=point.name)
    axes.set_xlabel("flops a byte of least traffic")
    axes.set_ylabel(roofs.work)
    axes.legend()
