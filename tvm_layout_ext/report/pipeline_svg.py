"""Charts of pipelines as SVG, for documents."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..transform.pipeline_record import PipelineStep
    from .pipeline_chart import PipelineChart

__all__ = ["charts_as_svg"]

#: Pixels.
_FONT, _MARGIN, _LINE, _CELL_HEIGHT, _CHARACTER = 12, 14, 20, 26, 7.3
_GREY, _INK = "#777777", "#111111"


def charts_as_svg(charts: Sequence[PipelineChart]) -> str:
    """Draw charts below each other; a column is a body, a colour a version."""
    parts: list[str] = []
    top, width = float(_MARGIN), 200.0
    for chart in charts:
        drawn, chart_width, height = _chart(chart, top)
        parts += drawn
        top += height + _LINE
        width = max(width, chart_width + _MARGIN)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{top:.0f}" '
        f'viewBox="0 0 {width:.0f} {top:.0f}" font-family="monospace" font-size="{_FONT}">'
    )
    sheet = f'<rect width="{width:.0f}" height="{top:.0f}" fill="#ffffff"/>'
    return "\n".join([head, sheet, *parts, "</svg>"])


def _chart(chart: PipelineChart, top: float) -> tuple[list[str], float, float]:
    """Draw one chart; give its lines, width and height."""
    rows = chart.rows()
    left = _MARGIN + _text_width(max((name for name, _ in rows), key=len)) + 10
    cell = max(_text_width(text) for _, row in rows for text in (*row, "body 0")) + 10
    lines = [_text(_MARGIN, top + _FONT, chart.title(), _INK, bold=True)]
    head = top + _LINE + _FONT
    lines.append(_text(_MARGIN, head, "body", _GREY))
    for i, body in enumerate(chart.bodies):
        lines.append(_text(left + (i + 0.5) * cell, head, str(body), _GREY, middle=True))
    first = head + 8
    right = left + cell * len(chart.bodies)
    steps = [*[None] * (len(rows) - len(chart.record.steps)), *chart.record.steps]
    lines += _prologue(chart, left, first - 4, cell * chart.record.depth, len(rows))
    for r, (name, row) in enumerate(rows):
        y = first + r * _CELL_HEIGHT
        lines.append(_text(_MARGIN, y + 17, name, _INK))
        step = steps[r]
        for i, text in enumerate(row):
            if text:
                lines.append(_box(chart, step, chart.bodies[i], text, left + i * cell, y, cell))
    y = first + len(rows) * _CELL_HEIGHT
    if not chart.has_all:
        lines.append(_text(right + 4, first + 17, "...", _GREY))
    width = right + 30
    for note in chart.notes():
        y += _LINE
        lines.append(_text(_MARGIN, y, note, _GREY))
        width = max(width, _MARGIN + _text_width(note))
    return lines, width, y - top


def _prologue(chart: PipelineChart, x: float, y: float, width: float, rows: int) -> list[str]:
    """A shade behind the bodies that only copy."""
    if not chart.record.depth:
        return []
    return [
        f'<rect x="{x:.1f}" y="{y:.0f}" width="{width:.1f}" '
        f'height="{rows * _CELL_HEIGHT + 4}" fill="#f3f3f3"/>'
    ]


def _box(
    chart: PipelineChart,
    step: PipelineStep | None,
    body: int,
    text: str,
    x: float,
    y: float,
    width: float,
) -> str:
    """What happens in a body; dashed where it is an asynchronous copy, which lands later."""
    fill, dash, detail = "#e4e4e4", "", f"body {body}: {text}"
    if step is not None:
        iteration = chart.record.runs(step, body) or 0
        used = step.fills or (step.reads[0] if step.reads else None)
        if used is not None:
            fill = _colour(chart.record.version(used, iteration))
        if step.fills and chart.way(step) == "async":
            dash = ' stroke-dasharray="4 2"'
        detail = f"body {body}: {chart.label(step)}, iteration {iteration}"
    return (
        f"<g><title>{escape(detail)}</title>"
        f'<rect x="{x + 2:.1f}" y="{y:.0f}" width="{width - 4:.1f}" height="{_CELL_HEIGHT - 4}" '
        f'rx="3" fill="{fill}" stroke="#666666"{dash}/>'
        f"{_text(x + width / 2, y + 15, text, _INK, middle=True)}</g>"
    )


def _colour(version: int) -> str:
    """Put neighbouring versions far apart on the wheel."""
    red, green, blue = colorsys.hls_to_rgb((0.58 + version * 0.381966) % 1, 0.8, 0.65)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def _text_width(text: str) -> float:
    return _CHARACTER * len(text)


def _text(
    x: float, y: float, text: str, fill: str, *, middle: bool = False, bold: bool = False
) -> str:
    anchor = ' text-anchor="middle"' if middle else ""
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.0f}" fill="{fill}"{anchor}{weight}>{escape(text)}</text>'
