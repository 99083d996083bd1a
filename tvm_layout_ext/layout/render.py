"""Pictures of layouts, as text, SVG, or an HTML page that tells details where one points."""

from __future__ import annotations

import colorsys
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING

from ..errors import LayoutError
from ..hardware import NUM_BANKS
from .banks import MAX_ACCESS_BITS
from .linear import is_power_of_two
from .picture import (
    Cell,
    Grid,
    bank_grids,
    count_cells,
    hardware_grids,
    is_shared,
    tensor_grids,
)

if TYPE_CHECKING:
    from .base import Layout

__all__ = ["render"]

VIEWS: dict[str, Callable[[Layout, Sequence[int], int], list[Grid]]] = {
    "tensor": tensor_grids,
    "hardware": hardware_grids,
    "bank": bank_grids,
}
#: More places than a 256x256 tensor has would be no picture any more.
MOST_CELLS = 1 << 18
#: From this size on, neighbours that continue each other are drawn as one box.
MERGE_FROM = 1024

FONT, CELL_HEIGHT, MARGIN, LINE = 10, 18, 12, 20
CHARACTER = 6.2


def render(
    layout: Layout,
    shape: Sequence[int],
    kind: str = "text",
    view: str = "tensor",
    element_bits: int | None = None,
) -> str:
    """Draw where a layout puts the elements of a tensor.

    Parameters
    ----------
    layout : Layout
        What to draw.
    shape : sequence of int
        The tensor's shape.
    kind : str
        ``text``, ``svg`` or ``html``.
    view : str
        ``tensor`` shows the tensor with the holder of each element (thread:register), or with its
        place in shared memory (bank:offset). ``hardware`` shows threads and registers, ``bank``
        shared memory, with the coordinates of what lies there.
    element_bits : int, optional
        Bits of an element, for banks; 32 unless the layout says.

    Examples
    --------
    >>> from tvm_layout_ext.layout import SwizzledSharedLayout
    >>> print(render(SwizzledSharedLayout(1, 1, 4, [1, 0]), [4, 4], view="bank", element_bits=128))
    SwizzledShared(vec=1, per_phase=1, max_phase=4, order=[1, 0]) on 4x4
    Banks and offsets of 128-bit elements
         b0   b4   b8  b12  b16  b20  b24  b28
     0  0,0  0,1  0,2  0,3  1,1  1,0  1,3  1,2
     8  2,2  2,3  2,0  2,1  3,3  3,2  3,1  3,0

    Raises
    ------
    LayoutError
        If kind, view or element_bits is unknown, or the picture would have more than 2^18 cells.
    """
    if kind not in KINDS:
        raise LayoutError(f"kind is {kind!r}; it must be one of {', '.join(KINDS)}.")
    if view not in VIEWS:
        raise LayoutError(f"view is {view!r}; it must be one of {', '.join(VIEWS)}.")
    bits = element_bits or getattr(layout, "element_bitwidth", 32)
    if not isinstance(bits, int) or not is_power_of_two(bits) or not 8 <= bits <= MAX_ACCESS_BITS:
        raise LayoutError(f"element_bits is {bits}; it must be 8, 16, 32, 64 or 128.")
    linear = layout.to_linear(shape)
    if max(linear.total_in_size, linear.total_out_size) > MOST_CELLS:
        raise LayoutError(
            f"A picture of {linear.total_in_size} places is too large; {MOST_CELLS} is the most."
        )
    title = f"{layout} on {'x'.join(map(str, shape))}"
    grids = VIEWS[view](layout, shape, bits)
    return KINDS[kind](title, grids, _colour_word(is_shared(linear), view))


def _colour_word(shared: bool, view: str) -> str:
    if not shared:
        return "warp"
    return "bank" if view == "tensor" else "columns"


# Text


def _as_text(title: str, grids: Sequence[Grid], _: str) -> str:
    return "\n".join([title, *(line for grid in grids for line in _text_lines(grid))])


def _text_lines(grid: Grid) -> list[str]:
    texts = [[cell.label if cell else "." for cell in row] for row in grid.rows]
    width = max(len(text) for row in [*texts, grid.column_names] for text in row)
    margin = max(map(len, grid.row_names)) + 1
    lines = [grid.title, " " * margin + "".join(f"  {n:>{width}}" for n in grid.column_names)]
    for name, row in zip(grid.row_names, texts, strict=True):
        lines.append(f"{name:>{margin}}" + "".join(f"  {text:>{width}}" for text in row))
    return lines


# SVG


def _as_svg(title: str, grids: Sequence[Grid], colour_word: str) -> str:
    merge = count_cells(grids) >= MERGE_FROM
    parts: list[str] = []
    top, width = float(MARGIN + LINE), _text_width(title) + 2 * MARGIN
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
    runs = [_runs(row, merge) for row in grid.rows]
    cell = _cell_width(grid, runs)
    left = MARGIN + _text_width(max(grid.row_names, key=len)) + 6
    lines = [f'<text x="{MARGIN}" y="{top + FONT:.0f}">{escape(grid.title)}</text>']
    head = top + LINE + FONT
    for i, name in enumerate(grid.column_names):
        lines.append(_centred(left + (i + 0.5) * cell, head, name, "#777777"))
    first = head + 5
    for r, (name, row) in enumerate(zip(grid.row_names, runs, strict=True)):
        y = first + r * CELL_HEIGHT
        x = left - 6 - _text_width(name) / 2
        lines.append(_centred(x, y + 13, name, "#777777"))
        for at, run in row:
            fill = palette(run[0].hue, run[0].shade)
            lines.append(_box(run, left + at * cell, y, cell * len(run), fill))
    height = first - top + CELL_HEIGHT * len(runs)
    return lines, left + cell * len(grid.column_names) - MARGIN, height


