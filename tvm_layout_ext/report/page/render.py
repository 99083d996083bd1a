"""Write the gathered workloads as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence

from ..._version import __version__
from ...tune.measure.environment import now
from ..drawing.extras import template
from .plots import convergence_chart, roofline_chart
from .view import WorkloadView

__all__ = ["render_page"]


def render_page(name: str, shown: Sequence[WorkloadView], skipped: str = "") -> str:
    """Write a page with its styles, its script and its drawings in it.

    Parameters
    ----------
    name : str
        What the log is called.
    shown : sequence of Workload
    skipped : str
        A sentence on lines of the log that are no records.

    Raises
    ------
    MissingExtraError
        If jinja2 or matplotlib is not installed.
    """
    return str(
        template(__package__, "page.html.j2").render(
            name=name,
            workloads=shown,
            skipped=skipped,
            time=now(),
            version=__version__,
            convergence_chart=convergence_chart,
            roofline_chart=roofline_chart,
        )
    )
