"""Grids of boxes as SVG, for documents."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

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

MARGIN, LINE = 12, 20
_INK, _GREY, _TINT = "#111111", "#777777", "#f3f3f3"


def as_svg(title: str, grids: Sequence[Grid], colour_word: str, merge: bool = False) -> str:
    """Draw grids below each other.

    ``colour_word`` says what hues are: ``warp``, ``bank``, ``columns`` or ``version``. With
    ``merge``, cells that continue each other are one box.
    """
    top, width = float(MARGIN + LINE), text_width(title) + 2 * MARGIN
    legend = legend_of(grids, colour_word)
    parts = _legend(legend, top)
    top += LINE if legend else 0
    for grid in grids:
        drawn, right, height = _draw(grid, top, merge, colour_word)
        parts += drawn
        top += height + LINE
        width = max(width, right + MARGIN)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{top:.0f}" '
        f'viewBox="0 0 {width:.0f} {top:.0f}" font-family="monospace" font-size="{FONT}">'
    )
    sheet = f'<rect width="{width:.0f}" height="{top:.0f}" fill="#ffffff"/>'
    caption = f'<text x="{MARGIN}" y="{MARGIN + FONT}" font-weight="bold">{escape(title)}</text>'
    return "\n".join([head, sheet, caption, *parts, "</svg>"])


def _draw(grid: Grid, top: float, merge: bool, word: str) -> tuple[list[str], float, float]:
    """Draw one grid; give its lines, its right edge and its height."""
    rows = boxes_of(grid, merge)
    cell = cell_width(grid, rows)
    left = MARGIN + text_width(max(grid.row_names, key=len)) + 6
    right = left + cell * len(grid.column_names)
    lines = [_text(MARGIN, top + FONT, grid.title, _INK)]
    head = top + LINE + FONT
    first = head + 5
    if grid.tinted:
        size = f'width="{grid.tinted * cell:.1f}" height="{CELL_HEIGHT * len(rows)}"'
        lines.append(f'<rect x="{left:.1f}" y="{first:.0f}" {size} fill="{_TINT}"/>')
    for i, name in enumerate(grid.column_names):
        lines.append(_text(left + (i + 0.5) * cell, head, name, _GREY, "middle"))
    for r, (name, row) in enumerate(zip(grid.row_names, rows, strict=True)):
        y = first + r * CELL_HEIGHT
        lines.append(_text(left - 6, y + 13, name, _GREY, "end"))
        lines += [_box(box, left + box.column * cell, y, cell, word) for box in row]
    bottom = first + CELL_HEIGHT * len(rows)
    for note in grid.notes:
        bottom += LINE
        lines.append(_text(MARGIN, bottom, note, _GREY))
        right = max(right, MARGIN + text_width(note))
    return lines, right, bottom - top


def _box(box: Box, x: float, y: float, cell: float, word: str) -> str:
    first, width = box.cells[0], cell * len(box.cells)
    border = 'stroke="#666666" stroke-dasharray="4 2"' if first.dashed else 'stroke="#ffffff"'
    return (
        f'<g data-owner="{first.owner}"><title>{escape(box.detail)}</title>'
        f'<rect x="{x:.1f}" y="{y:.0f}" width="{width:.1f}" height="{CELL_HEIGHT}" '
        f'fill="{colour_of(word, first)}" {border}/>'
        f"{_text(x + width / 2, y + 13, box.label, _INK, 'middle')}</g>"
    )


def _legend(keys: Sequence[tuple[str, str]], top: float) -> list[str]:
    lines = []
    for i, (name, fill) in enumerate(keys):
        x = MARGIN + i * (text_width(keys[-1][0]) + 22)
        box = f'<rect x="{x:.1f}" y="{top:.0f}" width="12" height="12" fill="{fill}"/>'
        lines.append(box + _text(x + 16, top + FONT, name, _INK))
    return lines


def _text(x: float, y: float, text: str, fill: str, anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.0f}" text-anchor="{anchor}" fill="{fill}"'
    return f"<text {place}>{escape(text)}</text>"
