"""Statements of one window of a shifted move: loads of aligned vectors, words picked of two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from tvm import tirx

from ...analysis.nest import element_bytes
from ...coalesce.shifted.move import Move, pieces
from ...gpu.hardware import WARP_SIZE
from ...ir import ops
from ...ir.queries import substitute
from ...ir.rebuild import sequence

_WORD_BYTES, _WORD_BITS = 4, 32
_ALL_LANES = 0xFFFFFFFF


@dataclass(frozen=True)
class Window:
    """Where a lane's vector comes from, had all of it lain in one row."""

    move: Move
    #: Elements.
    vector: int
    #: Column of the vector's first element; below 0 where the row starts inside the vector.
    column: Any
    #: Element of the source that belongs there.
    start: Any
    #: Conditions on which the row comes from the source.
    rows: tuple[Any, ...]
    #: Whether ``column`` may be below 0.
    second: bool

    @property
    def low(self) -> Any:
        """Number of the aligned vector that holds ``start``."""
        return tirx.floordiv(self.start, self.vector)

    @property
    def shift(self) -> Any:
        """Elements from the begin of that vector to ``start``."""
        return tirx.floormod(self.start, self.vector)

    @property
    def whole_vectors(self) -> int:
        """Aligned vectors of the source that are whole."""
        return self.move.source_size // self.vector

    def needs_low(self, back: Any = 0, gap: int = 0) -> list[Any]:
        """Conditions that an element of the lower vector is wanted, or one ``back`` from start.

        With a ``gap`` it is wanted by the next row, too, up to where this one ends.
        """
        found = list(self.rows)
        if self.second or self.move.first > 0:
            found.append(self.column + self.vector - self.shift > self.move.first)
        if gap:
            found.append(self.start - self.shift < self.move.source_size)
        elif self.move.last < self.move.columns:
            found.append(self.column - back < self.move.last)
        return found

    def needs_high(self, gap: int = 0) -> list[Any]:
        """Conditions that an element of the higher vector is wanted, also by the next row."""
        own = [self.column + self.vector - self.shift < self.move.last]
        if self.move.first > 0:
            own.append(self.column + self.vector > self.move.first)
        if gap:
            after = [
                self.column + self.vector > self.move.columns,
                self.shift > gap,
                self.start - self.shift + self.vector < self.move.source_size,
            ]
            own = [tirx.Or(both(own), both(after))]
        return [*self.rows, self.shift > 0, *own]

    def holds(self, element: int) -> list[Any]:
        """Conditions that an element of the vector comes from this window."""
        column = self.column + element
        found = [*self.rows, column < self.move.last]
        if self.second or self.move.first > 0:
            found.append(column >= self.move.first)
        return found

    def is_all_held(self) -> list[Any]:
        """Conditions that the whole vector comes from this window and whole vectors."""
        found = [*self.rows, self.column + self.vector <= self.move.last]
        if self.move.first > 0:
            found.append(self.column >= self.move.first)
        return found

    def load(self, words: Any, high: int, allocated: list[Any]) -> Any:
        """Load the lower or the higher vector; of the source's last only what there is."""
        at = self.low + high
        vector = tirx.BufferLoad(
            self.move.source, _flat(self.move.source, tirx.Ramp(at * self.vector, 1, self.vector))
        )
        whole = tirx.BufferStore(
            words, _retyped(vector, "uint32", int(words.shape[0])), _all(words)
        )
        if not self.move.source_size % self.vector:
            return whole
        return tirx.IfThenElse(at < self.whole_vectors, whole, self._rest(words, high, allocated))

    def _rest(self, words: Any, high: int, allocated: list[Any]) -> Any:
        move, end = self.move, self.whole_vectors * self.vector
        rest = local(f"{words.name}_rest_{high}", self.vector, str(move.source.dtype))
        allocated.append(rest)
        zeros = _zeros(int(words.shape[0]))
        parts = [tirx.BufferStore(rest, _retyped(zeros, rest.dtype, self.vector), _all(rest))]
        parts += [
            copied(move.source, end + first, rest, first, count)
            for first, count in pieces(move.source_size % self.vector)
        ]
        held = tirx.BufferLoad(rest, _all(rest))
        found = _retyped(held, "uint32", int(words.shape[0]))
        return sequence([*parts, tirx.BufferStore(words, found, _all(words))])


def window(move: Move, vector: int, place: Any, second: bool) -> Window:
    """Make the window of a row, which may start inside the vector if ``second``."""
    row, column, start = (tirx.BufferLoad(place, [i]) for i in range(3))
    values = _iterators(move, row, column)
    rows = tuple(substitute(part, values) for part in move.rows)
    return Window(move, vector, column, start, rows, second)


def places(move: Move, place: Any, row: Any, column: Any) -> list[Any]:
    """Put row, column and element of the source where a window finds them.

    That hides them from TVM, which halves both sides of ``e // 8194``; nvcc then divides twice.
    """
    known = _iterators(move, *(tirx.BufferLoad(place, [i]) for i in range(2)))
    values = (row, column, substitute(move.offset, known))
    return [
        tirx.BufferStore(place, tirx.Cast(place.dtype, value), [i])
        for i, value in enumerate(values)
    ]


