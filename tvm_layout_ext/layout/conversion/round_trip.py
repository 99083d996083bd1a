"""Bring elements to other threads through shared memory, without bank conflicts."""

from __future__ import annotations

from dataclasses import dataclass

from ..banks import MAX_ACCESS_BITS
from ..linear import LinearLayout
from ..swizzle import optimal_swizzle
from .per_thread import contiguous_bits, join_threads


@dataclass(frozen=True)
class Transfer:
    """One way between registers and shared memory.

    Attributes
    ----------
    offsets : LinearLayout
        From (register, thread) to (offset, round). Each round moves the registers that belong to
        it; all use the same memory.
    vector : tuple of int
        The register bits that one access moves at once, lowest first.
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

    Examples
    --------
    >>> from tvm_layout_ext.layout import BlockedLayout
    >>> rows = BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0]).to_linear([32, 128])
    >>> columns = BlockedLayout([1, 2], [32, 1], [1, 4], [0, 1]).to_linear([32, 128])
    >>> plan = plan_round_trip(rows, columns, 32)
    >>> plan.elements, plan.rounds, plan.write.vector, plan.read.vector
    (4096, 1, (0,), (0,))
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
