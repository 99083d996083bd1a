"""Bring elements to other threads through shared memory, without bank conflicts."""

from __future__ import annotations

from dataclasses import dataclass

from .linear import LinearLayout
from .swizzle import optimal_swizzle

__all__ = ["RoundTrip", "plan_round_trip"]


@dataclass(frozen=True)
class RoundTrip:
    """Where each thread writes its elements, and where it reads its new ones.

    Attributes
    ----------
    write, read : LinearLayout
        From (register, thread) to (offset, round). In each round the registers that belong to it
        are written, then read; the rounds use the same memory.
    """

    write: LinearLayout
    read: LinearLayout

    @property
    def elements(self) -> int:
        """Elements of the memory."""
        return self.write.out_sizes["offset"]

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return self.write.out_sizes["round"]


def plan_round_trip(src: LinearLayout, dst: LinearLayout, element_bits: int) -> RoundTrip:
    """Plan the way through the shared layout that :func:`optimal_swizzle` finds.

    Parameters
    ----------
    src, dst : LinearLayout
        From register, lane, warp and block to the tensor, before and after; one block.
    element_bits : int
        Bits of an element.

    Examples
    --------
    >>> from tvm_layout_ext.layout import BlockedLayout
    >>> rows = BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0]).to_linear([32, 32])
    >>> columns = BlockedLayout([1, 1], [32, 1], [1, 4], [0, 1]).to_linear([32, 32])
    >>> plan = plan_round_trip(rows, columns, 32)
    >>> plan.elements, plan.rounds
    (1024, 1)
    """
    swizzle = optimal_swizzle(src, dst, element_bits)
    sizes = swizzle.in_sizes
    joined = {"offset": sizes["vector"] * sizes["bank"] * sizes["segment"], "round": sizes["reps"]}

    def offsets(side: LinearLayout) -> LinearLayout:
        moves = side.invert_and_compose(swizzle)
        kept = moves.sublayout(moves.in_dims, ["vector", "bank", "segment", "reps"])
        return _by_thread(kept.reshape_outs(joined))

    return RoundTrip(offsets(src), offsets(dst))


def _by_thread(moves: LinearLayout) -> LinearLayout:
    bases = {
        "register": moves.basis("register"),
        "thread": moves.basis("lane") + moves.basis("warp"),
    }
    return LinearLayout.from_bases(bases, moves.out_sizes, surjective=False)
