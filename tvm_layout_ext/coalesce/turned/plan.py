"""How a block of threads turns a tile: what it loads, how that lies, which vectors it stores.

Rows of the source lie in shared memory as far inside of vectors as they do in global memory, so
that what is loaded is put down as it is: the pitch of the tile has the rest of the source's own.

Rows of the result take the elements from the multiple of a sector at or before the tile's first on,
so that no two blocks write to a sector: an H100 turned 10001x15003 halves in 219 us so, and in 284
from multiples of vectors on. For that the tile has some columns more at its begin. Neighbouring
blocks are along the rows of the result: along those of the source an H200 turned the same at 0.87
of a copy, and at 0.92 so.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import cached_property
from math import prod

from ...analysis.nest import element_bytes
from ...gpu.hardware import LINE_BYTES, WARP_SIZE
from .move import Turn

#: Elements of a tile along either side, by their bytes, and threads of a block.
_ELEMENTS = {1: 128, 2: 128, 4: 64, 8: 32}
_THREADS = 256
#: Lanes of a warp along a row of the result, those that are better first.
_LANES = (8, 4)


@dataclass(frozen=True)
class TurnPlan:
    """The numbers of a plan."""

    row: int  #: Elements of a tile along the rows of the source, a multiple of its vectors
    column: int  #: Along those of the result, a multiple of its vectors, or of its sectors
    threads: int  #: Of a block

    def numbers(self) -> tuple[int, ...]:
        """Values for an annotation."""
        return astuple(self)


@dataclass(frozen=True)
class TurnedTile:
    """A plan for a move."""

    turn: Turn
    plan: TurnPlan

    @property
    def margin(self) -> int:
        """Columns before the tile's first that rows of the result may begin with."""
        return self.turn.unit - 1 if self.turn.stores_askew else 0

    @property
    def columns(self) -> int:
        """Rows of the source that the tile holds."""
        return self.plan.column + self.margin

    @property
    def vectors(self) -> int:
        """Vectors of each of these: where they begin anywhere, one more."""
        return self.plan.row // self.turn.load_vector + self.turn.loads_askew

    @cached_property
    def pitch(self) -> int:
        """Elements from one of them to the next, which is as much of a vector as in the source."""
        vector = self.turn.load_vector
        return self.vectors * vector + self.turn.column.load % vector

    @cached_property
    def step(self) -> int:
        """Elements more for each vector of the result.

        Lanes along the result read so many rows of the tile apart: an odd number of vectors, and
        no two of eight lanes meet in a bank.
        """
        vector = self.turn.load_vector
        apart = self.pitch * self.turn.store_vector // vector
        return vector if apart % 2 == 0 else 0

    @property
    def elements(self) -> int:
        """Of the tile in shared memory."""
        vector = self.turn.load_vector
        steps = (self.columns - 1) // self.turn.store_vector
        last = vector + (self.columns - 1) * self.pitch + steps * self.step
        return -(-(last + self.vectors * vector) // vector) * vector

    @property
    def shared_bytes(self) -> int:
        """Of the tile in shared memory."""
        return self.elements * element_bytes(self.turn.source)

    @property
    def along(self) -> int:
        """Vectors of a row of the result that the tile has."""
        return self.plan.column // self.turn.store_vector

    @property
    def lanes(self) -> int:
        """Lanes of a warp that share the vectors of such a row; 0 if all take them in turn."""
        return next((n for n in _LANES if self.along % n == 0), 0)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks of all other dims, along rows of the source, and along those of the result."""
        turn, plan = self.turn, self.plan
        return (
            prod(dim.extent for dim in turn.outer),
            -(-turn.row.extent // plan.row),
            -(-(turn.column.extent + self.margin) // plan.column),
        )

    def __str__(self) -> str:
        plan, turn = self.plan, self.turn
        return (
            f"tile {plan.row}x{plan.column}, {plan.threads} threads, rows where vectors lie, "
            f"loads of {turn.load_vector} elements, stores of {turn.store_vector}"
        )


def default_plan(turn: Turn, threads: int | None) -> TurnPlan:
    """Choose the tile."""
    row = _evenly(turn.row.extent, _ELEMENTS[element_bytes(turn.source)], turn.load_vector)
    column = _lines(turn.column.extent, element_bytes(turn.target), turn.unit)
    most = max(row * column // turn.store_vector, WARP_SIZE)
    return TurnPlan(row, column, min(threads or _THREADS, 1 << (most.bit_length() - 1)))


def _evenly(extent: int, most: int, vector: int) -> int:
    """Vectors that share out a row evenly, as few parts as tiles of so many elements make."""
    even = -(-extent // -(-extent // most))
    return -(-even // vector) * vector


def _lines(extent: int, size: int, unit: int) -> int:
    """Whole lines of a row of the result; all of a row that has none."""
    line = LINE_BYTES // size
    whole = min(extent, _ELEMENTS[size]) // line * line
    return whole or -(-extent // unit) * unit
