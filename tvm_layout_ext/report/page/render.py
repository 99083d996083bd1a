"""Write the gathered workloads as one HTML page, and their curves as PNG files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ..._version import __version__
from ...calls import disk
from ...errors import RecordError
from ...tune.measure.environment import now
from ...tune.records.files import replace_file
from ..drawing.extras import template
from .convergence import convergence_chart
from .roofline import roofline_chart
from .view import WorkloadView

#: Columns of the table of all workloads, and what they are.
_OVERVIEW = (
    ("score", "median time, or modelled cost"),
    ("rate", "of arithmetic or of least traffic, by the roof that binds"),
    ("of the roof", "share of the roof that binds"),
    ("of default", "times as fast as the default schedule"),
    ("trials", ""),
)


def render_page(name: str, shown: Sequence[WorkloadView], skipped: str = "") -> str:
    """Write a page with its styles, its script and its drawings in it.

    ``name`` is what the log is called, ``skipped`` a sentence on lines of it that are no records.
    jinja2 and matplotlib are needed.
    """
    return str(
        template(__package__, "page.html.j2").render(
            name=name,
            workloads=shown,
            skipped=skipped,
            time=now()[:16].replace("T", " "),
            version=__version__,
            overview=_overview(shown),
            charts=_charts,
        )
    )


def _overview(shown: Sequence[WorkloadView]) -> list[tuple[str, str, list[tuple[str, float]]]]:
    """Head, detail and cells of each column of the table of all that is not empty."""
    columns = list(zip(*(one.overview() for one in shown), strict=True))
    found = [(*head, list(cells)) for head, cells in zip(_OVERVIEW, columns, strict=True)]
    return [one for one in found if any(text for text, _ in one[2])]


def _charts(one: WorkloadView) -> dict[str, str]:
    """Convergence, and roofline where there is one, as SVG; kept on disk by the records."""
    records = [record.to_json() for record in one.records]

    def drawn() -> bytes:
        charts = {"convergence": convergence_chart(one.records).svg()}
        if one.roof is not None:
            charts["roofline"] = roofline_chart(one.roof).svg()
        return json.dumps(charts).encode()

    found = json.loads(disk.remembered(disk.key_of("charts", records), drawn))
    return {str(name): str(chart) for name, chart in found.items()}


def write_plots(folder: Path, shown: Sequence[WorkloadView]) -> list[Path]:
    """Draw each workload's convergence, and its roofline where there is one; list the files."""
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for one in shown:
            charts = {"convergence": convergence_chart(one.records)}
            if one.roof is not None:
                charts["roofline"] = roofline_chart(one.roof)
            for kind, chart in charts.items():
                path = folder / f"{one.slug}_{kind}.png"
                replace_file(path, chart.png(f"{one.title}, {one.device}"))
                written.append(path)
    except OSError as error:
        raise RecordError(f"Cannot write plots in {folder}: {error.strerror}.") from None
    return written
