"""What the vector loop around a shifted move becomes: loads, shuffles, shifts and one store."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from ...analysis.nest import element_bytes
from ...coalesce.shifted.move import Move, pieces
from ...gpu.hardware import WARP_SIZE
from ...ir.annotations import SHIFTED
from ...ir.rebuild import sequence, whole_region
from .shifted_masks import around_hole, has_hole, hole, mixed_words, moved_up
from .shifted_window import (
    Window,
    both,
    copied,
    fill,
    local,
    pick,
    places,
    retyped,
    shuffled,
    when,
    window,
)


class ShiftedNest:
    """One vector loop around a move; ``element`` is that of the result at which it begins."""

    def __init__(self, loop: Any, realize: Any, move: Move, thread: Any, element: Any) -> None:
        self.loop, self.realize, self.move = loop, realize, move
        self.vector = int(loop.extent)
        self.lane = tirx.floormod(thread, WARP_SIZE)
        self.words = self.vector * element_bytes(move.source) // 4
        self.buffers: list[Any] = []
        self.element = element
        self.kind = str(self.element.ty.dtype)
        self.place = self.registers("place", 3, self.kind)
        self.own = window(move, self.vector, self.place, False)
        self.gap = move.gap(self.vector)

    @property
    def _block(self) -> Any:
        return self.realize.block

    def _places(self) -> list[Any]:
        columns = self.move.columns
        row = tirx.floordiv(self.element, columns) if len(self.move.shape) > 1 else 0
        column = self.element - tirx.BufferLoad(self.place, [0]) * columns
        return places(self.move, self.place, row, column)

    def _places_after(self, place: Any) -> list[Any]:
        """The row in which the vector ends, and where the vector begins in its columns."""
        torn = tirx.Cast(self.kind, self.own.column + self.vector > self.move.columns)
        row = tirx.BufferLoad(self.place, [0]) + torn
        return places(self.move, place, row, self.own.column - torn * self.move.columns)

    def registers(self, name: str, size: int, dtype: str = "uint32") -> Any:
        """Allocate registers."""
        made = local(f"{self._block.name_hint}_{name}", size, dtype)
        self.buffers.append(made)
        return made

    def lowered(self) -> Any:
        """Make the statement that does what the loop did."""
        own, sent, following = (
            self.registers(name, self.words) for name in ("own", "sent", "next")
        )
        elements = self.registers("row", self.vector, str(self.move.source.dtype))
        live = self.element < self.move.total
        alone = tirx.Or(
            self.lane == WARP_SIZE - 1, self.own.column + self.vector >= self.move.columns
        )
        back = tirx.Select(self.lane > 0, self.own.shift, self.own.shift * 0)
        wanted = both([live, *self.own.needs_low(back, self.gap)])
        missing = both([live, alone, *self.own.needs_high(self.gap)])
        of_one_row = both(self.own.is_all_held())
        out = self._out(elements)
        body = [
            *self._places(),
            fill(own),
            when(wanted, self.own.load(own, 0, self.buffers)),
            # Before the shuffles, which wait for the first load.
            when(missing, self.own.load(following, 1, self.buffers)),
            *shuffled(own, sent),
            when(tirx.Not(missing), copied(sent, 0, following, 0, self.words)),
            *pick(self.own, own, following, elements, self.buffers),
            *([] if out is elements else [self._vector(out, lambda v: self._value(elements, v))]),
            *(
                [when(tirx.And(live, tirx.Not(of_one_row)), self._mixed(elements, sent, out))]
                if self._has_ends
                else []
            ),
            when(live, self._stored(out)),
        ]
        return self._as_block(sequence(body))

    def _as_block(self, body: Any) -> Any:
        block = SBlock(
            [],
            [whole_region(self.move.source)],
            [whole_region(self.move.target)],
            str(self._block.name_hint),
            body,
            None,
            self.buffers,
            annotations={
                key: value for key, value in self._block.annotations.items() if key != SHIFTED
            },
        )
        return SBlockRealize([], True, block)

    @property
    def _has_ends(self) -> bool:
        """Whether some vector is not all of one row, or not all from the source."""
        move = self.move
        whole = move.columns % self.vector == 0 and not move.rows
        return not (whole and move.first <= 0 and move.last >= move.columns)

    def _out(self, elements: Any) -> Any:
        """Registers of what is stored: those of what was loaded, where nothing is cast."""
        if self.move.value.same_as(self.move.load):
            return elements
        return self.registers("out", self.vector, str(self.move.target.dtype))

    def _vector(self, target: Any, value: Any) -> Any:
        var = tirx.Var("v", self.loop.loop_var.ty)
        store = tirx.BufferStore(target, value(var), [var])
        return tirx.For(var, 0, self.vector, tirx.ForKind.VECTORIZED, store)

    def _value(self, elements: Any, element: Any) -> Any:
        """What is stored for an element of the source."""
        load = self.move.load

        def swap(node: Any) -> Any:
            return tirx.BufferLoad(elements, [element]) if node.same_as(load) else node

        return tvm_ffi.structural_map(self.move.value, [(tvm.ir.TensorLoad, swap)], order="post")

    def _mixed(self, elements: Any, sent: Any, out: Any) -> Any:
        """Make a vector of two rows and what is outside of both."""
        low, high = (self.registers(name, self.words) for name in ("low", "high"))
        others = self.registers("other_row", self.vector, str(self.move.source.dtype))
        torn = [self.own.column + self.vector > self.move.columns]
        if self.move.total % self.vector:
            torn.append(self.element + self.vector <= self.move.total)
        last = self.lane == WARP_SIZE - 1
        place, buffers = self.registers("place_after", 3, self.kind), self.buffers
        second = window(self.move, self.vector, place, True)
        loaded = [
            fill(low),
            when(both([*torn, *second.needs_low()]), second.load(low, 0, buffers)),
            copied(sent, 0, high, 0, self.words),
            when(both([*torn, last, *second.needs_high()]), second.load(high, 1, buffers)),
            *pick(second, low, high, others, buffers),
        ]
        if not self.move.is_by_words:
            parts = [
                tirx.BufferStore(out, self._either(elements, others, second, v), [v])
                for v in range(self.vector)
            ]
            return sequence([*self._places_after(place), *loaded, *parts])
        return sequence(
            [*self._places_after(place), *self._by_masks(elements, others, second, loaded)]
        )

    def _by_masks(self, elements: Any, others: Any, second: Window, loaded: list[Any]) -> list[Any]:
        """Put the elements of both rows and what is outside of both together, by words."""
        names = ("own_words", "other_words", "mixed")
        held, after, mixed = (self.registers(name, self.words) for name in names)
        found = [*loaded, retyped(others, after)]
        if self.gap:
            size = self.gap * element_bytes(self.move.source)
            follows = [*self.own.rows, self.own.start - second.start == self.gap]
            moved = sequence(_stores(after, moved_up(held, size)))
            found = [tirx.IfThenElse(both(follows), moved, sequence(found))]
        if has_hole(second):
            ends = self.registers("hole", 2, "int32")
            is_torn = self.own.column + self.vector > self.move.columns
            same = copied(held, 0, after, 0, self.words)
            found = [
                tirx.IfThenElse(is_torn, sequence(found), same),
                *_stores(ends, [tirx.Cast("int32", end) for end in hole(self.own, second)]),
            ]
            words = around_hole(ends, held, after, self.move)
        else:
            words = mixed_words(self.own, held, second, after)
        return [
            retyped(elements, held),
            *found,
            *_stores(mixed, words),
            retyped(mixed, elements),
        ]

    def _either(self, elements: Any, others: Any, second: Window, element: int) -> Any:
        rest = self._value(others, element)
        if self.move.other is not None:
            rest = tirx.Select(both(second.holds(element)), rest, self.move.other)
        return tirx.Select(both(self.own.holds(element)), self._value(elements, element), rest)

    def _stored(self, out: Any) -> Any:
        """Store a vector; of the result's last only what there is."""
        target, rest = self.move.target, self.move.total % self.vector
        whole = copied(out, 0, target, self.element, self.vector)
        if not rest:
            return whole
        end = self.move.total - rest
        parts = [copied(out, first, target, end + first, count) for first, count in pieces(rest)]
        return tirx.IfThenElse(self.element < end, whole, sequence(parts))


def _stores(target: Any, values: list[Any]) -> list[Any]:
    return [tirx.BufferStore(target, value, [n]) for n, value in enumerate(values)]
