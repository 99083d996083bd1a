"""Choosing the blocked layout in which a group of memory accesses is best done.

A warp's request should touch as few 32-byte sectors as possible, with as wide a vector a thread as
alignment allows. So threads run along the axis in which addresses run, and each takes as many
neighbours as it can load at once. Accesses that feed each other and run along the same axes share
one width, or every value would be shuffled on its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ...gpu.hardware import MAX_ACCESS_BYTES, WARP_SIZE
from ...layout import BlockedLayout
from .values import AxisInfo


@dataclass(frozen=True)
class MemoryAccess:
    """A load, store or atomic of a whole tensor."""

    pointer: AxisInfo  #: Of the addresses; divisibility in bytes
    shape: tuple[int, ...]  #: Shape of the tensor
    element_bits: int  #: Bits of an element
    #: A plain load. Its width may exceed one instruction's if its neighbours want that.
    is_load: bool
    #: Elements that one instruction can take, where it is not 16 bytes' worth.
    most_elements: int | None = None

    @property
    def order(self) -> tuple[int, ...]:
        """The dims, the one with the longest runs first, of equals the last one."""
        dims = range(len(self.shape) - 1, -1, -1)
        return tuple(sorted(dims, key=lambda d: -self.pointer.contiguity[d]))

    @property
    def vector(self) -> int:
        """Elements along the first dim of the order that one instruction can take."""
        dim = self.order[0]
        aligned = max(1, self.pointer.divisibility[dim] * 8 // max(8, self.element_bits))
        most = self.most_elements or max(1, 8 * MAX_ACCESS_BYTES // self.element_bits)
        return min(aligned, self.pointer.contiguity[dim], self.shape[dim], most)


def choose_layout(
    access: MemoryAccess, group: Sequence[MemoryAccess], num_warps: int
) -> BlockedLayout:
    """Choose the layout of one access.

    The group is all that feed it or are fed by it; those of another shape or order do not matter.

    Examples
    --------
    >>> runs = AxisInfo((1024,), (16,), (1,))
    >>> half = MemoryAccess(runs, (1024,), 16, True)
    >>> single = MemoryAccess(runs, (1024,), 32, True)
    >>> choose_layout(single, [half, single], 4).size_per_thread
    (8,)
    """
    order = access.order
    alike = [a for a in group if a.shape == access.shape and a.order == order]
    width = max(a.vector for a in [access, *alike])
    width = min(width, max(1, prod(access.shape) // (num_warps * WARP_SIZE)))
    if not access.is_load:
        width = min(width, access.vector)
    size_per_thread = [1] * len(order)
    size_per_thread[order[0]] = width
    return BlockedLayout.covering(access.shape, size_per_thread, order, num_warps)


def atomic_add_elements(element_bits: int, capability: int, *, floating: bool) -> int:
    """Tell how many neighbours one atomic addition may take."""
    if not floating or element_bits == 64:
        return 1
    if capability >= 90:
        return 8 * MAX_ACCESS_BYTES // element_bits
    return 2 if element_bits == 16 else 1
