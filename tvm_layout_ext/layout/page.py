"""Pictures of layouts as an HTML page, which tells the whole story where one points.

Rows are boxes of text and not a drawing, so that the browser lays out only those in view: as SVG,
the 65,536 elements of a 256x256 tensor took it many seconds to open and one more for each move of
the mouse. Names of rows and columns stay in view while one scrolls.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .boxes import (
    CELL_HEIGHT,
    FONT,
    PALETTES,
    cell_width,
    details_of,
    hues_of,
    label_of,
    runs_of,
    text_width,
)
from .picture import Cell, Grid

__all__ = ["as_page"]

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
body {{ margin: 0; height: 100vh; display: flex; flex-direction: column; color: #111111;
  background: #ffffff; font: {font}px/{height}px monospace; }}
header {{ flex: none; padding: 6px 12px; background: #222222; color: #ffffff; }}
h1, h2, p {{ margin: 0; font: inherit; overflow-wrap: anywhere; }}
h1 {{ font-weight: bold; }}
#legend {{ max-height: 54px; overflow: auto; }}
/* Of one height, whatever it tells: the picture must not move under the mouse. */
#detail {{ font-size: 13px; height: 36px; overflow: auto; }}
@media (max-width: 600px) {{ #detail {{ font-size: 11px; height: 72px; }} }}
#picture {{ flex: 1; min-height: 0; overflow: auto; }}
section {{ width: max-content; padding: 0 12px 12px 0; }}
h2 {{ position: sticky; left: 0; width: max-content; padding-left: 12px; }}
.key {{ display: inline-block; margin-right: 10px; white-space: nowrap; }}
.key i {{ display: inline-block; width: 12px; height: 12px; margin-right: 4px;
  vertical-align: middle; }}
.row {{ display: flex; height: {height}px; content-visibility: auto; }}
.row > * {{ flex: none; box-sizing: border-box; width: calc(var(--cell) * var(--n, 1));
  font-style: normal; font-weight: normal; text-align: center; text-decoration: none;
  white-space: nowrap; overflow: hidden; border: 1px solid #ffffff; }}
.row > b {{ color: #666666; background: #ffffff; }}
.row > b:first-child {{ position: sticky; left: 0; width: var(--names); z-index: 1; }}
.names {{ position: sticky; top: 0; z-index: 2; content-visibility: visible; }}
.row > .same {{ border-color: #000000; }}
{colours}
</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p id="legend">{legend}</p>
<p id="detail">Point at an element.</p>
</header>
<main id="picture">
{grids}
</main>
<script>
const detail = document.getElementById("detail");
const boxes = new Map();
for (const box of document.querySelectorAll("i[data-owner]")) {{
  const owner = box.dataset.owner;
  if (!boxes.has(owner)) boxes.set(owner, []);
  boxes.get(owner).push(box);
}}
let marked = [];
function mark(owner) {{
  for (const box of marked) box.classList.remove("same");
  marked = boxes.get(owner) || [];
  for (const box of marked) box.classList.add("same");
}}
document.addEventListener("mouseover", event => {{
  const box = event.target.closest("i[data-owner]");
  if (box) detail.textContent = box.title;
  mark(box ? box.dataset.owner : null);
}});
</script>
</body>
</html>
"""


def as_page(title: str, grids: Sequence[Grid], colour_word: str, merge: bool) -> str:
    """Write grids below each other; ``merge`` joins cells that continue each other."""
    colours = _Colours(colour_word)
    sections = [_section(grid, merge, colours) for grid in grids]
    legend = "" if colour_word == "columns" else _legend(hues_of(grids), colour_word, colours)
    return _PAGE.format(
        title=escape(title),
        font=FONT,
        height=CELL_HEIGHT,
        legend=legend,
        grids="\n".join(sections),
        colours=colours.rules(),
    )


class _Colours:
    """Gives each colour in use a short class name; a page repeats few colours many times."""

    def __init__(self, word: str) -> None:
        self.palette = PALETTES[word]
        self.names: dict[str, str] = {}

    def name(self, hue: int, shade: int) -> str:
        return self.names.setdefault(self.palette(hue, shade), f"c{len(self.names)}")

    def rules(self) -> str:
        rules = (f".{name} {{ background: {fill}; }}" for fill, name in self.names.items())
        return "\n".join(rules)


def _section(grid: Grid, merge: bool, colours: _Colours) -> str:
    rows = [runs_of(row, merge) for row in grid.rows]
    names = text_width(max(grid.row_names, key=len)) + 24
    style = f"--cell: {cell_width(grid, rows):.1f}px; --names: {names:.1f}px"
    heads = "".join(f"<b>{escape(name)}</b>" for name in grid.column_names)
    lines = [
        f'<section style="{style}">',
        f"<h2>{escape(grid.title)}</h2>",
        f'<div class="row names"><b></b>{heads}</div>',
        *(_row(name, row, colours) for name, row in zip(grid.row_names, rows, strict=True)),
        "</section>",
    ]
    return "\n".join(lines)


def _row(name: str, runs: Sequence[tuple[int, list[Cell]]], colours: _Colours) -> str:
    parts, at = [f"<b>{escape(name)}</b>"], 0
    for first, run in runs:
        if first > at:
            parts.append(f'<s style="--n: {first - at}"></s>')
        parts.append(_box(run, colours))
        at = first + len(run)
    return f'<div class="row">{"".join(parts)}</div>'


def _box(run: Sequence[Cell], colours: _Colours) -> str:
    first = run[0]
    width = f' style="--n: {len(run)}"' if len(run) > 1 else ""
    return (
        f'<i class="{colours.name(first.hue, first.shade)}" data-owner="{first.owner}"{width} '
        f'title="{escape(details_of(run))}">{escape(label_of(run))}</i>'
    )


def _legend(hues: Sequence[int], word: str, colours: _Colours) -> str:
    keys = (f'<i class="{colours.name(hue, 0)}"></i>{word} {hue}' for hue in hues)
    return "".join(f'<span class="key">{key}</span>' for key in keys)
