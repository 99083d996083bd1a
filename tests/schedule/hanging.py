"""Which sectors of a move hang together, and what any grid of blocks must move because of that.

A sector of the source and one of the result hang together where an element of the one goes to the
other. What hangs together in a chain of such pairs is a component. Everything here is counted from
the addresses of the elements alone; nothing knows of walks, tiles or plans.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SECTOR = 32


def permuted_addresses(shape: Sequence[int], order: Sequence[int]) -> np.ndarray:
    """Place in the source of each element of a permutation's result, in the result's order."""
    return np.arange(np.prod(shape)).reshape(shape).transpose(order).reshape(-1)


def distinct_sectors(places: np.ndarray, size: int) -> int:
    """Sectors that elements at these places lie in; places below 0 are none."""
    return len(np.unique(places[places >= 0] * size // SECTOR))


def components(source: np.ndarray, size: int, stored: int) -> np.ndarray:
    """Bytes of the source in each component.

    Parameters
    ----------
    source : array of int
        Place in the source of each element of the result, in the result's order.
    size, stored : int
        Bytes of an element of the source, and of the result.
    """
    read = source * size // SECTOR
    written = np.arange(len(source)) * stored // SECTOR
    label = np.arange(written.max() + 1)
    while True:
        lowest = np.full(read.max() + 1, len(label))
        np.minimum.at(lowest, read, label[written])
        joined = label.copy()
        np.minimum.at(joined, written, lowest[read])
        if (joined == label).all():
            found = np.bincount(label[written]) * size
            return found[found > 0]
        label = joined[joined]


def bound(source: np.ndarray, size: int, stored: int, held: int) -> int:
    """Sectors that any grid moves at least, whose blocks each hold at once all that they move.

    Take a component of ``s`` sectors whose elements ``k`` blocks share out, in any way. Draw a line
    from each block to each sector that it touches: these lines are the sectors moved. The blocks
    and the sectors are one piece, for the component is, and ``s + k`` points in one piece have at
    least ``s + k - 1`` lines. A block that holds ``held`` bytes takes no more of a component, so
    ``k`` is at least the component's bytes over these, rounded up.

    A block that works its way through a tensor larger than it can hold is not covered: with the
    rest of each sector kept until its other elements come, one block alone could move each once.
    """
    each = distinct_sectors(source, size) + distinct_sectors(np.arange(len(source)), stored)
    return each + int(sum(-(-own // held) - 1 for own in components(source, size, stored)))
