"""Layouts that spread a tensor over the registers, lanes and warps of a block.

The classes and fields carry the names that Triton's gluon uses. ``to_linear`` gives a map from
(register, lane, warp, block) to the tensor's dims ``dim0``, ``dim1``, ... Those of tensor cores
are in :mod:`.tensor_core`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ..errors import LayoutError
from ..gpu.hardware import WARP_SIZE
from .base import (
    ClusteredLayout,
    Layout,
    check_power_of_two,
    dim_names,
    fit,
    integer_lists,
    integers,
    put,
    set_order,
    set_sizes,
    start,
)
from .linear import LinearLayout

INPUTS = ("register", "lane", "warp", "block")


class Distributed:
    """Marks the layouts that place elements in the registers of threads."""


@dataclass(frozen=True, repr=False)
class BlockedLayout(Distributed, ClusteredLayout):
    """Each thread holds a small box; boxes fill a warp's box, those the block's, which repeats.

    Examples
    --------
    Two warps over 16x16 elements, 2x2 of them a thread, 8x4 threads a warp; thread 0 holds the
    corner, thread 1 the box to its right because ``order[0]`` is 1:

    >>> layout = BlockedLayout([2, 2], [8, 4], [1, 2], [1, 0])
    >>> linear = layout.to_linear([16, 16])
    >>> linear  # doctest: +NORMALIZE_WHITESPACE
    Linear({register: [[0, 1], [1, 0]], lane: [[0, 2], [0, 4], [2, 0], [4, 0], [8, 0]],
            warp: [[0, 8]], block: []}, {dim0: 16, dim1: 16})

    A larger tensor repeats the tile in more registers; in a smaller one, several registers, lanes
    or warps hold copies:

    >>> layout.to_linear([16, 32]).basis("register")
    ((0, 1), (1, 0), (0, 16))
    """

    size_per_thread: Sequence[int]  #: Neighbouring elements that one thread holds along each dim
    threads_per_warp: Sequence[int]  #: Lanes along each dim; they multiply to 32
    warps_per_cta: Sequence[int]  #: Warps along each dim
    #: The dims, the one along which neighbouring registers, lanes and warps lie first.
    order: Sequence[int]
    ctas_per_cga: Sequence[int] | None = None
    cta_split_num: Sequence[int] | None = None
    cta_order: Sequence[int] | None = None

    def __post_init__(self) -> None:
        set_order(self)
        rank = len(self.order)
        set_sizes(self, rank, "size_per_thread", "threads_per_warp", "warps_per_cta")
        _check_lanes(prod(self.threads_per_warp), f"threads_per_warp {list(self.threads_per_warp)}")
        self._set_cluster(rank)

    @staticmethod
    def covering(
        shape: Sequence[int],
        size_per_thread: Sequence[int],
        order: Sequence[int],
        num_warps: int,
    ) -> BlockedLayout:
        """Choose lanes and warps so that neighbours in ``order`` cover the shape of one block.

        Each dim in turn, the fastest first, takes as many lanes as it has boxes for, then as many
        warps; the slowest dim takes what is left.
        """
        check_power_of_two("num_warps", num_warps, 1, 32)
        named = {"shape": shape, "size_per_thread": size_per_thread}
        for name, given in {**named, "order": order}.items():
            integers(name, given)
        for name, given in named.items():
            if any(value < 1 for value in given):
                raise LayoutError(f"{name} is {list(given)}; every number must be at least 1.")
        if not len(shape) == len(size_per_thread) == len(order) > max(order, default=0):
            raise LayoutError(
                f"Shape {list(shape)}, size_per_thread {list(size_per_thread)} and order "
                f"{list(order)} do not have one number a dim each."
            )
        if sorted(order) != list(range(len(order))):
            raise LayoutError(
                f"order is {list(order)}; it must be a permutation of 0..{len(order) - 1}."
            )
        lanes_left, warps_left = WARP_SIZE, num_warps
        lanes, warps = [1] * len(order), [1] * len(order)
        for dim in order[:-1]:
            boxes = max(1, shape[dim] // size_per_thread[dim])
            lanes[dim] = min(boxes, lanes_left)
            warps[dim] = min(max(1, boxes // lanes[dim]), warps_left)
            lanes_left //= lanes[dim]
            warps_left //= warps[dim]
        lanes[order[-1]], warps[order[-1]] = lanes_left, warps_left
        return BlockedLayout(size_per_thread, lanes, warps, order)

    def to_linear(self, shape: Sequence[int]) -> LinearLayout:
        """Map (register, lane, warp, block) to the elements of a tensor of this shape."""
        self._check_shape(shape)
        tile = put(start(INPUTS, self.rank), "register", self.size_per_thread, self.order)
        tile = put(tile, "lane", self.threads_per_warp, self.order)
        tile = put(tile, "warp", self.warps_per_cta, self.order)
        return fit(tile, self.cta_layout, shape, self.order)


@dataclass(frozen=True, repr=False)
class SliceLayout(Distributed, Layout):
    """What remains of a parent layout when one dim is squeezed out.

    The result of a reduction along that dim lies so, and so must a vector that is to be broadcast
    along it: each thread then already holds the elements it needs.

    Examples
    --------
    Row sums of the 16x16 tile of :class:`BlockedLayout`: a thread holds the sums of two rows, and
    all lanes and warps along a row hold copies, which show as zeros:

    >>> parent = BlockedLayout([2, 2], [8, 4], [1, 2], [1, 0])
    >>> SliceLayout(1, parent).to_linear([16])
    Linear({register: [[1]], lane: [[0], [0], [2], [4], [8]], warp: [[0]], block: []}, {dim0: 16})
    """

    dim: int  #: The dim of the parent that is gone
    parent: Layout  #: A distributed layout with one dim more

    def __post_init__(self) -> None:
        if not isinstance(self.parent, Distributed):
            raise LayoutError(
                f"The parent of a slice is {self.parent!r}, which is no distributed layout."
            )
        known = type(self.dim) is int and self.dim in range(self.parent.rank)
        if self.parent.rank < 2 or not known:
            raise LayoutError(
                f"A slice along dim {self.dim} needs a parent of rank 2 or more that has it; "
                f"{self.parent} has rank {self.parent.rank}."
            )

    @property
    def rank(self) -> int:
        """Number of dims: one less than the parent's."""
        return self.parent.rank - 1

    def to_linear(self, shape: Sequence[int]) -> LinearLayout:
        """Map (register, lane, warp, block) to the elements of a tensor of this shape."""
        self._check_shape(shape)
        whole = self.parent.to_linear([*shape[: self.dim], 1, *shape[self.dim :]])
        kept = [name for name in whole.out_names if name != f"dim{self.dim}"]
        left = whole.sublayout(whole.in_dims, kept)
        renamed = left.rename_outs(dict(zip(kept, dim_names(self.rank), strict=True)))
        return renamed.without_zero_bases("register")


