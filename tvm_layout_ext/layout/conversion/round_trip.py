"""Bring elements to other threads through shared memory, without bank conflicts."""

from __future__ import annotations

from dataclasses import dataclass

from ..banks import MAX_ACCESS_BITS
from ..linear import LinearLayout
from ..swizzle import optimal_swizzle
from .per_thread import contiguous_bits, join_threads


@dataclass(frozen=True)
class Transfer:
    """One way between registers and shared memory, ``vector`` register bits at once, lowest first.

    ``offsets`` leads from (register, thread) to (offset, round).
    """

    offsets: LinearLayout
    vector: tuple[int, ...]


@dataclass(frozen=True)
class RoundTrip:
    """Where each thread writes its elements, and where it then reads its new ones, by rounds."""

    write: Transfer
    read: Transfer

    @property
    def elements(self) -> int:
        """Elements of the memory."""
        return self.write.offsets.out_sizes["offset"]

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return self.write.offsets.out_sizes["round"]


def plan_round_trip(src: LinearLayout, dst: LinearLayout, element_bits: int) -> RoundTrip:
    """Plan the way through the shared layout that :func:`optimal_swizzle` finds.

    The layouts before and after lead from register, lane, warp and block (one) to the tensor.
    """
    swizzle = optimal_swizzle(src, dst, element_bits)
    sizes = swizzle.in_sizes
    joined = {"offset": sizes["vector"] * sizes["bank"] * sizes["segment"], "round": sizes["reps"]}

    def transfer(side: LinearLayout) -> Transfer:
        moves = side.invert_and_compose(swizzle)
        kept = moves.sublayout(moves.in_dims, ["vector", "bank", "segment", "reps"])
        offsets = join_threads(kept.reshape_outs(joined))
        return Transfer(
            offsets, contiguous_bits(offsets, "offset", MAX_ACCESS_BITS // element_bits)
        )

    return RoundTrip(transfer(src), transfer(dst))
