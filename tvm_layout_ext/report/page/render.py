"""Write the gathered workloads as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from ..._version import __version__
from ...errors import LayoutExtError
from ...tune.environment import now
from .convergence import convergence_svg
from .roofline import roofline_svg
from .view import Workload

__all__ = ["MissingExtraError", "render_page"]

_TEMPLATE = "page.html.j2"


class MissingExtraError(LayoutExtError, ImportError):
    """A library of the extra ``viz`` that is not installed."""

    def __init__(self, library: str) -> None:
        super().__init__(
            f"The report needs {library}, which is not installed: "
            "pip install 'tvm-layout-ext[viz]'."
        )


def render_page(name: str, shown: Sequence[Workload], skipped: str = "") -> str:
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
        If jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError:
        raise MissingExtraError("jinja2") from None
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    text = resources.files(__package__).joinpath(_TEMPLATE).read_text(encoding="utf-8")
    return environment.from_string(text).render(
        name=name,
        workloads=shown,
        skipped=skipped,
        time=now(),
        version=__version__,
        convergence_svg=convergence_svg,
        roofline_svg=roofline_svg,
    )
