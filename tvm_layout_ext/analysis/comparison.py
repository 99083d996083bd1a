"""Whether one way to map a block moves more sectors than another, access by access.

Two mappings of a block run the same iterations in requests of different size, and one may read an
operand once that the other reads again and again. So what is compared is sectors an iteration of
the block that was mapped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from ..gpu.hardware import WARP_SIZE
from .access import Nest
from .evaluate import stand_in
from .sectors import Traffic, count_traffic

__all__ = ["SAME", "sectors_per_iteration", "served_traffic", "worsened"]

#: Ratio of sectors that sampling cannot tell from equality.
SAME = 1.02
#: What quotients of equal counts may differ by.
_ROUNDING = 1 + 1e-9


def served_traffic(part: Nest, iterations: int) -> list[Traffic]:
    """Count a part of a mapped block, in iterations of the block.

    Parameters
    ----------
    part : Nest
        The mapped block, or a copy that was put in front of it or after it.
    iterations : int
        Iterations of the block before it was mapped. A copy that runs fewer serves several of
        them by each of its own.
    """
    own = prod(stand_in(loop.extent) for loop in part.loops)
    times = max(1.0, iterations / own)
    return [replace(t, iterations=t.iterations * times) for t in count_traffic(part)]


def sectors_per_iteration(traffic: Sequence[Traffic]) -> float:
    """Sectors that one iteration costs, over all accesses; requests carry different numbers."""
    return sum(t.share * t.sectors / t.iterations for t in traffic)


def worsened(
    before: Sequence[Traffic],
    after: Sequence[Traffic],
    names: Mapping[str, str] | None = None,
    *,
    same: float = SAME,
    is_whole: bool = False,
) -> list[str]:
    """Name the accesses that move more sectors than they did, with both counts.

    Accesses of a buffer in one direction are compared one by one, or all together where their
    number has changed, as when several loads share a tile.

    Parameters
    ----------
    before, after : sequence of Traffic
    names : mapping of str to str, optional
        What buffers are called in the text, where that is not by their own names.
    same : float
        Ratio up to which counts are the same; 1 where no warps were drawn.
    is_whole : bool
        Whether what ``before`` does not have moved nothing, such as a load that is never chosen.

    Examples
    --------
    >>> full = Traffic("A", "load", 32, 4, 4, 4)
    >>> worsened([full], [Traffic("A", "load", 128, 16, 32, 16)])
    ['load of A (8 sectors for 32 iterations, 4 before)']
    """
    called = names or {}
    found: list[str] = []
    for key in dict.fromkeys(_key(t) for t in (*before, *(after if is_whole else ()))):
        old = [t for t in before if _key(t) == key]
        new = [t for t in after if _key(t) == key]
        pairs = [(old, new)]
        if len(old) == len(new):
            pairs = [([a], [b]) for a, b in zip(old, new, strict=True)]
        for a, b in pairs:
            was, now = sectors_per_iteration(a), sectors_per_iteration(b)
            if now > same * was * _ROUNDING:
                name = called.get(key[0], key[0])
                found.append(
                    f"{key[1]} of {name} ({WARP_SIZE * now:.3g} sectors for {WARP_SIZE} "
                    f"iterations, {WARP_SIZE * was:.3g} before)"
                )
    return found


def _key(traffic: Traffic) -> tuple[str, str]:
    return traffic.buffer, traffic.kind
