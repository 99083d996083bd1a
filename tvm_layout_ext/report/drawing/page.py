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
    Cell,
    Grid,
    cell_width,
    colour_of,
    details_of,
    label_of,
    legend_of,
    runs_of,
    text_width,
)

__all__ = ["as_page"]


def as_page(title: str, grids: Sequence[Grid], colour_word: str, merge: bool = False) -> str:
    """Write grids below each other; parameters as of :func:`.as_svg`.

    Raises
    ------
    MissingExtraError
        If jinja2 is not installed.
    """
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
    rows = [runs_of(row, merge) for row in grid.rows]
    return {
        "title": grid.title,
        "cell": f"{cell_width(grid, rows):.1f}",
        "names": f"{text_width(max(grid.row_names, key=len)) + 24:.1f}",
        "columns": grid.column_names,
        "rows": [(name, _boxes(row, word)) for name, row in zip(grid.row_names, rows, strict=True)],
    }


def _boxes(runs: Sequence[tuple[int, list[Cell]]], word: str) -> list[dict[str, Any]]:
    boxes, end = [], 0
    for first, run in runs:
        boxes.append(
            {
                "gap": first - end,
                "n": len(run),
                "fill": colour_of(word, run[0].hue, run[0].shade),
                "owner": run[0].owner,
                "detail": details_of(run),
                "label": label_of(run),
            }
        )
        end = first + len(run)
    return boxes
