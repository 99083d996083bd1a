"""In which order blocks of attention take tiles, and whether they take them in turns.

Tiles have numbers: those of ``group`` heads lie side by side, the ones with the most keys first.
Where blocks take tiles in turns, number ``n`` is block ``n % blocks``'s in turn ``n // blocks``.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import lru_cache

#: Steps that a tile's beginning and end take: of a block of its own, and of one in turns.
_ALONE, _IN_TURNS = 3.0, 1.75
#: Bytes of a microsecond from memory.
_BYTES = 2.8e6
#: Bytes of K and V that stay in L2 whatever passes through, and what more of them cost: causal
#: 8x32x4096x128 takes 2161 us by groups of 16 heads and 2037 by single ones (H100).
_KEPT, _FARTHER = 12 << 20, 1.05


@dataclass(frozen=True)
class Heads:
    """Tiles of so many attentions; ``steps`` of each tile of one, in the order they are taken.

    ``step`` is in microseconds, ``shared`` the bytes of a head's K and V, and ``own`` those of a
    tile's rows of Q and of the result.
    """

    count: int
    steps: tuple[int, ...]
    step: float
    shared: int
    own: int
    blocks: int

    def costs(self, group: int) -> list[int]:
        """Steps of all tiles in the order of their numbers."""
        made = list[int]()
        for first in range(0, self.count, group):
            heads = min(group, self.count - first)
            made += [cost for cost in self.steps for _ in range(heads)]
        return made

    def waits(self, group: int) -> float:
        """Microseconds in which all blocks wait for memory.

        Where heads of a group begin at once their keys come in one turn, and none in the next:
        16x16x512x128 takes 90 us by groups of 64, 71 by groups of one (H100).
        """
        tiles = len(self.steps)
        at_once = min(self.count, self.blocks, max(group, self.blocks // tiles))
        moved = at_once * self.shared + self.blocks * self.own
        work = sum(self.steps) / tiles * self.step
        return self.count / at_once * max(0.0, moved / _BYTES - work)


@dataclass(frozen=True)
class Order:
    """Heads side by side, and whether every other turn goes over the blocks the other way round."""

    group: int
    alternates: bool
    #: Modelled microseconds.
    time: float


@lru_cache(maxsize=256)
def order_of(heads: Heads, most: int) -> Order:
    """The order of tiles in turns that ends first; at most so many heads share the L2 cache.

    Of two that are as good that of the smaller group: what its heads read stays near.
    """
    if len(set(heads.steps)) == 1:
        return Order(1, False, _in_turns(heads, 1, False))
    groups = [1 << i for i in range(most.bit_length())] + [most]
    found = [
        Order(group, way, _in_turns(heads, group, way)) for group in groups for way in (True, False)
    ]
    return min(found, key=lambda one: (one.time, one.group))


def _in_turns(heads: Heads, group: int, alternate: bool) -> float:
    ends, last = [0.0] * heads.blocks, heads.blocks - 1
    for number, cost in enumerate(heads.costs(group)):
        turn, place = divmod(number, heads.blocks)
        ends[last - place if alternate and turn % 2 else place] += cost + _IN_TURNS
    farther = _FARTHER if group * heads.shared > _KEPT else 1.0
    return max(ends) * heads.step * farther + heads.waits(group)


@lru_cache(maxsize=256)
def as_blocks_end(heads: Heads, group: int) -> float:
    """Modelled microseconds where each multiprocessor takes the next tile as it is free."""
    ends = [0.0] * heads.blocks
    for cost in heads.costs(group):
        heapq.heapreplace(ends, ends[0] + cost + _ALONE)
    return max(ends) * heads.step + heads.waits(group)
