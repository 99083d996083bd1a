"""What drawings of layouts share: boxes of cells, their labels, sizes and colours."""

from __future__ import annotations

import colorsys
from collections.abc import Callable, Sequence

from ..gpu.hardware import NUM_BANKS
from .picture import Cell, Grid

__all__ = [
    "CELL_HEIGHT",
    "FONT",
    "PALETTES",
    "Palette",
    "cell_width",
    "details_of",
    "hues_of",
    "label_of",
    "runs_of",
    "text_width",
]

#: Pixels.
FONT, CELL_HEIGHT, CHARACTER = 10, 18, 6.2
#: A legend of more colours would be no help.
MOST_HUES = 32


def runs_of(row: Sequence[Cell | None], merge: bool) -> list[tuple[int, list[Cell]]]:
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


def label_of(run: Sequence[Cell]) -> str:
    """Label a box: ``5:0-3`` for four registers of a thread."""
    first, last = run[0].label, run[-1]
    if len(run) == 1:
        return first
    return f"{first.removesuffix('+')}-{last.label.removeprefix(last.stem)}"


def details_of(run: Sequence[Cell]) -> str:
    """The whole story of the first and the last cell of a box."""
    return run[0].detail if len(run) == 1 else f"{run[0].detail} ... {run[-1].detail}"


def cell_width(grid: Grid, runs: Sequence[Sequence[tuple[int, list[Cell]]]]) -> float:
    """Wide enough for every label, one that covers several cells being allowed all of them."""
    labels = ((text_width(label_of(run)) + 6) / len(run) for row in runs for _, run in row)
    names = (text_width(name) + 4 for name in grid.column_names)
    return max([12.0, *labels, *names])


def text_width(text: str) -> float:
    """Pixels that a text takes."""
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


def hues_of(grids: Sequence[Grid]) -> list[int]:
    """The hues that a legend names."""
    hues = {cell.hue for grid in grids for row in grid.rows for cell in row if cell}
    return sorted(hues)[:MOST_HUES]


Palette = Callable[[int, int], str]
PALETTES: dict[str, Palette] = {
    "warp": _warp_colour,
    "bank": _bank_colour,
    "columns": _columns_colour,
}
