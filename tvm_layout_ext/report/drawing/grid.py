"""Grids of labelled cells: what a picture shows, and the boxes, sizes and colours of a drawing."""

from __future__ import annotations

import colorsys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...gpu.hardware import NUM_BANKS

#: Pixels.
FONT, CELL_HEIGHT, CHARACTER = 10, 18, 6.2
#: Of boxes that belong to nothing.
GREY = "#e4e4e4"
#: A legend of more colours would be no help.
MOST_HUES = 32
#: The golden section puts neighbours far apart on the colour wheel.
_APART = 0.381966


@dataclass(frozen=True)
class Cell:
    """One element."""

    label: str
    #: Its colour: a warp, a bank, 16 bytes' worth of columns, a version; below 0 for grey.
    hue: int
    shade: int  #: A lane, which tells neighbours of one hue apart
    owner: int  #: A thread or a bank, whose cells are marked together
    position: int  #: The number that ends the label
    detail: str  #: Shown where the reader points
    dashed: bool = False

    def follows(self, other: Cell) -> bool:
        """Whether this cell continues ``other``, so that a row may show both as one box."""
        mine, theirs = ((c.owner, c.stem, c.position) for c in (self, other))
        return mine[:2] == theirs[:2] and mine[2] == theirs[2] + 1

    @property
    def stem(self) -> str:
        """The label without the number that ends it."""
        return self.label[: max(self.label.rfind(":"), self.label.rfind(",")) + 1]


@dataclass(frozen=True)
class Grid:
    """A titled table of cells, None where there is nothing.

    ``notes`` are lines below it; its first ``tinted`` columns have a grey ground.
    """

    title: str
    row_names: Sequence[str]
    column_names: Sequence[str]
    rows: Sequence[Sequence[Cell | None]]
    notes: Sequence[str] = ()
    tinted: int = 0


@dataclass
class Box:
    """Cells of a row that are drawn as one, from a column on."""

    column: int
    cells: list[Cell] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The column behind it."""
        return self.column + len(self.cells)

    @property
    def label(self) -> str:
        """``5:0-3`` for four registers of a thread."""
        first, last = self.cells[0].label, self.cells[-1]
        if len(self.cells) == 1:
            return first
        return f"{first.removesuffix('+')}-{last.label.removeprefix(last.stem)}"

    @property
    def detail(self) -> str:
        """The whole story of the first and the last cell."""
        first, last = self.cells[0].detail, self.cells[-1].detail
        return first if len(self.cells) == 1 else f"{first} ... {last}"


def boxes_of(grid: Grid, merge: bool) -> list[list[Box]]:
    """Group the cells of each row; ``merge`` joins those that continue each other."""
    rows: list[list[Box]] = []
    for row in grid.rows:
        boxes: list[Box] = []
        for at, cell in enumerate(row):
            if cell is None:
                continue
            if not (merge and boxes and boxes[-1].end == at and cell.follows(boxes[-1].cells[-1])):
                boxes.append(Box(at))
            boxes[-1].cells.append(cell)
        rows.append(boxes)
    return rows


def cell_width(grid: Grid, rows: Sequence[Sequence[Box]]) -> float:
    """Wide enough for every label, one that covers several cells being allowed all of them."""
    labels = ((text_width(box.label) + 6) / len(box.cells) for row in rows for box in row)
    names = (text_width(name) + 4 for name in grid.column_names)
    return max([12.0, *labels, *names])


def text_width(text: str) -> float:
    """Pixels that a text takes."""
    return CHARACTER * len(text)


def _colour(turn: float, lightness: float) -> str:
    return "#" + "".join(f"{round(255 * c):02x}" for c in colorsys.hls_to_rgb(turn, lightness, 0.6))


#: Colour of a hue and a shade, by what hues are. Banks go round the wheel once, and so do the 8
#: accesses of 16 bytes that make 128.
PALETTES: dict[str, Callable[[int, int], str]] = {
    "warp": lambda warp, lane: _colour(warp * _APART % 1, 0.68 + 0.18 * (lane * _APART % 1)),
    "bank": lambda bank, _: _colour(bank / NUM_BANKS, 0.78),
    "columns": lambda columns, _: _colour(columns / 8 % 1, 0.78),
    "wavefront": lambda extra, _: "#f2a29b" if extra else "#cfd9e4",
    "version": lambda version, _: _colour((0.58 + version * _APART) % 1, 0.8),
}


def colour_of(word: str, cell: Cell) -> str:
    """The colour of a cell; ``word`` says what hues are, a key of :data:`PALETTES`."""
    return PALETTES[word](cell.hue, cell.shade) if cell.hue >= 0 else GREY


def legend_of(grids: Sequence[Grid], word: str) -> list[tuple[str, str]]:
    """Name and colour of each hue; columns have as many as there are, which tells nothing."""
    if word == "columns":
        return []
    if word == "wavefront":
        return [("needed", PALETTES[word](0, 0)), ("over the least", PALETTES[word](1, 0))]
    hues = {cell.hue for grid in grids for row in grid.rows for cell in row if cell}
    shown = [hue for hue in sorted(hues)[:MOST_HUES] if hue >= 0]
    return [(f"{word} {hue}", PALETTES[word](hue, 0)) for hue in shown]
