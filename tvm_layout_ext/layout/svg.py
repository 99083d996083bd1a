"""Pictures of layouts as SVG, for documents."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .boxes import (
    CELL_HEIGHT,
    FONT,
    PALETTES,
    Palette,
    cell_width,
    details_of,
    hues_of,
    label_of,
    runs_of,
    text_width,
)
from .picture import Cell, Grid

__all__ = ["as_svg"]

MARGIN, LINE = 12, 20


def as_svg(title: str, grids: Sequence[Grid], colour_word: str, merge: bool) -> str:
    """Draw grids below each other; ``merge`` joins cells that continue each other."""
    parts: list[str] = []
    top, width = float(MARGIN + LINE), text_width(title) + 2 * MARGIN
    legend = _legend(grids, colour_word, top)
    parts += legend
    top += LINE if legend else 0
    for grid in grids:
        drawn, grid_width, grid_height = _draw(grid, top, merge, PALETTES[colour_word])
        parts += drawn
        top += grid_height + LINE
        width = max(width, grid_width + 2 * MARGIN)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{top:.0f}" '
        f'viewBox="0 0 {width:.0f} {top:.0f}" font-family="monospace" font-size="{FONT}">'
    )
    sheet = f'<rect width="{width:.0f}" height="{top:.0f}" fill="#ffffff"/>'
    caption = f'<text x="{MARGIN}" y="{MARGIN + FONT}" font-weight="bold">{escape(title)}</text>'
    return "\n".join([head, sheet, caption, *parts, "</svg>"])


def _draw(grid: Grid, top: float, merge: bool, palette: Palette) -> tuple[list[str], float, float]:
    """Draw one grid; give its lines, width and height."""
    runs = [runs_of(row, merge) for row in grid.rows]
    cell = cell_width(grid, runs)
    left = MARGIN + text_width(max(grid.row_names, key=len)) + 6
    lines = [f'<text x="{MARGIN}" y="{top + FONT:.0f}">{escape(grid.title)}</text>']
    head = top + LINE + FONT
    for i, name in enumerate(grid.column_names):
        lines.append(_centred(left + (i + 0.5) * cell, head, name, "#777777"))
    first = head + 5
    for r, (name, row) in enumerate(zip(grid.row_names, runs, strict=True)):
        y = first + r * CELL_HEIGHT
        x = left - 6 - text_width(name) / 2
        lines.append(_centred(x, y + 13, name, "#777777"))
        for at, run in row:
            fill = palette(run[0].hue, run[0].shade)
            lines.append(_box(run, left + at * cell, y, cell * len(run), fill))
    height = first - top + CELL_HEIGHT * len(runs)
    return lines, left + cell * len(grid.column_names) - MARGIN, height


def _box(run: Sequence[Cell], x: float, y: float, width: float, fill: str) -> str:
    detail = escape(details_of(run))
    return (
        f'<g data-owner="{run[0].owner}"><title>{detail}</title>'
        f'<rect x="{x:.1f}" y="{y:.0f}" width="{width:.1f}" height="{CELL_HEIGHT}" fill="{fill}" '
        f'stroke="#ffffff"/>{_centred(x + width / 2, y + 13, label_of(run), "#111111")}</g>'
    )


def _legend(grids: Sequence[Grid], word: str, top: float) -> list[str]:
    if word == "columns":
        return []
    step = text_width(f"{word} 00") + 22
    lines = []
    for i, hue in enumerate(hues_of(grids)):
        x = MARGIN + i * step
        fill = PALETTES[word](hue, 0)
        box = f'<rect x="{x:.1f}" y="{top:.0f}" width="12" height="12" fill="{fill}"/>'
        lines.append(f'{box}<text x="{x + 16:.1f}" y="{top + FONT:.0f}">{word} {hue}</text>')
    return lines


def _centred(x: float, y: float, text: str, fill: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.0f}" text-anchor="middle" fill="{fill}">{escape(text)}</text>'
