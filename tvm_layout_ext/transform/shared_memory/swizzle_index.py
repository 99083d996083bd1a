"""Index code of swizzled buffers, written so that loops keep almost none of it.

The offset of an element is the XOR of the images of its indices' bits. An index such as
``k * 16 + lane // 16 * 8`` is a sum of terms whose bits do not meet, so its image is the XOR of the
images of the terms, and these can be put together in any order. They are put together as::

    (what threads contribute ^ what loops contribute to the same bits) + what loops add elsewhere

The first part is computed once for all iterations. For a loop that the compiler unrolls the second
is a constant, one ``LOP3`` for each of its values, and the third goes into the address field of the
instruction. ``k`` above, where rows are XORed into bits 3 to 5, costs one XOR a step; rows 16 apart
cost nothing. Bits of ``warp * 96 + tile * 16`` meet, but where nothing else goes to their place in
the offset, ``tile`` is added just so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from tvm import tirx

from ...layout.placement import Placement, Strided, Xor

#: Beyond every offset of shared memory.
_TOP = 31
_ZERO = tirx.IntImm("int32", 0)


@dataclass(frozen=True)
class _Term:
    """Part of an index, the bits ``[low, high)`` that it may have, and whether threads differ."""

    value: Any
    low: int
    high: int
    is_thread: bool


@dataclass(frozen=True)
class _Field:
    """Part of an offset: ``value << low``, ``width`` bits wide; ``added`` if it is no XOR."""

    value: Any
    low: int
    width: int
    is_thread: bool
    added: bool = False

    @property
    def mask(self) -> int:
        return ((1 << self.width) - 1) << self.low

    def shifted(self, unit: int = 0) -> Any:
        return self.value * (1 << self.low - unit)


class IndexWriter:
    """Writes offsets of elements that lie by a placement; ``is_thread`` tells variables apart."""

    def __init__(self, analyzer: Any, is_thread: Callable[[Any], bool]) -> None:
        self._analyzer = analyzer
        self._is_thread = is_thread

    def offset(self, placement: Placement, indices: Sequence[Any]) -> Any:
        """Offset of an element, in elements, of scalar indices."""
        if isinstance(placement, Strided):
            terms = (i * s for i, s in zip(indices, placement.strides, strict=True))
            return self._analyzer.simplify(reduce(lambda a, b: a + b, terms))
        return self._xor(placement, [self._analyzer.simplify(index) for index in indices])

    def _xor(self, placement: Xor, indices: Sequence[Any]) -> Any:
        fields = [
            field
            for index, images in zip(indices, placement.images, strict=True)
            for term in self._terms(index)
            for field in self._fields(term, images)
        ]
        fields = [part for field in fields for part in self._parted(field, fields)]
        threads = [field for field in fields if field.is_thread]
        taken = reduce(lambda mask, field: mask | field.mask, threads, 0)
        meeting: list[_Field] = []
        apart: list[_Field] = []
        for field in fields:
            if field.is_thread:
                continue
            is_apart = field.added or (not field.mask & taken and _alone(field, fields))
            (apart if is_apart else meeting).append(field)
        # TVM knows no divisor of an XOR, so what divides all of it stands outside: a vector is
        # loaded at once only where its start is provably a multiple of its width.
        unit = min((field.low for field in [*threads, *meeting]), default=0)
        # Threads first and by themselves: their part leaves the loops.
        parts = [_combine(threads, unit), _combine(meeting, unit)]
        heads = [part for part in parts if part is not None]
        total = reduce(tirx.bitwise_xor, heads) * (1 << unit) if heads else _ZERO
        return reduce(lambda sum_, field: sum_ + field.shifted(), apart, total)

    def _parted(self, field: _Field, fields: Sequence[_Field]) -> list[_Field]:
        """Take what loops add out of a field of threads, if no other field has bits of it."""
        if not field.is_thread or not _alone(field, fields):
            return [field]
        parts: dict[bool, list[Any]] = {True: [], False: []}
        for part in _addends(field.value):
            parts[self._is_threaded(part)].append(part)
        if not all(parts.values()):
            return [field]
        own, loops = (reduce(lambda a, b: a + b, parts[which]) for which in (True, False))
        if any(self._analyzer.const_int_bound(part).min_value < 0 for part in (own, loops)):
            return [field]
        return [replace(field, value=own), _Field(loops, field.low, field.width, False, True)]

    def _is_threaded(self, value: Any) -> bool:
        variables = tirx.analysis.undefined_vars(value) if not isinstance(value, int) else []
        return any(map(self._is_thread, variables))

    def _terms(self, index: Any) -> list[_Term]:
        """Take a sum apart into terms whose bits do not meet."""
        terms: list[_Term] = []
        for part in _addends(index):
            terms.extend(self._below(part) or [self._term([part])])
        terms.sort(key=lambda term: term.low)
        joined: list[_Term] = []
        for term in terms:
            if joined and term.low < joined[-1].high:
                joined.append(self._join(joined.pop(), term))
            else:
                joined.append(term)
        return joined

    def _below(self, part: Any) -> list[_Term]:
        """Take ``sum % 2^k`` apart: where bits do not meet, so do the remainders not.

        TVM keeps ``(r * 512 + lane * 16 + v) % 4096`` whole; the XOR would tear the vector of v.
        """
        if not isinstance(part, tirx.FloorMod) or not isinstance(part.b, tirx.IntImm):
            return []
        size = int(part.b)
        if size <= 0 or size & size - 1:
            return []
        inner = self._terms(part.a)
        if len(inner) < 2:
            return []
        below = [term for term in inner if 1 << term.low < size]
        return [self._term([self._analyzer.simplify(term.value % size)]) for term in below]

    def _join(self, first: _Term, second: _Term) -> _Term:
        return self._term([first.value, second.value])

    def _term(self, parts: Sequence[Any]) -> _Term:
        value = reduce(lambda a, b: a + b, parts)
        bounds = self._analyzer.const_int_bound(value)
        known = self._analyzer.modular_set(value)
        low = _zeros(int(known.coeff), int(known.base))
        is_bounded = bounds.min_value >= 0 and bounds.max_value < 1 << _TOP
        high = int(bounds.max_value).bit_length() if is_bounded else _TOP
        return _Term(value, min(low, high) if is_bounded else 0, high, self._is_threaded(value))

    def _fields(self, term: _Term, images: Sequence[int]) -> list[_Field]:
        """Runs of bits that move together, once for each place they go to."""
        fields: list[_Field] = []
        bit, end = term.low, min(term.high, len(images))
        while bit < end:
            width = 1
            while bit + width < end and images[bit + width] == images[bit] << width:
                width += 1
            value = self._extract(term.value, bit, width)
            image = images[bit]
            places = [out for out in range(image.bit_length()) if image >> out & 1]
            fields.extend(_Field(value, out, width, term.is_thread) for out in places)
            bit += width
        return fields

    def _extract(self, value: Any, bit: int, width: int) -> Any:
        part = tirx.floormod(tirx.floordiv(value, 1 << bit), 1 << width)
        return self._analyzer.simplify(part)


def _alone(field: _Field, fields: Sequence[_Field]) -> bool:
    return not any(other is not field and other.mask & field.mask for other in fields)


def _combine(fields: Sequence[_Field], unit: int) -> Any:
    """Put fields together, by XOR where their bits meet, in units of ``1 << unit``."""
    sums: list[tuple[int, Any]] = []
    for field in fields:
        for position, (mask, total) in enumerate(sums):
            if not mask & field.mask:
                sums[position] = (mask | field.mask, total + field.shifted(unit))
                break
        else:
            sums.append((field.mask, field.shifted(unit)))
    if not sums:
        return None
    return reduce(tirx.bitwise_xor, [total for _, total in sums])


def _addends(expr: Any) -> list[Any]:
    if isinstance(expr, tirx.Add):
        return [*_addends(expr.a), *_addends(expr.b)]
    return [expr]


def _zeros(coeff: int, base: int) -> int:
    """Low bits that are 0 in every ``coeff * n + base``."""
    both = coeff | base
    return _TOP if not both else (both & -both).bit_length() - 1
