"""Ragged tensors that fit into one block's shared memory, and move each of their sectors once.

Where rows of neither side begin at sectors, two elements of one sector of the load lie in two
sectors of the store, which share elements with others, and so on: all sectors hang together, and
only a block that holds the whole tensor moves each of them once. Both its walks go over the tensor
as over one range, in requests that begin at sectors, so a request may end one row and begin the
next. There the banks must not meet either, and that is what the layout is searched for:

* along a dim that lies across the rows, an index counts rows of ``pitch`` elements, and a gap after
  half of them turns the last rows of a dim away from the banks of its first;
* 1-byte and 2-byte elements may lie in pairs of neighbours of both dims, so that 32 of them take 16
  banks whichever way a request goes;
* requests have fewer lanes than a warp, down to one sector, if nothing else helps. For 32 elements
  of 4 bytes across two rows, for instance, rows and columns would have to be inverse to each other
  modulo 32; for 16 nearly any lengths do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, permutations, product
from math import prod

import numpy as np

from ..hardware import BANK_BYTES, NUM_BANKS, SECTOR_BYTES, STATIC_SHARED_BYTES, WARP_SIZE
from ..layout.modes import Modes
from .shared_tile import SharedTile, conflicts
from .staging import Walk, ceil_power
from .whole_rows import box_walk

__all__ = ["OneBlock", "moved_sectors", "one_block"]

#: Requests of a side that a layout is tried on before all are counted.
_SAMPLE = 12
#: Orders of rows, and rounds of each for 1-byte elements, in which layouts are drawn at random.
_MOST_ORDERS, _ROUNDS = 24, 8
#: Steps of a thread, which are unrolled.
_MOST_STEPS = 128


@dataclass(frozen=True)
class OneBlock:
    """How one block moves a whole tensor.

    Attributes
    ----------
    into, out : Walk
        Over the tensor, an element a lane.
    place : SharedTile
    threads : int
    """

    into: Walk
    out: Walk
    place: SharedTile
    threads: int


@lru_cache(maxsize=256)
def one_block(
    extents: tuple[int, ...], order: tuple[int, ...], size: int, stored: int, most: int
) -> OneBlock | None:
    """Plan a tensor as one tile; None if none is found without conflicts.

    Parameters
    ----------
    extents : tuple of int
        In the order of the store.
    order : tuple of int
        Dims of the load, the innermost last.
    size, stored : int
        Bytes of an element of the load, and of the store.
    most : int
        Most threads of a block.

    Examples
    --------
    >>> plan = one_block((100, 33), (1, 0), 4, 4, 512)
    >>> plan.into.lanes, plan.out.lanes, plan.threads, str(plan.place.modes)
    (16, 16, 512, '33:101;100:1')
    """
    if prod(extents) * size > STATIC_SHARED_BYTES or len(order) < 2:
        return None
    into = box_walk(extents, order, 1)
    out = box_walk(extents, range(len(extents)), 1)
    for lanes in _lanes(size, stored):
        threads = WARP_SIZE * min(most // WARP_SIZE, ceil_power(-(-into.units // min(lanes))))
        if into.units * WARP_SIZE > _MOST_STEPS * threads * min(lanes):
            continue
        walks = [replace(w, lanes=n) for w, n in zip((into, out), lanes, strict=True)]
        place = _place(extents, order, walks, size)
        if place is not None:
            return OneBlock(walks[0], walks[1], place, threads)
    return None


def _lanes(size: int, stored: int) -> list[tuple[int, int]]:
    """Lanes of the requests of load and store that are whole sectors, most first.

    Of 8-byte elements 16 lanes fill the banks as 32 do.
    """
    options = (32, 16, 8) if size < 2 * BANK_BYTES else (32, 8, 4)
    into, out = (
        [lanes for lanes in options if lanes * n % SECTOR_BYTES == 0] for n in (size, stored)
    )
    pairs = [(one, other) for one in into for other in out]
    return sorted(pairs, key=lambda pair: (-pair[0] * pair[1], -min(pair)))


def _place(
    extents: Sequence[int], order: Sequence[int], walks: Sequence[Walk], size: int
) -> SharedTile | None:
    """Find a layout without conflicts for both walks."""
    samples = [_sampled(walk, len(extents)) for walk in walks]
    for family in _families(extents, order, size):
        good = family.elements() * size <= STATIC_SHARED_BYTES
        for sample in samples:
            good[good] = family.part(good).meets_no_bank_twice(sample, size)
        for modes in family.part(good).modes(order):
            place = SharedTile(tuple(order), None, modes=modes)
            if not any(
                conflicts([walk], extents, place, size, most=1, lanes=walk.lanes) for walk in walks
            ):
                return place
    return None


def _sampled(walk: Walk, rank: int) -> np.ndarray:
    """Elements of some requests, half of which end a row: an array of (request, lane, dim)."""
    places = walk.places(rank)
    count = len(places) // walk.lanes
    if count == 0:
        # Lanes that repeat an element meet nobody.
        return places[np.arange(walk.lanes) % len(places)][None]
    requests = places[: count * walk.lanes].reshape(count, walk.lanes, rank)
    inner = walk.pieces[0][0]
    ends = np.flatnonzero(requests[:, -1, inner] < requests[:, 0, inner])
    spread = np.linspace(0, count - 1, _SAMPLE // 2).astype(int)
    some = ends[np.linspace(0, len(ends) - 1, _SAMPLE // 2).astype(int)] if len(ends) else ends
    return requests[np.unique(np.concatenate([spread, some]))]


@dataclass(frozen=True)
class _Family:
    """Layouts whose rows run along one dim and follow each other along another.

    Attributes
    ----------
    extents : sequence of int
    rows : sequence of int
        Dims as they lie in memory, the innermost last.
    pair : int
        Rows that lie element by element.
    padding, gap, cut, outer : array of int
        For each layout what is left free: elements after a row, rows after half of them, elements
        after half of a row, elements after each step of an outer dim.
    """

    extents: Sequence[int]
    rows: Sequence[int]
    pair: int
    padding: np.ndarray
    gap: np.ndarray
    cut: np.ndarray
    outer: np.ndarray

    def part(self, which: np.ndarray) -> _Family:
        """Some of the layouts."""
        names = ("padding", "gap", "cut", "outer")
        return replace(self, **{name: getattr(self, name)[which] for name in names})

    @property
    def _count(self) -> int:
        return -(-self.extents[self.rows[-2]] // self.pair)

    @property
    def _half(self) -> int:
        return -(-self._count // 2)

    @property
    def _middle(self) -> int:
        """Half of a row, in whole words of the banks."""
        return -(-self.extents[self.rows[-1]] // (2 * BANK_BYTES)) * BANK_BYTES

    def _strides(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """Elements from row to row of each layout, and from step to step of each outer dim."""
        pitch = self.extents[self.rows[-1]] * self.pair + self.cut + self.padding
        reached = (self._count + self.gap) * pitch
        found = []
        for dim in reversed(self.rows[:-2]):
            reached = reached + self.outer
            found.append(reached)
            reached = reached * self.extents[dim]
        return pitch, found

    def elements(self) -> np.ndarray:
        """Elements that each layout takes, at most."""
        pitch, outer = self._strides()
        found = (self._count + self.gap) * pitch
        for dim, stride in zip(reversed(self.rows[:-2]), outer, strict=True):
            found = found + (self.extents[dim] - 1) * stride
        return found

    def meets_no_bank_twice(self, sample: np.ndarray, size: int) -> np.ndarray:
        """Tell for each layout whether lanes of no phase ask one bank for two words."""
        if not len(self.gap):
            return np.zeros(0, bool)
        across, along = self.rows[-2:]
        pitch, outer = self._strides()
        row = sample[..., across] // self.pair
        late = row // self._half
        offsets = (
            sample[..., along] * self.pair
            + sample[..., across] % self.pair
            + _each(pitch) * row
            + _each(pitch * self.gap) * late
            + _each(self.cut) * (sample[..., along] // self._middle)
        )
        for dim, stride in zip(reversed(self.rows[:-2]), outer, strict=True):
            offsets += _each(stride) * sample[..., dim]
        word = max(BANK_BYTES, size)
        banks = NUM_BANKS * BANK_BYTES // word
        words = offsets * size // word
        words = words.reshape(len(offsets), -1, min(sample.shape[1], banks))
        ordered = np.sort((words % banks * STATIC_SHARED_BYTES + words).astype(np.int32), axis=2)
        bank = ordered // STATIC_SHARED_BYTES
        twice = (bank[..., 1:] == bank[..., :-1]) & (ordered[..., 1:] != ordered[..., :-1])
        return np.asarray(~twice.any(axis=(1, 2)))

    def modes(self, order: Sequence[int]) -> Iterator[Modes]:
        """Write the layouts down, dims in this order."""
        *others, across, along = self.rows
        pitches, outer = self._strides()
        numbers = zip(pitches.tolist(), self.gap.tolist(), self.cut.tolist(), strict=True)
        for at, (pitch, gap, cut) in enumerate(numbers):
            modes = {along: [(self.extents[along], self.pair)]}
            if cut:
                ends = [(self._middle, self.pair), (2, self._middle * self.pair + cut)]
                modes[along] = ends
            modes[across] = [(self.pair, 1)] if self.pair > 1 else []
            halves = [(self._half, pitch), (2, (self._half + gap) * pitch)]
            modes[across] += halves if gap else [(self._count, pitch)]
            for dim, strides in zip(reversed(others), outer, strict=True):
                modes[dim] = [(self.extents[dim], int(strides[at]))]
            yield Modes(tuple(tuple(modes[dim]) for dim in order))


def _each(values: np.ndarray) -> np.ndarray:
    """Values of layouts, to go with those of requests and lanes."""
    return values[:, None, None]


def _families(extents: Sequence[int], order: Sequence[int], size: int) -> Iterator[_Family]:
    """List the layouts to try: rows of the load or of the store, then, of more dims, any."""
    pairs = (1, 2) if size < BANK_BYTES else (1,)
    padding, gap = (part.reshape(-1) for part in np.indices((NUM_BANKS + 2, NUM_BANKS)))
    by_gap = np.argsort(gap, kind="stable")
    padding, gap, none = padding[by_gap], gap[by_gap], np.zeros_like(gap)
    orders = list(dict.fromkeys([tuple(order), tuple(range(len(extents)))]))
    for pair, rows in product(pairs, orders):
        yield _Family(extents, rows, pair, padding, gap, none, none)
    rng = np.random.default_rng(0)
    ways = list(product(pairs, islice(permutations(range(len(extents))), _MOST_ORDERS)))
    for at, (pair, rows) in product(range(_ROUNDS if size == 1 else 1), ways):
        outer = rng.integers(0, NUM_BANKS * BANK_BYTES, len(gap))
        cut = rng.integers(0, NUM_BANKS, len(gap)) * BANK_BYTES if at % 2 else none
        some = rng.integers(0, 2 * NUM_BANKS, len(gap)) if at else padding
        yield _Family(extents, rows, pair, some, gap, cut, outer)


def moved_sectors(
    walk: Walk, tile: Sequence[int], extents: Sequence[int], order: Sequence[int], size: int
) -> int:
    """Count the sectors that the requests of a walk over all tiles of a dense tensor move.

    Parameters
    ----------
    walk : Walk
    tile, extents : sequence of int
        In the order of the store.
    order : sequence of int
        Dims of the side, the innermost last.
    size : int
        Bytes of an element.

    Examples
    --------
    >>> moved_sectors(box_walk([7, 33], [1, 0], 1), [7, 33], [7, 33], [1, 0], 4)
    29
    """
    strides = np.ones(len(extents), np.int64)
    for inner, dim in zip(reversed(order), list(reversed(order))[1:], strict=False):
        strides[dim] = strides[inner] * extents[inner]
    places, unit = walk.places(len(extents)), walk.unit[order[-1]]
    others = [1 if dim == order[-1] else n for dim, n in enumerate(walk.unit)]
    found = 0
    for corner in product(*(range(0, n, t) for n, t in zip(extents, tile, strict=True))):
        for element in np.indices(others).reshape(len(extents), -1).T:
            at = places + element
            inside = ((at < tile) & (at + corner < extents)).all(axis=1)
            first = (at + corner) @ strides * size
            ends = np.stack([first, first + unit * size - 1], axis=1) // SECTOR_BYTES
            request = np.arange(len(at))[:, None] // walk.lanes
            keys = (request << 32 | ends)[inside]
            found += len(np.unique(keys))
    return found
