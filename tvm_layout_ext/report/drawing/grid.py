"""Grids of labelled cells: what a picture shows, and the boxes, sizes and colours of a drawing."""

from __future__ import annotations

import colorsys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...gpu.hardware import NUM_BANKS

__all__ = [
    "CELL_HEIGHT",
    "FONT",
    "Cell",
    "Grid",
    "cell_width",
    "colour_of",
    "details_of",
    "label_of",
    "legend_of",
    "runs_of",
    "text_width",
]

#: Pixels.
FONT, CELL_HEIGHT, CHARACTER = 10, 18, 6.2
#: Of boxes that belong to nothing.
GREY = "#e4e4e4"
#: A legend of more colours would be no help.
MOST_HUES = 32


@dataclass(frozen=True)
class Cell:
    """One element, or one empty place.

    Attributes
    ----------
    label : str
        What is written into it.
    hue : int
        Cells of one hue get one colour: a warp, a bank, 16 bytes' worth of columns, a version of a
        buffer; below 0 for grey.
    shade : int
        Tells neighbours of one hue apart: a lane.
    owner : int
        Cells of one owner are marked together: a thread, or a bank.
    position : int
        The number that ends the label.
    detail : str
        The whole story, shown where the reader points.
    dashed : bool
        Whether the box has a dashed border.
    """

    label: str
    hue: int
    shade: int
    owner: int
    position: int
    detail: str
    dashed: bool = False

    def follows(self, other: Cell) -> bool:
        """Whether this cell continues ``other``, so that a row may show both as one box."""
        return (
            self.owner == other.owner
            and self.position == other.position + 1
            and self.stem == other.stem
        )

    @property
    def stem(self) -> str:
        """The label without the number that ends it."""
        return self.label[: max(self.label.rfind(":"), self.label.rfind(",")) + 1]


@dataclass(frozen=True)
class Grid:
    """A titled table of cells; None marks a place that holds nothing.

    Attributes
    ----------
    title : str
    row_names, column_names : sequence of str
    rows : sequence of sequences of Cell or None
    notes : sequence of str
        Lines below it.
    tinted : int
        So many columns, from the first, have a grey ground.
    """

    title: str
    row_names: Sequence[str]
    column_names: Sequence[str]
    rows: Sequence[Sequence[Cell | None]]
    notes: Sequence[str] = ()
    tinted: int = 0


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


def _version_colour(version: int, _: int) -> str:
    """Put neighbouring versions far apart on the wheel."""
    return _colour((0.58 + version * 0.381966) % 1, 0.8)


def _colour(turn: float, lightness: float) -> str:
    return "#" + "".join(f"{round(255 * c):02x}" for c in colorsys.hls_to_rgb(turn, lightness, 0.6))


def legend_of(grids: Sequence[Grid], word: str) -> list[tuple[str, str]]:
    """Name and colour of each hue; columns have as many as there are, which tells nothing."""
    if word == "columns":
        return []
    hues = {cell.hue for grid in grids for row in grid.rows for cell in row if cell}
    return [
        (f"{word} {hue}", colour_of(word, hue, 0)) for hue in sorted(hues)[:MOST_HUES] if hue >= 0
    ]


def colour_of(word: str, hue: int, shade: int) -> str:
    """The colour of a hue, by what hues are: a key of ``PALETTES``."""
    return PALETTES[word](hue, shade) if hue >= 0 else GREY


Palette = Callable[[int, int], str]
PALETTES: dict[str, Palette] = {
    "warp": _warp_colour,
    "bank": _bank_colour,
    "columns": _columns_colour,
    "version": _version_colour,
}
