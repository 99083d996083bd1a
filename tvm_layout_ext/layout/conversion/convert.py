"""What it takes to bring a tensor from one distributed layout into another."""

from __future__ import annotations

from enum import Enum

from ...errors import LayoutError
from ..linear import LinearLayout, check_linear
from ..swizzle import optimal_swizzle


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
        to rename them, ``SHUFFLES`` if they stay inside a warp and at most one lane bit changes
        places with a register bit, ``SHARED`` if they go through shared memory, ``CLUSTER`` if
        they leave the block.

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
    if left == {"register", "lane"} and _is_permutation(src) and _is_permutation(dst):
        few = _exchanged_bits(src, dst) < 2
        return Movement.SHUFFLES if few else Movement.SHARED
    return Movement.CLUSTER if "block" in left else Movement.SHARED


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


def _is_permutation(layout: LinearLayout) -> bool:
    """Whether every vector is zero or one unit vector, none of them twice."""
    vectors = [v for v in layout.columns if v]
    return all(v & (v - 1) == 0 for v in vectors) and len(set(vectors)) == len(vectors)


def _exchanged_bits(src: LinearLayout, dst: LinearLayout) -> int:
    """Count the register bits of ``src`` that become lane bits of ``dst``; copies match copies."""
    before, after = _bits(src), _bits(dst)
    registers = max(len(before["register"]), len(after["register"]))
    for bits in (before, after):
        bits["register"] += [0] * (registers - len(bits["register"]))
    lanes = {v for v in after["lane"] if v}
    crossing = sum(v in lanes for v in before["register"] if v)
    copies = [
        (name, old, new)
        for name in ("register", "lane")
        for old, new in zip(before[name], after[name], strict=True)
    ]
    left = [name for name, old, new in copies if old == 0 != new]
    entered = [name for name, old, new in copies if new == 0 != old]
    return crossing + sum(pair == ("register", "lane") for pair in zip(left, entered, strict=False))


def _bits(layout: LinearLayout) -> dict[str, list[int]]:
    kept = layout.without_zero_bases("register")
    return {name: kept.flat_basis(name) for name in ("register", "lane")}
