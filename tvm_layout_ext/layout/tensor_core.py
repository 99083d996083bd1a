"""Where the tensor cores of NVIDIA GPUs want operands A and B, and leave the result.

Operands of multiplications without tensor cores have the same class, with a blocked parent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import LayoutError
from .base import (
    ClusteredLayout,
    Layout,
    check_power_of_two,
    dim_names,
    fit,
    integers,
    put,
    set_sizes,
    start,
)
from .distributed import INPUTS, BlockedLayout, Distributed
from .linear import LinearLayout


@dataclass(frozen=True, repr=False)
class NVMMADistributedLayout(Distributed, ClusteredLayout):
    """Where the accumulator of a tensor-core multiplication lies.

    Examples
    --------
    A warp's 16x8 tile: four lanes share a row, two neighbouring elements each, eight rows follow
    lane by lane, and the same again 8 rows below is in two more registers:

    >>> layout = NVMMADistributedLayout([2, 0], [1, 1], [16, 8])
    >>> layout.to_linear([16, 8])  # doctest: +NORMALIZE_WHITESPACE
    Linear({register: [[0, 1], [8, 0]], lane: [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]],
            warp: [], block: []}, {dim0: 16, dim1: 8})
    """

    #: ``[2, 0]`` for ``mma.sync`` (one warp computes 16x8), ``[3, 0]`` for ``wgmma`` (each of four
    #: warps computes 16xN).
    version: Sequence[int]
    #: Warps along both dims. Version 2 numbers them row by row, version 3 column by column, its
    #: first four being the warp group.
    warps_per_cta: Sequence[int]
    #: ``[16, 8]`` (or ``[8, 8]`` for doubles) for version 2, ``[16, N, K]`` for version 3.
    instr_shape: Sequence[int]
    ctas_per_cga: Sequence[int] | None = None
    cta_split_num: Sequence[int] | None = None
    cta_order: Sequence[int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "version", integers("version", self.version))
        if self.version not in ((2, 0), (3, 0)):
            raise LayoutError(f"version is {list(self.version)}; it must be [2, 0] or [3, 0].")
        set_sizes(self, 2, "warps_per_cta")
        set_sizes(self, 2 if self.version[0] == 2 else 3, "instr_shape")
        check = _check_mma_sync if self.version[0] == 2 else _check_wgmma
        check(tuple(self.instr_shape), tuple(self.warps_per_cta))
        self._set_cluster(2)

    @property
    def rank(self) -> int:
        """Number of dims: two."""
        return 2

    @property
    def warp_order(self) -> tuple[int, int]:
        """The dim along which neighbouring warps lie, then the other one."""
        return (1, 0) if self.version[0] == 2 else (0, 1)

    def to_linear(self, shape: Sequence[int]) -> LinearLayout:
        """Map (register, lane, warp, block) to the elements of a tensor of this shape."""
        self._check_shape(shape)
        rows, columns = self.instr_shape[:2]
        tile = _mma_tile((rows, columns), 2, inner=1)
        tile = put(tile, "warp", self.warps_per_cta, self.warp_order)
        return fit(tile, self.cta_layout, shape, (1, 0))


@dataclass(frozen=True, repr=False)
class DotOperandLayout(Distributed, Layout):
    """Where operand A or B of a multiplication lies, given where its result lies.

    Examples
    --------
    A of half precision for the 16x8 tile: as in the accumulator four lanes share a row, two
    elements along K each, so an instruction takes 16x16. Warps that differ only in the columns
    of the result hold the same A, so the first basis vector of the warps is zero:

    >>> parent = NVMMADistributedLayout([2, 0], [2, 2], [16, 8])
    >>> a = DotOperandLayout(0, parent, k_width=2).to_linear([32, 16])
    >>> a.basis("lane")
    ((0, 2), (0, 4), (1, 0), (2, 0), (4, 0))
    >>> a.basis("register"), a.basis("warp")
    (((0, 1), (8, 0), (0, 8)), ((0, 0), (16, 0)))
    """

    operand_index: int  #: 0 for A (M x K), 1 for B (K x N)
    #: Layout of the result: an :class:`NVMMADistributedLayout`, or a :class:`BlockedLayout` for
    #: multiplication without tensor cores.
    parent: Layout
    #: Neighbouring elements along K that a lane holds for one instruction, 32 bits together unless
    #: the operand was narrower in memory; 0 for a blocked parent.
    k_width: int = 0

    def __post_init__(self) -> None:
        if type(self.operand_index) is not int or self.operand_index not in (0, 1):
            raise LayoutError(f"operand_index is {self.operand_index}; it must be 0 (A) or 1 (B).")
        if isinstance(self.parent, NVMMADistributedLayout):
            check_power_of_two("k_width", self.k_width)
            if self.parent.version[0] == 3 and self.operand_index == 1:
                raise LayoutError("Operand B of wgmma (version [3, 0]) lies in shared memory only.")
        elif not isinstance(self.parent, BlockedLayout) or self.parent.rank != 2:
            raise LayoutError(
                f"The parent of a dot operand is {self.parent}; it must be an NVMMADistributed "
                "layout or a Blocked layout of rank 2."
            )
        elif type(self.k_width) is not int or self.k_width != 0:
            raise LayoutError(f"k_width is {self.k_width!r}; with a Blocked parent it must be 0.")

    @property
    def rank(self) -> int:
        """Number of dims: two."""
        return 2

    @property
    def k_dim(self) -> int:
        """The dim that the multiplication sums over."""
        return 1 - self.operand_index

    def to_linear(self, shape: Sequence[int]) -> LinearLayout:
        """Map (register, lane, warp, block) to the elements of a tensor of this shape."""
        self._check_shape(shape)
        if isinstance(self.parent, NVMMADistributedLayout):
            return self._on_tensor_cores(self.parent, shape)
        assert isinstance(self.parent, BlockedLayout)
        return self._on_blocked(self.parent, shape)

    def _on_tensor_cores(
        self, parent: NVMMADistributedLayout, shape: Sequence[int]
    ) -> LinearLayout:
        # A double's instruction takes 4 elements along K, the others two times four lanes' worth.
        doubles = parent.instr_shape[0] == 8
        depth = (4 if doubles else 8) * self.k_width
        outer = parent.instr_shape[0] if self.operand_index == 0 else 8
        tile = _mma_tile((outer, depth), self.k_width, inner=self.k_dim)
        tile = self._spread(tile, "warp", parent.warps_per_cta, parent.warp_order)
        cluster = parent.cta_layout.whole_along(self.k_dim)
        return fit(tile, cluster, shape, (self.k_dim, 1 - self.k_dim))

    def _on_blocked(self, parent: BlockedLayout, shape: Sequence[int]) -> LinearLayout:
        sizes = [*parent.size_per_thread]
        sizes[self.k_dim] = shape[self.k_dim]
        tile = put(start(INPUTS, 2), "register", sizes, parent.order)
        tile = self._spread(tile, "lane", parent.threads_per_warp, parent.order)
        tile = self._spread(tile, "warp", parent.warps_per_cta, parent.order)
        cluster = parent.cta_layout.whole_along(self.k_dim)
        return fit(tile, cluster, shape, parent.order)

    def _spread(
        self, tile: LinearLayout, in_dim: str, sizes: Sequence[int], order: Sequence[int]
    ) -> LinearLayout:
        """As :func:`put`, with copies along K."""
        for dim, name in ((d, dim_names(2)[d]) for d in order):
            make = LinearLayout.zeros if dim == self.k_dim else LinearLayout.identity
            tile = tile * make(sizes[dim], in_dim, name)
        return tile


def _mma_tile(shape: tuple[int, int], width: int, *, inner: int) -> LinearLayout:
    """Lay out what all mma operands share: 8 outer rows of 4 lanes, ``width`` elements a lane.

    ``shape`` is (outer, inner); ``inner`` says which dim of the tensor is the inner one.
    """
    names = dim_names(2)
    along, across = names[inner], names[1 - inner]
    tile = start(INPUTS, 2)
    for size, in_dim, out in (
        (width, "register", along),
        (4, "lane", along),
        (8, "lane", across),
        (shape[0] // 8, "register", across),
        (shape[1] // (4 * width), "register", along),
    ):
        tile = tile * LinearLayout.identity(size, in_dim, out)
    return tile


def _check_mma_sync(instr_shape: tuple[int, ...], _warps: tuple[int, ...]) -> None:
    if instr_shape not in ((16, 8), (8, 8)):
        raise LayoutError(
            f"instr_shape is {list(instr_shape)}; version [2, 0] has [16, 8], or [8, 8] for f64."
        )


def _check_wgmma(instr_shape: tuple[int, ...], warps: tuple[int, ...]) -> None:
    rows, columns, _ = instr_shape
    if rows != 16 or not 8 <= columns <= 256:
        raise LayoutError(
            f"instr_shape is {list(instr_shape)}; version [3, 0] has [16, N, K], N from 8 to 256."
        )
    if warps[0] % 4:
        raise LayoutError(
            f"warps_per_cta is {list(warps)}; wgmma needs a multiple of 4 warps along dim 0."
        )
