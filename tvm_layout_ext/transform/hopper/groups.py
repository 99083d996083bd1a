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
    """The groups of which bounds keep rows, ``at[group] <= row < at[group + 1]``; other bounds."""
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
    """The tiles of groups, and the blocks that take them.

    A tile has ``height`` rows, and ``columns`` of them lie beside each other; ``group`` rows of
    tiles are taken together. ``grid`` blocks take ``turns`` tiles each, at most.
    """

    groups: Groups
    height: int
    columns: int
    group: int
    grid: int
    turns: int
    block: Any

    def over(self, body: Callable[[Any, Any, Any, Any, Any], Any]) -> Any:
        """Take tile after tile: ``body(turn, group, row, end, column)``.

        ``row`` is the first of the tile and ``end`` that behind the group's last one; ``column``
        counts tiles. Turns of a block count on from group to group.
        """
        # Registers: TVM writes what is bound to a name out wherever it is used.
        names = "before", "first", "count", "row", "column"
        held = [tirx.decl_buffer((1,), "int32", name, scope="local") for name in names]
        each = loop("g", self.groups.count, lambda g: self._group(held, g, body))
        start = _set(held[0], tirx.IntImm("int32", 0))
        return sequence([*map(tirx.AllocBuffer, held), start, each])

    def _group(self, held: Sequence[Any], number: Any, body: Callable[..., Any]) -> Any:
        before, first, count, row, column = held
        begin, end, high = (tirx.Var(name, "int32") for name in ("begin", "end", "high"))
        after = before[0] + high * self.columns

        def tile(t: Any) -> Any:
            turn = tirx.min(tirx.max(first[0], 0), self.turns) + t
            at = turn * self.grid + self.block - before[0]
            found = grouped(0, at, high, self.columns, self.group)
            return sequence(
                [
                    _set(row, begin + found[0] * self.height),
                    _set(column, found[1]),
                    body(turn, number, row[0], end, column[0]),
                ]
            )

        # Bounds spare the lowering of quotients a look at signs.
        turns = tirx.min(count[0], self.turns)
        return sequence(
            [
                tirx.Bind(begin, self.groups.begin(number)),
                tirx.Bind(end, self.groups.begin(number + 1)),
                tirx.Bind(high, (end - begin + self.height - 1) // self.height),
                _set(first, self._until(before[0])),
                _set(count, self._until(after) - first[0]),
                loop("t", turns, tile),
                _set(before, after),
            ]
        )

    def _until(self, tiles: Any) -> Any:
        """Turns of this block among so many tiles."""
        return (tiles + (self.grid - 1) - self.block) // self.grid


def _set(buffer: Any, value: Any) -> Any:
    return tirx.BufferStore(buffer, value, [0])
