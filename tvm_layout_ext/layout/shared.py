"""Layouts of tensors in shared memory: which offset holds which element.

The classes and fields carry the names that Triton's gluon uses. ``to_linear`` gives a map from
(offset, block) to the tensor's dims ``dim0``, ``dim1``, ...; offsets count elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ..errors import LayoutError
from ..gpu.warpgroups import BOX_ELEMENTS, MOST_TMA_DIMS
from .base import (
    ClusteredLayout,
    check_power_of_two,
    dim_names,
    fit,
    grow,
    integer_lists,
    put,
    set_order,
    start,
)
from .linear import LinearLayout, is_power_of_two, log2

INPUTS = ("offset", "block")
#: No interval or padding can be longer: shared memory has less than 2^18 bytes.
LONGEST_GAP = 1 << 18


class Shared(ClusteredLayout):
    """Base of the layouts of shared memory; ``alignment`` is that of the allocation, in bytes."""

    alignment = 16


@dataclass(frozen=True, repr=False)
class SwizzledSharedLayout(Shared):
    """Rows one after the other, the columns of each row permuted by an XOR with its number.

    Vectors of ``vec`` elements stay whole; ``per_phase`` rows in a row share a permutation, and
    ``max_phase`` permutations take turns: element (r, c) lies in row r at column
    ``c ^ vec * (r // per_phase % max_phase)``.

    Examples
    --------
    Rows of eight, vectors of two, four permutations. Each line shows the columns that lie
    at consecutive offsets:

    >>> layout = SwizzledSharedLayout(2, 1, 4, [1, 0])
    >>> linear = layout.to_linear([4, 8])
    >>> for row in range(4):
    ...     print(*(linear.apply(offset=8 * row + i, block=0)["dim1"] for i in range(8)))
    0 1 2 3 4 5 6 7
    2 3 0 1 6 7 4 5
    4 5 6 7 0 1 2 3
    6 7 4 5 2 3 0 1

    Reading down column 0 meets a different position in every row, so a different bank.
    """

    vec: int  #: As above; (1, 1, 1) permutes nothing
    per_phase: int
    max_phase: int
    order: Sequence[int]  #: The dims, the contiguous one (columns) first, then the rows
    ctas_per_cga: Sequence[int] | None = None
    cta_split_num: Sequence[int] | None = None
    cta_order: Sequence[int] | None = None

    def __post_init__(self) -> None:
        for name in ("vec", "per_phase", "max_phase"):
            check_power_of_two(name, getattr(self, name))
        set_order(self)
        self._set_cluster(len(self.order))

    def to_linear(self, shape: Sequence[int]) -> LinearLayout:
        """Map (offset, block) to the elements of a tensor of this shape."""
        self._check_shape(shape)
        part = self.cta_layout.shape_of_one(shape)
        names = dim_names(self.rank)
        if self.rank == 1:
            rows = put(start(INPUTS, 1), "offset", part, self.order)
            return fit(rows, self.cta_layout, shape, self.order, "offset")
        column, row = self.order[:2]
        vectors = [_at(self.rank, {column: 1 << i}) for i in range(log2(part[column]))]
        for r in (1 << i for i in range(log2(part[row]))):
            moved = self.vec * (r // self.per_phase % self.max_phase) % part[column]
            vectors.append(_at(self.rank, {row: r, column: moved}))
        sizes = {n: part[d] if d in (column, row) else 1 for d, n in enumerate(names)}
        plane = LinearLayout.from_bases({"offset": vectors, "block": []}, sizes)
        return fit(plane, self.cta_layout, shape, self.order, "offset")


@dataclass(frozen=True, repr=False)
class NVMMASharedLayout(Shared):
    """The layouts that TMA writes and ``wgmma`` reads: 8-row tiles with a hardware swizzle.

    The tensor is cut into panels as wide as the swizzle. In a panel rows follow each other, and
    the 16-byte chunks of row r are permuted by an XOR with
    ``r // (128 / width) % (width / 16)``; panels follow each other.

    Examples
    --------
    Half precision and 64-byte panels of 32 columns, in chunks of 8 elements. Two rows share a
    permutation. The first column of each row's chunks as they lie in memory:

    >>> linear = NVMMASharedLayout(64, 16).to_linear([8, 64])
    >>> for row in range(0, 8, 2):
    ...     print(*(linear.apply(offset=32 * row + 8 * i, block=0)["dim1"] for i in range(4)))
    0 8 16 24
    8 0 24 16
    16 24 0 8
    24 16 8 0
    """

    swizzle_byte_width: int  #: Width of a panel in bytes, 32, 64 or 128; 0 for plain rows
    element_bitwidth: int  #: 8, 16, 32 or 64
    rank: int = 2  #: Number of dims, at most the 5 of TMA; outer dims are flattened to rows
    transposed: bool = False  #: The contiguous dim is the first instead of the last
    ctas_per_cga: Sequence[int] | None = None
    cta_split_num: Sequence[int] | None = None
    cta_order: Sequence[int] | None = None

    def __post_init__(self) -> None:
        width = self.swizzle_byte_width
        if type(width) is not int or width not in (0, 32, 64, 128):
            raise LayoutError(
                f"swizzle_byte_width is {self.swizzle_byte_width}; the hardware has 0, 32, 64, 128."
            )
        check_power_of_two("element_bitwidth", self.element_bitwidth, 8, 64)
        least = 2 if self.swizzle_byte_width else 1
        if type(self.rank) is not int or not least <= self.rank <= MOST_TMA_DIMS:
            raise LayoutError(
                f"rank is {self.rank!r}; a swizzle needs 2 dims or more, plain rows 1, and TMA has "
                f"{MOST_TMA_DIMS} at most."
            )
        if not isinstance(self.transposed, bool):
            raise LayoutError(f"transposed is {self.transposed!r}; it must be True or False.")
        self._set_cluster(self.rank)

    @property
    def alignment(self) -> int:  # type: ignore[override]
        """Bytes to which the allocation must be aligned: eight rows of a panel."""
        return 8 * self.swizzle_byte_width or 128

    @property
    def vec(self) -> int:
        """Elements of a chunk of 16 bytes, which no swizzle tears apart."""
        return 128 // self.element_bitwidth

    @property
    def per_phase(self) -> int:
        """Neighbouring rows that share a permutation."""
        return 128 // self.swizzle_byte_width if self.swizzle_byte_width else 1

    @property
    def max_phase(self) -> int:
        """Number of permutations."""
        return max(1, self.swizzle_byte_width // 16)

    def to_linear(self, shape: Sequence[int]) -> LinearLayout:
        """Map (offset, block) to the elements of a tensor of this shape."""
        self._check_shape(shape)
        part = self.cta_layout.shape_of_one(shape)
        # Work with the contiguous dim last, and turn back at the end.
        turn = [*range(1, self.rank), 0] if self.transposed else [*range(self.rank)]
        box = self._tma_box([part[d] for d in turn])
        tile = self._swizzled_box(box) if self.swizzle_byte_width else _rows(box)
        names = dim_names(self.rank)
        back = tile.rename_outs({f"dim{i}": f"dim{d}" for i, d in enumerate(turn)})
        return fit(back.transpose_outs(names), self.cta_layout, shape, range(self.rank), "offset")

    def _tma_box(self, shape: list[int]) -> list[int]:
        """Give what one TMA instruction moves, one panel wide."""
        box = [min(n, BOX_ELEMENTS) for n in shape]
        if self.swizzle_byte_width:
            box[-1] = min(box[-1], 8 * self.swizzle_byte_width // self.element_bitwidth)
        return box

    def _swizzled_box(self, box: list[int]) -> LinearLayout:
        """Repeat the 8-row tile over the flattened rows of the box."""
        columns, rows = 8 * self.swizzle_byte_width // self.element_bitwidth, prod(box[:-1])
        if box[-1] < columns or rows < 8:
            raise LayoutError(
                f"{self} needs 8 rows or more and {columns} columns or more; "
                f"a block's part has {rows} rows of {box[-1]}."
            )
        vectors = [(0, 1 << i) for i in range(log2(columns))]
        for row in (1, 2, 4):
            vectors.append((row, self.vec * (row // self.per_phase % self.max_phase)))
        tile = LinearLayout.from_bases(
            {"offset": vectors, "block": []}, {"dim0": 8, "dim1": columns}
        )
        tile = grow(tile, (rows, columns), (0, 1), "offset")
        inner_first = [*reversed(dim_names(len(box)))]
        sizes = dict(zip(inner_first, reversed(box), strict=True))
        return tile.transpose_outs(["dim1", "dim0"]).reshape_outs(sizes)


@dataclass(frozen=True, repr=False)
class PaddedSharedLayout(Shared):
    """Rows one after the other with gaps: after every ``interval`` elements, ``padding`` more.

    Gaps are no linear map, so ``to_linear`` gives the order of the elements without them, and
    :meth:`padded_offset` the place of each.

    Examples
    --------
    A 32x32 tile of words whose rows are 33 words long. Column 0 then lies in 32 different banks;
    the last row needs no gap behind it:

    >>> layout = PaddedSharedLayout([(32, 1)], [1, 0])
    >>> [layout.padded_offset(32 * row) % 32 for row in (0, 1, 2, 31)]
    [0, 1, 2, 31]
    >>> layout.allocated_elements([32, 32])
    1055
    """

    #: Interval and padding, in elements, powers of two up to 2^18; several pairs add up.
    interval_padding_pairs: Sequence[Sequence[int]]
    order: Sequence[int]  #: The dims, the contiguous one first
    ctas_per_cga: Sequence[int] | None = None
    cta_split_num: Sequence[int] | None = None
    cta_order: Sequence[int] | None = None

    def __post_init__(self) -> None:
        pairs = integer_lists("interval_padding_pairs", self.interval_padding_pairs)
        if not pairs or any(len(pair) != 2 for pair in pairs):
            raise LayoutError(
                f"interval_padding_pairs is {list(pairs)}; it needs pairs (interval, padding)."
            )
        for interval, padding in pairs:
            if not (is_power_of_two(interval) and is_power_of_two(padding)):
                raise LayoutError(
                    f"Interval {interval} and padding {padding} must be powers of two."
                )
            if max(interval, padding) > LONGEST_GAP:
                raise LayoutError(
                    f"Interval {interval} and padding {padding} must be at most {LONGEST_GAP}; "
                    "shared memory holds less."
                )
        if len({interval for interval, _ in pairs}) != len(pairs):
            raise LayoutError(f"interval_padding_pairs {list(pairs)} repeats an interval.")
        object.__setattr__(self, "interval_padding_pairs", tuple(sorted(pairs)))
        set_order(self)
        self._set_cluster(len(self.order))

    def to_linear(self, shape: Sequence[int]) -> LinearLayout:
        """Map (offset without gaps, block) to the elements of a tensor of this shape."""
        self._check_shape(shape)
        part = self.cta_layout.shape_of_one(shape)
        rows = put(start(INPUTS, self.rank), "offset", part, self.order)
        return fit(rows, self.cta_layout, shape, self.order, "offset")

    def padded_offset(self, offset: Any) -> Any:
        """Place an offset, an integer or a NumPy array of them, behind the gaps before it."""
        return offset + sum(offset // every * gap for every, gap in self.interval_padding_pairs)

    def allocated_elements(self, shape: Sequence[int]) -> int:
        """Elements of one block's allocation: up to its last element, no gap after it."""
        last = prod(self.cta_layout.shape_of_one(shape)) - 1
        return int(self.padded_offset(last)) + 1


def _at(rank: int, values: dict[int, int]) -> tuple[int, ...]:
    return tuple(values.get(d, 0) for d in range(rank))


def _rows(box: Sequence[int]) -> LinearLayout:
    return put(start(INPUTS, len(box)), "offset", box, [*reversed(range(len(box)))])