@dataclass(frozen=True, repr=False)
class DistributedLinearLayout(Distributed, Layout):
    """Any placement at all, for tensors of one shape, by its basis vectors.

    Examples
    --------
    A column of 64 elements with two neighbours a lane:

    >>> lanes = [[2], [4], [8], [16], [32]]
    >>> DistributedLinearLayout([[1]], lanes, [], [], [64]).to_linear([64]).apply(
    ...     register=1, lane=3, warp=0, block=0
    ... )
    {'dim0': 7}
    """

    #: The elements held by register (lane, warp, block) 1, 2, 4, ...
    reg_bases: Sequence[Sequence[int]]
    lane_bases: Sequence[Sequence[int]]
    warp_bases: Sequence[Sequence[int]]
    block_bases: Sequence[Sequence[int]]
    shape: Sequence[int]  #: The tensor's shape

    def __post_init__(self) -> None:
        if not integers("shape", self.shape):
            raise LayoutError("shape is empty; a layout needs at least one dim.")
        set_sizes(self, len(self.shape), "shape")
        for name in _BASES.values():
            object.__setattr__(self, name, integer_lists(name, getattr(self, name)))
        _check_lanes(1 << len(self.lane_bases), f"lane_bases {list(self.lane_bases)}")
        self.to_linear(self.shape)

    @staticmethod
    def from_linear(linear: LinearLayout) -> DistributedLinearLayout:
        """Take over a linear layout with inputs register, lane, warp and block."""
        if not set(linear.in_dims) <= set(INPUTS):
            raise LayoutError(f"{linear} has other inputs than {', '.join(INPUTS)}.")
        register, lane, warp, block = (linear.basis(name) for name in INPUTS)
        return DistributedLinearLayout(
            register, lane, warp, block, tuple(linear.out_sizes.values())
        )

    @property
    def rank(self) -> int:
        """Number of dims."""
        return len(self.shape)

    def to_linear(self, shape: Sequence[int]) -> LinearLayout:
        """Map (register, lane, warp, block) to the elements; the shape is the layout's own."""
        if integers("The shape", shape) != tuple(self.shape):
            raise LayoutError(f"{self} lays out shape {list(self.shape)}, not {list(shape)}.")
        sizes = dict(zip(dim_names(self.rank), self.shape, strict=True))
        bases = {in_dim: getattr(self, name) for in_dim, name in _BASES.items()}
        return LinearLayout.from_bases(bases, sizes)


_BASES = dict(zip(INPUTS, ("reg_bases", "lane_bases", "warp_bases", "block_bases"), strict=True))


def _check_lanes(lanes: int, what: str) -> None:
    if lanes != WARP_SIZE:
        raise LayoutError(f"{what} makes {lanes} lanes; a warp has {WARP_SIZE}.")
