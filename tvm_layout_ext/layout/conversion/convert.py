"""What it takes to bring a tensor from one distributed layout into another."""

from __future__ import annotations

from enum import Enum

from ...errors import LayoutError
from ..linear import LinearLayout, check_linear
from ..swizzle import optimal_swizzle
from .shuffles import plan_shuffles


class Movement(Enum):
    """How far elements must travel, cheapest first."""

    NONE = "none"
    REGISTERS = "registers"
    SHUFFLES = "shuffles"
    SHARED = "shared"
    CLUSTER = "cluster"


def movement(src: LinearLayout, dst: LinearLayout) -> Movement:
    """Tell what a conversion needs.

    Parameters
    ----------
    src, dst : LinearLayout
        From register, lane, warp and block to the tensor, before and after.

    Returns
    -------
    Movement
        ``NONE`` if every thread already holds its elements in place, ``REGISTERS`` if it only has
        to rename them, ``SHUFFLES`` if they stay inside a warp and :func:`.plan_shuffles` has a
        plan, ``SHARED`` if they go through shared memory, ``CLUSTER`` if they leave the block.

    Examples
    --------
    >>> from tvm_layout_ext.layout import BlockedLayout
    >>> rows = BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]).to_linear([64, 64])
    >>> same_warps = BlockedLayout([1, 8], [4, 8], [4, 1], [0, 1]).to_linear([64, 64])
    >>> columns = BlockedLayout([8, 1], [8, 4], [1, 4], [0, 1]).to_linear([64, 64])
    >>> movement(rows, same_warps), movement(rows, columns)
    (<Movement.SHUFFLES: 'shuffles'>, <Movement.SHARED: 'shared'>)
    """
    check_linear(src, dst)
    source = dst.invert_and_compose(src).without_identity(("block", "warp", "lane", "register"))
    left = set(source.in_dims) | set(source.out_names)
    if not left:
        return Movement.NONE
    if left == {"register"}:
        return Movement.REGISTERS
    if "block" in left:
        return Movement.CLUSTER
    return Movement.SHARED if plan_shuffles(src, dst) is None else Movement.SHUFFLES


def scratch_bytes(src: LinearLayout, dst: LinearLayout, element_bits: int) -> int:
    """Bytes of shared memory that a conversion needs, moved by plain loads and stores."""
    needed = movement(src, dst)
    if needed is Movement.CLUSTER:
        raise LayoutError("The conversion moves elements between blocks of a cluster.")
    if needed is not Movement.SHARED:
        return 0
    swizzle = optimal_swizzle(src, dst, element_bits)
    sizes = swizzle.in_sizes
    return sizes["vector"] * sizes["bank"] * sizes["segment"] * element_bits // 8