def _iterators(move: Move, row: Any, column: Any) -> dict[Any, Any]:
    values = {move.iterators[-1]: column}
    for var, size in zip(reversed(move.iterators[:-1]), reversed(move.shape[:-1]), strict=True):
        values[var] = row if var.same_as(move.iterators[0]) else tirx.floormod(row, size)
        row = tirx.floordiv(row, size)
    return values


def both(conditions: Sequence[Any]) -> Any:
    """All of some conditions."""
    return reduce(tirx.And, conditions) if conditions else tirx.IntImm("bool", 1)


def when(condition: Any, statement: Any) -> Any:
    """Make a statement that runs on a condition."""
    return tirx.IfThenElse(condition, statement, None)


def local(name: str, size: int, dtype: str = "uint32") -> Any:
    """Make registers of a thread."""
    return tirx.decl_buffer([size], dtype, name, scope="local")


def fill(words: Any) -> Any:
    """Clear words."""
    return tirx.BufferStore(words, _zeros(int(words.shape[0])), _all(words))


def copied(source: Any, begin: Any, target: Any, first: Any, count: int) -> Any:
    """Copy neighbours at once, in buffers whose offsets count from the first element."""
    v = tirx.Var("v", "int32")
    load = tirx.BufferLoad(source, _flat(source, begin + v))
    store = tirx.BufferStore(target, load, _flat(target, first + v))
    if count == 1:
        load = tirx.BufferLoad(source, _flat(source, begin))
        return tirx.BufferStore(target, load, _flat(target, first))
    return tirx.For(v, 0, count, tirx.ForKind.VECTORIZED, store)


def retyped(source: Any, target: Any) -> Any:
    """Fill registers with the bits of others."""
    held = tirx.BufferLoad(source, _all(source))
    return tirx.BufferStore(
        target, _retyped(held, target.dtype, int(target.shape[0])), _all(target)
    )


def shuffled(source: Any, target: Any) -> list[Any]:
    """Take the words of the lane to the right."""
    mask = tirx.const(_ALL_LANES, "uint32")
    return [
        tirx.BufferStore(
            target,
            tirx.call_intrin(
                tirx.BufferLoad(source, [i]).ty,
                ops.TVM_WARP_SHUFFLE_DOWN,
                mask,
                tirx.BufferLoad(source, [i]),
                1,
                WARP_SIZE,
                WARP_SIZE,
            ),
            [i],
        )
        for i in range(int(source.shape[0]))
    ]


def pick(window: Window, low: Any, high: Any, elements: Any, allocated: list[Any]) -> list[Any]:
    """Pick the elements of a window out of its two vectors of words, by a barrel shifter."""
    size, count = element_bytes(window.move.source), int(low.shape[0])
    a_word = max(1, _WORD_BYTES // size)
    words = [tirx.BufferLoad(part, [i]) for part in (low, high) for i in range(count)]
    shift = tirx.Cast("int32", window.shift)
    statements: list[Any] = []
    needed = count + (a_word > 1)
    distance = count // 2
    while distance >= max(1, size // _WORD_BYTES):
        bit = distance * _WORD_BYTES // size
        moves = tirx.floormod(tirx.floordiv(shift, bit), 2) == 1
        # Words that the steps after this one may still bring down.
        kept = needed + distance - max(1, size // _WORD_BYTES)
        stage = local(f"{elements.name}_by_{distance}", kept)
        allocated.append(stage)
        for i in range(kept):
            taken = tirx.Select(moves, words[i + distance], words[i])
            statements.append(tirx.BufferStore(stage, taken, [i]))
        words = [tirx.BufferLoad(stage, [i]) for i in range(kept)]
        distance //= 2
    picked = local(f"{elements.name}_words", count)
    allocated.append(picked)
    bits = tirx.floormod(shift, a_word) * (8 * size)
    for i in range(count):
        word = _funnel(words[i], words[i + 1], bits) if a_word > 1 else words[i]
        statements.append(tirx.BufferStore(picked, word, [i]))
    found = _retyped(tirx.BufferLoad(picked, _all(picked)), elements.dtype, window.vector)
    statements.append(tirx.BufferStore(elements, found, _all(elements)))
    return statements


def _funnel(low: Any, high: Any, bits: Any) -> Any:
    """Shift two words right by less than a word and keep the lower: one instruction, ``SHF``."""
    wide = tirx.shift_left(tirx.Cast("uint64", high), tirx.const(_WORD_BITS, "uint64"))
    wide = tirx.bitwise_or(wide, tirx.Cast("uint64", low))
    return tirx.Cast("uint32", tirx.shift_right(wide, tirx.Cast("uint64", bits)))


def _all(buffer: Any) -> list[Any]:
    count = int(buffer.shape[0])
    return [tirx.Ramp(0, 1, count) if count > 1 else 0]


def _flat(buffer: Any, offset: Any) -> list[Any]:
    """Indices of an element by its offset; flattening adds nothing to that."""
    return [*[0] * (len(buffer.shape) - 1), offset]


def _zeros(count: int) -> Any:
    zero = tirx.const(0, "uint32")
    return tirx.Broadcast(zero, count) if count > 1 else zero


def _retyped(bits: Any, dtype: Any, count: int) -> Any:
    return tirx.reinterpret(f"{dtype}x{count}" if count > 1 else str(dtype), bits)
