"""Grids of boxes as an HTML page, which tells the whole story where one points.

Rows are boxes of text and not a drawing, so that the browser lays out only those in view: as SVG,
the 65,536 elements of a 256x256 tensor took it many seconds to open and one more for each move of
the mouse. Names of rows and columns stay in view while one scrolls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .extras import template
from .grid import (
    CELL_HEIGHT,
    FONT,
    Box,
    Grid,
    boxes_of,
    cell_width,
    colour_of,
    legend_of,
    text_width,
)


def as_page(title: str, grids: Sequence[Grid], colour_word: str, merge: bool = False) -> str:
    """Write grids below each other, as :func:`.as_svg` draws them; jinja2 is needed."""
    legend = legend_of(grids, colour_word)
    shown = [_section(grid, merge, colour_word) for grid in grids]
    fills = [fill for _, fill in legend]
    fills += [box["fill"] for grid in shown for _, boxes in grid["rows"] for box in boxes]
    return str(
        template(__package__, "page.html.j2").render(
            title=title,
            font=FONT,
            height=CELL_HEIGHT,
            legend=legend,
            grids=shown,
            # A page repeats few colours many times, so each has a short class name.
            colours={fill: f"c{i}" for i, fill in enumerate(dict.fromkeys(fills))},
        )
    )


def _section(grid: Grid, merge: bool, word: str) -> dict[str, Any]:
    rows = boxes_of(grid, merge)
    boxes = (
        [_box(box, end, word) for box, end in zip(row, _ends(row), strict=True)] for row in rows
    )
    return {
        "title": grid.title,
        "cell": f"{cell_width(grid, rows):.1f}",
        "names": f"{text_width(max(grid.row_names, key=len)) + 24:.1f}",
        "columns": grid.column_names,
        "rows": list(zip(grid.row_names, boxes, strict=True)),
    }


def _ends(row: Sequence[Box]) -> list[int]:
    """Where the box before each one ends."""
    return [0, *(box.end for box in row)][: len(row)]


def _box(box: Box, end: int, word: str) -> dict[str, Any]:
    return {
        "gap": box.column - end,
        "n": len(box.cells),
        "fill": colour_of(word, box.cells[0]),
        "owner": box.cells[0].owner,
        "detail": box.detail,
        "label": box.label,
    }
