"""Put vectors of two rows together by words, each by masks of the elements that a row has in it.

By elements nvcc 13.0 makes some 12 instructions of each byte of a pad: comparisons, choices, and
what puts four bytes into a word.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx

from ...analysis.nest import element_bytes
from ...ir.conditions import is_zero
from .shifted_window import Window, both

_WORD_BYTES = 4
#: The upper of two words that are shifted left by up to 32 bits: by more as by 32.
FUNNEL = "__funnelshift_lc"
_ONES = 0xFFFFFFFF
#: Of the bits that bfloat16 lacks of a float32, half of their worth.
_HALF = 1 << 15


def moved_up(words: Any, size: int) -> list[Any]:
    """Words moved up by some bytes, each one instruction; zeros come in."""
    count = int(words.shape[0])
    zero = tirx.const(0, "uint32")
    held = [zero] * (count + 1) + [tirx.BufferLoad(words, [n]) for n in range(count)]
    whole, rest = divmod(size, _WORD_BYTES)
    at = count + 1 - whole
    if not rest:
        return held[at : at + count]
    bits = tirx.const(8 * rest, "uint32")
    return [
        tirx.call_pure_extern("uint32", FUNNEL, held[at + n - 1], held[at + n], bits)
        for n in range(count)
    ]


def has_hole(window: Window) -> bool:
    """Whether what comes from neither row is one hole in a vector, as of all but short rows."""
    move = window.move
    return move.other is not None and move.last - move.first >= window.vector


def hole(own: Window, second: Window) -> tuple[Any, Any]:
    """First element of a vector that comes from neither row, and the first behind these."""
    move = own.move
    is_torn = own.column + own.vector > move.columns
    begins = own.column < move.first
    starts = [begins, *([tirx.Not(both(own.rows))] if own.rows else [])]
    start = tirx.Select(_any(starts), own.column * 0, move.last - own.column)
    vector = tirx.const(own.vector, str(own.column.ty))
    end = tirx.Select(both([*own.rows, begins]), move.first - own.column, vector)
    after = move.first - second.column
    if second.rows:
        after = tirx.Select(both(second.rows), after, vector)
    return start, tirx.Select(is_torn, after, end)


def _any(conditions: list[Any]) -> Any:
    return tirx.Or(*conditions) if len(conditions) > 1 else conditions[0]


def around_hole(ends: Any, first: Any, rest: Any, move: Any) -> list[Any]:
    """Words of ``first`` up to a hole, then of what is stored there, then those of ``rest``."""
    size = element_bytes(move.source)
    words = []
    for n in range(int(first.shape[0])):
        low, high = (tirx.BufferLoad(each, [n]) for each in (first, rest))
        before, behind = (_below(tirx.BufferLoad(ends, [i]), size, n) for i in range(2))
        words.append(_chosen(before, low, _chosen(behind, _spread(move.other, size), high)))
    return words


def mixed_words(own: Window, first: Any, second: Window, rest: Any) -> list[Any]:
    """Words of ``first`` where a window holds them, else of ``rest``, else of neither row."""
    other = own.move.other
    words = []
    for n in range(int(first.shape[0])):
        low, high = (tirx.BufferLoad(each, [n]) for each in (first, rest))
        if other is not None:
            high = _chosen(_held(second, n), high, _spread(other, element_bytes(own.move.source)))
        words.append(_chosen(_held(own, n), low, high))
    return words


def _chosen(mask: Any, word: Any, other: Any) -> Any:
    """Bits of one word where a mask has ones, else of another: one instruction, ``LOP3``."""
    if is_zero(other):
        return word & mask
    if is_zero(word):
        return other & ~mask
    return (word & mask) | (other & ~mask)


def _spread(value: Any, size: int) -> Any:
    """A word full of a number of a type, which may be cast to it."""
    bits, kind = 8 * size, str(value.ty)
    while isinstance(value, tirx.Cast):
        value = value.value
    number = value.value
    if kind == "bfloat16":
        whole = int(np.float32(number).view(np.uint32))
        held = whole + (_HALF - 1) + (whole >> bits & 1) >> bits
    elif kind == "float16":
        held = int(np.float16(number).view(np.uint16))
    else:
        held = int(number)
    ones = (1 << bits) - 1
    return tirx.const((held & ones) * (_ONES // ones), "uint32")


def _held(window: Window, word: int) -> Any:
    """Mask of the elements of a word that a window holds."""
    move = window.move
    last = move.last - window.column
    if window.rows:
        last = tirx.Select(both(window.rows), last, last * 0)
    size = element_bytes(move.source)
    mask = _below(last, size, word)
    if window.second or move.first > 0:
        mask = mask & ~_below(move.first - window.column, size, word)
    return mask


def _below(end: Any, size: int, word: int) -> Any:
    """Mask of the elements of a word that come before an element of the vector."""
    bits = 8 * size
    shift = tirx.max(tirx.Cast("int32", end) * bits - 8 * _WORD_BYTES * word, 0)
    ones, zeros = (tirx.const(value, "uint32") for value in (_ONES, 0))
    return tirx.call_pure_extern("uint32", FUNNEL, ones, zeros, tirx.Cast("uint32", shift))