def _runs(row: Sequence[Cell | None], merge: bool) -> list[tuple[int, list[Cell]]]:
    """Group the cells of a row that are drawn as one, with the column each group begins at."""
    runs: list[tuple[int, list[Cell]]] = []
    for at, cell in enumerate(row):
        if cell is None:
            continue
        last = runs[-1] if runs else None
        if merge and last and last[0] + len(last[1]) == at and cell.follows(last[1][-1]):
            last[1].append(cell)
        else:
            runs.append((at, [cell]))
    return runs


def _box(run: Sequence[Cell], x: float, y: float, width: float, fill: str) -> str:
    detail = escape(_details(run))
    return (
        f'<g data-owner="{run[0].owner}"><title>{detail}</title>'
        f'<rect x="{x:.1f}" y="{y:.0f}" width="{width:.1f}" height="{CELL_HEIGHT}" fill="{fill}" '
        f'stroke="#ffffff"/>{_centred(x + width / 2, y + 13, _run_label(run), "#111111")}</g>'
    )


def _run_label(run: Sequence[Cell]) -> str:
    first, last = run[0].label, run[-1]
    if len(run) == 1:
        return first
    return f"{first.removesuffix('+')}-{last.label.removeprefix(last.stem)}"


def _details(run: Sequence[Cell]) -> str:
    return run[0].detail if len(run) == 1 else f"{run[0].detail} ... {run[-1].detail}"


def _cell_width(grid: Grid, runs: Sequence[Sequence[tuple[int, list[Cell]]]]) -> float:
    """Wide enough for every label, one that covers several cells being allowed all of them."""
    labels = ((_text_width(_run_label(run)) + 6) / len(run) for row in runs for _, run in row)
    names = (_text_width(name) + 4 for name in grid.column_names)
    return max([12.0, *labels, *names])


def _legend(grids: Sequence[Grid], word: str, top: float) -> list[str]:
    if word == "columns":
        return []
    hues = sorted({cell.hue for grid in grids for row in grid.rows for cell in row if cell})[:32]
    step = _text_width(f"{word} 00") + 22
    lines = []
    for i, hue in enumerate(hues):
        x = MARGIN + i * step
        fill = PALETTES[word](hue, 0)
        box = f'<rect x="{x:.1f}" y="{top:.0f}" width="12" height="12" fill="{fill}"/>'
        lines.append(f'{box}<text x="{x + 16:.1f}" y="{top + FONT:.0f}">{word} {hue}</text>')
    return lines


def _centred(x: float, y: float, text: str, fill: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.0f}" text-anchor="middle" fill="{fill}">{escape(text)}</text>'


def _text_width(text: str) -> float:
    return CHARACTER * len(text)


def _warp_colour(warp: int, lane: int) -> str:
    """Put neighbouring warps far apart on the wheel, and let lanes differ in lightness."""
    return _colour(warp * 0.381966 % 1, 0.68 + 0.18 * (lane * 0.381966 % 1))


def _bank_colour(bank: int, _: int) -> str:
    """Go round the wheel once in 32 banks."""
    return _colour(bank / NUM_BANKS, 0.78)


def _columns_colour(columns: int, _: int) -> str:
    """Go round the wheel once in the 8 accesses of 16 bytes that make 128."""
    return _colour(columns / 8 % 1, 0.78)


def _colour(turn: float, lightness: float) -> str:
    return "#" + "".join(f"{round(255 * c):02x}" for c in colorsys.hls_to_rgb(turn, lightness, 0.6))


Palette = Callable[[int, int], str]
PALETTES: dict[str, Palette] = {
    "warp": _warp_colour,
    "bank": _bank_colour,
    "columns": _columns_colour,
}


# HTML

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font-family: sans-serif; margin: 0; }}
#detail {{ position: sticky; top: 0; left: 0; min-height: 1.4em; padding: 6px 12px;
  background: #222222; color: #ffffff; font-family: monospace; white-space: normal; }}
g.same rect {{ stroke: #000000; stroke-width: 2; }}
</style>
</head>
<body>
<div id="detail">Point at an element.</div>
{svg}
<script>
const detail = document.getElementById("detail");
function mark(owner, on) {{
  for (const box of document.querySelectorAll(`g[data-owner="${{owner}}"]`))
    box.classList.toggle("same", on);
}}
document.addEventListener("mouseover", event => {{
  const box = event.target.closest("g[data-owner]");
  if (!box) return;
  detail.textContent = box.querySelector("title").textContent;
  mark(box.dataset.owner, true);
}});
document.addEventListener("mouseout", event => {{
  const box = event.target.closest("g[data-owner]");
  if (box) mark(box.dataset.owner, false);
}});
</script>
</body>
</html>
"""


def _as_html(title: str, grids: Sequence[Grid], colour_word: str) -> str:
    return _PAGE.format(title=escape(title), svg=_as_svg(title, grids, colour_word))


KINDS: dict[str, Callable[[str, Sequence[Grid], str], str]] = {
    "text": _as_text,
    "svg": _as_svg,
    "html": _as_html,
}
