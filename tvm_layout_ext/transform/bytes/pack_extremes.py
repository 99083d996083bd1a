"""Take maxima and minima of bytes two at a time, as halves of a word.

Of a half the upper byte decides, whatever is below it: a word has two bytes there, and the other
two once it is shifted. By single bytes nvcc 13.0 has 3 to 5 instructions of each.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from tvm import tirx

from ...analysis.byte_extremes import SINCE, ByteExtremes, read_byte_extremes
from ...ir.contents import contents
from ...ir.rebuild import sequence
from ...target import capability
from ..base import function_pass, mapped
from .keys import BYTE_PERM

_BITS, _LANES = 8, 4
#: The upper bytes of the halves of two words, those of the first below.
_UPPER_BYTES = 0x7351


def _word(buffer: Any, first: Any) -> Any:
    lanes = tirx.BufferLoad(buffer, [tirx.Ramp(first, 1, _LANES)])
    return tirx.reinterpret("uint32", lanes)


def _better(found: ByteExtremes, *words: Any) -> Any:
    """The larger or smaller halves of some words."""
    name = f"__v{'max' if found.is_max else 'min'}{found.kind}2"
    return reduce(lambda a, b: tirx.call_pure_extern("uint32", name, a, b), words)


def _up(word: Any) -> Any:
    return word << tirx.const(_BITS, "uint32")


def _beside(found: ByteExtremes, word: int) -> Any:
    """Keep the better of four results and four bytes."""
    place = found.first + _LANES * word
    words = _word(found.best, place), _word(found.source, found.start + _LANES * word)
    lower, upper = (_better(found, *each) for each in (map(_up, words), words))
    names = tirx.const(_UPPER_BYTES, "uint32")
    both = tirx.call_pure_extern("uint32", BYTE_PERM, lower, upper, names)
    lanes = tirx.reinterpret(f"{found.best.dtype}x{_LANES}", both)
    return tirx.BufferStore(found.best, lanes, [tirx.Ramp(place, 1, _LANES)])


def _along(found: ByteExtremes) -> Any:
    """Keep the better of one result and all bytes."""
    words = [_word(found.source, found.start + at) for at in range(0, found.count, _LANES)]
    halves = _better(found, *words, *map(_up, words))
    upper = _better(found, halves, halves << tirx.const(2 * _BITS, "uint32"))
    byte = tirx.Cast(str(found.best.dtype), upper >> tirx.const(3 * _BITS, "uint32"))
    pick = tirx.Max if found.is_max else tirx.Min
    held = tirx.BufferLoad(found.best, [found.first])
    return tirx.BufferStore(found.best, pick(held, byte), [found.first])


def _by_words(loop: Any) -> Any:
    found = read_byte_extremes(loop)
    if found is None:
        return loop
    words = range(found.count // _LANES)
    body = sequence([_beside(found, n) for n in words]) if found.own else _along(found)
    return body if found.condition is None else tirx.IfThenElse(found.condition, body, None)


@function_pass()
def PackExtremes(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that takes extremes of bytes as halves of words, from ``sm_90`` on."""
    if not contents(func.body).nodes(tirx.For) or capability(func.attrs.get("target")) < SINCE:
        return func
    return mapped(func, (tirx.For, _by_words))
