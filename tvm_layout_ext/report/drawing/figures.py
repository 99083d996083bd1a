"""Figures of matplotlib as PNG, and as SVG whose marks tell details where one points."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from ...text import number
from .extras import MissingExtraError

_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
#: Units of the drawing, which are pixels where it is not shrunk.
_SIZE = (480, 290)
_GREY = "#5f6772"
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tvm-layout",
    "font.size": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _GREY),
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e6ea",
}


@dataclass
class Chart:
    """A figure with one pair of axes, and what its marks tell.

    The title is for those who cannot see it; the height is that of 480 units of width.
    """

    title: str
    height: int = _SIZE[1]
    figure: Any = field(init=False)
    axes: Any = field(init=False)
    _told: dict[str, tuple[str, Sequence[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            from matplotlib import rc_context
            from matplotlib.figure import Figure
        except ImportError:
            raise MissingExtraError("matplotlib") from None
        with rc_context(_STYLE):
            self.figure = Figure((_SIZE[0] / 72, self.height / 72), layout="constrained")
            self.axes = self.figure.subplots()

    def name_axes(self, x: str, y: str = "") -> None:
        """Write what the axes are, the upright one above it."""
        self.axes.set_xlabel(x)
        self.axes.set_title(y, loc="left", fontsize=12, color=_GREY)

    def add_legend(self) -> None:
        """Name the marks that have a label, above all."""
        self.figure.legend(loc="outside upper left", ncols=4, fontsize=12, frameon=False)

    def tell(self, artist: Any, details: Sequence[str], name: str = "") -> None:
        """Let a line or a shape of a class tell a detail, or each marker of a line its own."""
        artist.set_gid(f"told{len(self._told)}")
        self._told[artist.get_gid()] = name, details

    def set_scales(self, *, x: bool = False, y: bool = False, only: str = "xy") -> None:
        """Make axes logarithmic, and write their numbers as the page does."""
        from matplotlib.ticker import FuncFormatter, LogFormatter

        for name, axis, logarithmic in (("x", self.axes.xaxis, x), ("y", self.axes.yaxis, y)):
            if logarithmic:
                self.axes.set(**{f"{name}scale": "log"})
                axis.set_minor_formatter(LogFormatter(minor_thresholds=(1.5, 0.5)))
            if name in only:
                axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))

    def png(self, heading: str) -> bytes:
        """Draw it with a heading."""
        from matplotlib import rc_context

        drawn = BytesIO()
        with rc_context(_STYLE):
            self.figure.suptitle(heading, fontsize=10)
            self.figure.savefig(drawn, dpi=150, format="png")
        return drawn.getvalue()

    def svg(self) -> str:
        """Draw it for a page: nothing of it clashes with another drawing of the same page."""
        from matplotlib import rc_context

        drawn = BytesIO()
        with rc_context(_STYLE):
            self.figure.savefig(drawn, format="svg", metadata={"Date": None})
        ET.register_namespace("", _SVG[1:-1])
        root = ET.fromstring(drawn.getvalue())
        root.attrib |= {
            "width": str(_SIZE[0]),
            "height": str(self.height),
            "role": "img",
            "aria-label": self.title,
        }
        for metadata in root.findall(f"{_SVG}metadata"):
            root.remove(metadata)
        for group in list(root.iter(f"{_SVG}g")):
            name, details = self._told.get(group.attrib.pop("id", ""), ("", ()))
            if details:
                _tell(group, name, details)
        for use in root.iter(f"{_SVG}use"):
            use.set("href", use.attrib.pop(f"{_XLINK}href"))
        return ET.tostring(root, encoding="unicode")


def _tell(group: ET.Element, name: str, details: Sequence[str]) -> None:
    places = [(at, use) for at in group.iter() for use in at.findall(f"{_SVG}use")]
    if not places:
        _title(group, name, details[0])
        return
    for (parent, use), detail in zip(places, details, strict=True):
        mark = ET.Element(f"{_SVG}g")
        parent.insert(list(parent).index(use), mark)
        parent.remove(use)
        mark.append(use)
        _title(mark, name, detail)


def _title(mark: ET.Element, name: str, detail: str) -> None:
    title = ET.Element(f"{_SVG}title")
    title.text = detail
    mark.insert(0, title)
    if name:
        mark.set("class", name)
