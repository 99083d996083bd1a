"""The search for shared layouts by digits that two walks over a ragged tensor meet no bank in.

Rows of memory run along any of the dims, and follow each other along the others in any order. What
is free is how many elements are left out after a step of each dim (``pads``), and after each part
of a dim (``gaps``); and elements narrower than a bank may lie in pairs of neighbours of two dims.
With one row pitch alone a request that ends one row and begins the next meets a bank twice for most
lengths; gaps turn the last elements of a dim away from the banks of its first.

Layouts are drawn by the thousand and held against a few requests. One that passes is held against
all requests of both walks, and a request that meets a bank twice there joins the few, so that the
next candidates are of those that stand it: refinement by counterexamples (Solar-Lezama et al.,
"Combinatorial Sketching for Finite Programs", ASPLOS 2006).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, permutations, product
from math import prod
from typing import Any

import numpy as np

from ..hardware import BANK_BYTES, NUM_BANKS
from ..layout.modes import Modes
from .shared_tile import SharedTile, conflicts
from .staging import Walk

__all__ = ["find_layout"]

#: Requests of a side that layouts are held against first, and at a time.
_SAMPLE, _AT_ONCE = 12, 2
#: Layouts of a draw, orders of rows that are drawn for, and failures in a draw before the next.
_DRAWN, _MOST_ORDERS, _MOST_FAILURES = 2048, 24, 12
#: Parts of a dim.
_MOST_PARTS = 4
#: Bits of a word's number: shared memory has fewer.
_WORD_BITS = 18


def find_layout(
    extents: Sequence[int],
    order: Sequence[int],
    walks: Sequence[Walk],
    size: int,
    limit: int,
    draws: int,
) -> SharedTile | None:
    """Find a layout in which no request of the walks meets a bank twice.

    Parameters
    ----------
    extents : sequence of int
        Of the tensor, in the order of the store.
    order : sequence of int
        Dims of the load, the innermost last.
    walks : sequence of Walk
        Element by element.
    size : int
        Bytes of an element.
    limit : int
        Bytes of shared memory that it may take.
    draws : int
        More find more, and take longer: 5 to 20 ms each.

    Examples
    --------
    >>> from tvm_layout_ext.analysis.whole_rows import box_walk
    >>> walks = [replace(box_walk([100, 33], order, 1), lanes=16) for order in ([1, 0], [0, 1])]
    >>> str(find_layout([100, 33], [1, 0], walks, 4, 49152, 1).modes)
    '33:101;100:1'
    """
    requests = [_requests(walk, len(extents)) for walk in walks]
    hard = [_hard(one, walk.pieces[0][0]) for one, walk in zip(requests, walks, strict=True)]
    for family in _families(extents, order, size, limit, draws):
        left = family.part(family.elements() * size <= limit)
        for sample in hard:
            left = left.standing(sample, size)
        for _ in range(_MOST_FAILURES):
            if not left.count:
                break
            modes = left.modes(order)
            place = SharedTile(tuple(order), None, modes=modes)
            left = left.part(np.arange(left.count) > 0)
            met = [_met_twice(place, one, size) for one in requests]
            if not any(map(len, met)) and _is_free(walks, extents, place, size):
                return place
            for at, failing in enumerate(met):
                if len(failing):
                    worst = failing[[0, len(failing) // 2]]
                    hard[at] = np.concatenate([worst, hard[at]])
                    left = left.standing(worst, size)
    return None


def _is_free(walks: Sequence[Walk], extents: Sequence[int], place: SharedTile, size: int) -> bool:
    """Ask the rules of the hardware, too."""
    return not any(
        conflicts([walk], extents, place, size, most=1, lanes=walk.lanes) for walk in walks
    )


def _requests(walk: Walk, rank: int) -> np.ndarray:
    """Elements of all requests: an array of (request, lane, dim).

    Lanes past the end repeat the last element; those meet nobody.
    """
    places = walk.places(rank)
    full = np.pad(places, ((0, -len(places) % walk.lanes), (0, 0)), mode="edge")
    return full.reshape(-1, walk.lanes, rank)


def _hard(requests: np.ndarray, inner: int) -> np.ndarray:
    """Some requests, half of which end a row."""
    ends = np.flatnonzero(requests[:, -1, inner] < requests[:, 0, inner])
    spread = np.linspace(0, len(requests) - 1, _SAMPLE // 2).astype(int)
    some = ends[np.linspace(0, len(ends) - 1, _SAMPLE // 2).astype(int)] if len(ends) else ends
    return requests[np.unique(np.concatenate([spread, some]))]


def _met_twice(place: SharedTile, requests: np.ndarray, size: int) -> np.ndarray:
    """Requests that ask a bank for two words."""
    return requests[_twice(place.offsets(requests)[None], size)[0]]


def _twice(offsets: np.ndarray, size: int) -> np.ndarray:
    """Tell of each layout and request whether lanes of a phase ask one bank for two words.

    Of elements wider than a bank, as many lanes are a phase as fill the banks.
    """
    word = max(BANK_BYTES, size)
    banks = NUM_BANKS * BANK_BYTES // word
    layouts, requests, lanes = offsets.shape
    words = (offsets * size // word).astype(np.int32, copy=False)
    words = words.reshape(layouts, requests, -1, min(lanes, banks))
    ordered = np.sort(words % banks << _WORD_BITS | words, axis=3)
    bank = ordered >> _WORD_BITS
    twice = (bank[..., 1:] == bank[..., :-1]) & (ordered[..., 1:] != ordered[..., :-1])
    return np.asarray(twice.any(axis=(2, 3)))


@dataclass(frozen=True)
class _Family:
    """Layouts of one order of rows.

    Attributes
    ----------
    extents : sequence of int
    rows : sequence of int
        Dims as they lie in memory, the innermost last.
    pair, paired : int
        So many neighbours of dim ``paired`` lie element by element.
    parts : sequence of int
        Into how many each dim falls.
    pads, gaps : array of (layout, dim)
        Elements left out after each step of a dim, and after each part of it but the last.
    """

    extents: Sequence[int]
    rows: Sequence[int]
    pair: int
    paired: int
    parts: Sequence[int]
    pads: np.ndarray
    gaps: np.ndarray

    @property
    def count(self) -> int:
        """Layouts."""
        return len(self.pads)

    def part(self, which: Any) -> _Family:
        """Some of the layouts."""
        return replace(self, pads=self.pads[which], gaps=self.gaps[which])

    def _steps(self, dim: int) -> int:
        return -(-self.extents[dim] // (self.pair if dim == self.paired else 1))

    def _part(self, dim: int) -> int:
        """Steps in a part of a dim: along a row in whole words of the banks."""
        words = BANK_BYTES if dim == self.rows[-1] else 1
        return -(-self._steps(dim) // (self.parts[dim] * words)) * words

    def _gaps_in(self, dim: int) -> int:
        return -(-self._steps(dim) // self._part(dim)) - 1

    def _strides(self) -> np.ndarray:
        """Elements from step to step: an array of (layout, dim)."""
        strides = np.zeros_like(self.pads)
        reached = np.full(self.count, self.pair, np.int32)
        for dim in reversed(self.rows):
            strides[:, dim] = reached + self.pads[:, dim]
            reached = strides[:, dim] * self._steps(dim)
            reached += self.gaps[:, dim] * self._gaps_in(dim)
        return strides

    def elements(self) -> np.ndarray:
        """Elements that each layout takes, at most."""
        dims = range(len(self.extents))
        steps = np.array([self._steps(dim) - 1 for dim in dims])
        gaps = np.array([self._gaps_in(dim) for dim in dims])
        return np.asarray((self._strides() * steps + self.gaps * gaps).sum(axis=1) + self.pair)

    def standing(self, sample: np.ndarray, size: int) -> _Family:
        """The layouts in which no request of a sample meets a bank twice."""
        left = self
        for first in range(0, len(sample), _AT_ONCE):
            few = sample[first : first + _AT_ONCE]
            if left.count:
                left = left.part(~_twice(left._offsets(few), size).any(axis=1))
        return left

    def _offsets(self, sample: np.ndarray) -> np.ndarray:
        """Offsets of elements: an array of (layout, request, lane)."""
        strides = self._strides()
        found = np.zeros((self.count, *sample.shape[:2]), np.int32)
        for dim in self.rows:
            index = sample[None, ..., dim].astype(np.int32)
            if dim == self.paired:
                found += index % self.pair
                index = index // self.pair
            found += strides[:, dim, None, None] * index
            if self.gaps[:, dim].any():
                found += self.gaps[:, dim, None, None] * (index // self._part(dim))
        return found

    def modes(self, order: Sequence[int]) -> Modes:
        """Write the first layout down, dims in this order."""
        strides, written = self._strides()[0], []
        for dim in order:
            stride, gap, part = int(strides[dim]), int(self.gaps[0, dim]), self._part(dim)
            own = [(self.pair, 1)] if self.pair > 1 and dim == self.paired else []
            if gap:
                own += [(part, stride), (self._gaps_in(dim) + 1, part * stride + gap)]
            else:
                own += [(self._steps(dim), stride)]
            written.append(tuple(own))
        return Modes(tuple(written))


def _families(
    extents: Sequence[int], order: Sequence[int], size: int, limit: int, draws: int
) -> Iterator[_Family]:
    """List the layouts to try: rows of the load or of the store, then any.

    The first have a row pitch, and a gap of whole rows after half of them; the others are drawn.
    """
    pairs = (1, 2) if size < BANK_BYTES else (1,)
    rank = len(extents)
    for pair, rows in product(pairs, dict.fromkeys([tuple(order), tuple(range(rank))])):
        yield _pitched(extents, rows, pair)
    rng = np.random.default_rng(0)
    orders = list(islice(permutations(range(rank)), _MOST_ORDERS))
    ways = [
        (pair, rows, paired)
        for pair, rows in product(pairs, orders)
        for paired in (rows[:-1] if pair > 1 else rows[-2:-1])
    ]
    for at in range(draws):
        none = np.zeros((_DRAWN, rank), np.int32)
        parts = rng.integers(2, _MOST_PARTS + 1, rank).tolist()
        pair, rows, paired = ways[at % len(ways)]
        family = _Family(extents, rows, pair, paired, parts, none, none)
        yield _drawn(family, rng, size, limit, words=at // len(ways) % 2 == 0)


def _pitched(extents: Sequence[int], rows: Sequence[int], pair: int) -> _Family:
    across, along = rows[-2:]
    gap, padding = (part.reshape(-1) for part in np.indices((NUM_BANKS, NUM_BANKS + 2)))
    pads, gaps = (np.zeros((len(gap), len(extents)), np.int32) for _ in range(2))
    pads[:, across] = padding
    gaps[:, across] = gap * (extents[along] * pair + padding)
    return _Family(extents, rows, pair, across, [2] * len(extents), pads, gaps)


def _drawn(
    family: _Family, rng: np.random.Generator, size: int, limit: int, *, words: bool
) -> _Family:
    """Draw pads and gaps up to a row of all banks, as far as there is room, some of them none."""
    unit = max(1, BANK_BYTES // size) if words else 1
    most = NUM_BANKS * max(BANK_BYTES, size) // size
    room = max(0, limit // size - int(family.elements().max()))
    pads, gaps = np.zeros_like(family.pads), np.zeros_like(family.gaps)
    reached = np.full(len(pads), family.pair, np.int32)
    outer = prod(family._steps(dim) for dim in family.rows)
    for dim in reversed(family.rows):
        steps = family._steps(dim)
        outer //= steps
        if dim != family.rows[-1]:
            share = min(most, room // max(1, outer * (steps - 1)))
            pads[:, dim] = -reached % unit + _some(rng, share // unit, 3, len(pads)) * unit
        count = family._gaps_in(dim)
        if count:
            share = min(most, room // (outer * count))
            gaps[:, dim] = _some(rng, share // unit, 1, len(pads)) * unit
        reached = (reached + pads[:, dim]) * steps + gaps[:, dim] * count
    return replace(family, pads=pads, gaps=gaps)


def _some(rng: np.random.Generator, most: int, odds: int, count: int) -> np.ndarray:
    """Draw numbers up to one, and none of them once in ``odds`` + 1 times."""
    return rng.integers(0, most + 1, count) * (rng.integers(0, odds + 1, count) > 0)
