"""How many sectors one way to map a block moves beside another.

Two mappings of a block run the same iterations in requests of different size, and one may read an
operand once that the other reads again and again. So what is compared is sectors an iteration of
the block that was mapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ..analysis.nest import Nest
from ..ir.evaluate import placeholder_extent
from .sectors import Traffic, count_traffic

#: Ratio of sectors that sampling cannot tell from equality.
SAME = 1.02


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
    own = prod(placeholder_extent(loop.extent) for loop in part.loops)
    times = max(1.0, iterations / own)
    return [replace(t, iterations=t.iterations * times) for t in count_traffic(part)]


def sectors_per_iteration(traffic: Sequence[Traffic]) -> float:
    """Sectors that one iteration costs, over all accesses; requests carry different numbers."""
    return sum(t.share * t.sectors / t.iterations for t in traffic)
