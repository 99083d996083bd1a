"""Rows sorted by group, each group multiplied by a factor of its own, as layers of experts.

Where groups begin is known on the GPU alone. So each block walks all groups, counts their tiles and
takes every ``grid``-th of them::

    before = 0
    for g in range(groups):
        tiles = ceil((offsets[g + 1] - offsets[g]) / rows) * columns
        for turn in those whose tile turn * grid + block lies in before .. before + tiles:
            the tile
        before += tiles
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import sym, tirx

from ...ir.rebuild import sequence
from ..launch.rasterize_blocks import grouped
from .pieces import loop


@dataclass(frozen=True)
class Groups:
    """Groups of rows: that of a number begins at ``offsets[number]``, and ends at the next one."""

    offsets: Any

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.offsets.shape[0]) - 1

    def most_tiles(self, rows: int, height: int) -> int:
        """Tiles of so many rows, at most: each group may end within one."""
        return (rows + self.count * (height - 1)) // height

    def begin(self, number: Any) -> Any:
        """The first row of a group."""
        return tirx.BufferLoad(self.offsets, [number])


def take_groups(bounds: Sequence[Any], rows: Any, group: Any) -> tuple[Groups | None, list[Any]]:
    """The groups by which bounds keep rows, ``b[group] <= row < b[group + 1]``; the other bounds."""
    begins, ends, others = [], [], []
    for bound in bounds:
        if isinstance(bound, tirx.LE) and _is_at(bound.a, group) and bound.b.same_as(rows):
            begins.append(bound.a.source)
        elif isinstance(bound, tirx.LT) and _is_at(bound.b, group + 1) and bound.a.same_as(rows):
            ends.append(bound.b.source)
        else:
            others.append(bound)
    if len(begins) != 1 or len(ends) != 1 or not begins[0].same_as(ends[0]):
        return None, list(bounds)
    return Groups(begins[0]), others


def _is_at(value: Any, place: Any) -> bool:
    """Whether a value is an element of a vector of ``int32`` at a place."""
    return (
        isinstance(value, tvm.ir.TensorLoad)
        and str(value.source.dtype) == "int32"
        and len(value.indices) == 1
        and tvm_ffi.structural_equal(
            sym.Analyzer().simplify(value.indices[0]), sym.Analyzer().simplify(place)
        )
    )


@dataclass(frozen=True)
class Walk:
    """The tiles of groups: their rows, how many columns of them, and the blocks that take them."""

    groups: Groups
    height: int
    columns: int
    group: int
    grid: int
    block: Any

    def over(self, body: Callable[[Any, Any, Any, Any, Any], Any]) -> Any:
        """Take tile after tile: ``body(turn, group, row, end, column)``.

        ``row`` is the first of the tile and ``end`` that behind the group's last one; ``column``
        counts tiles. Turns of a block count on from group to group.
        """
        before = tirx.decl_buffer((1,), "int32", "before", scope="local")
        each = loop("g", self.groups.count, lambda g: self._group(before, g, body))
        start = tirx.BufferStore(before, tirx.IntImm("int32", 0), [0])
        return sequence([tirx.AllocBuffer(before), start, each])

    def _group(self, before: Any, number: Any, body: Callable[..., Any]) -> Any:
        names = "begin", "end", "high", "first", "turns", "done"
        begin, end, high, first, turns, done = (tirx.Var(name, "int32") for name in names)

        def turn(t: Any) -> Any:
            at, row, column = (tirx.Var(name, "int32") for name in ("turn", "row", "column"))
            tile = at * self.grid + self.block - done
            places = grouped(0, tile, high, self.columns, self.group)
            return sequence(
                [
                    tirx.Bind(at, first + t),
                    tirx.Bind(row, begin + places[0] * self.height),
                    tirx.Bind(column, places[1]),
                    body(at, number, row, end, column),
                ]
            )

        return sequence(
            [
                tirx.Bind(begin, self.groups.begin(number)),
                tirx.Bind(end, self.groups.begin(number + 1)),
                tirx.Bind(high, (end - begin + self.height - 1) // self.height),
                tirx.Bind(done, before[0]),
                tirx.Bind(first, self._turns(done)),
                tirx.Bind(turns, self._turns(done + high * self.columns) - first),
                loop("t", turns, turn),
                tirx.BufferStore(before, done + high * self.columns, [0]),
            ]
        )

    def _turns(self, tiles: Any) -> Any:
        """Turns of this block among so many tiles."""
        return (tiles + (self.grid - 1) - self.block) // self.grid
