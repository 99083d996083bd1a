"""Where the elements of a shared buffer lie: rows with a stride, or offsets by XOR.

A placement turns index arrays into offsets of elements; it is what a swizzle or a padding comes
down to once shape and layout are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from ..errors import LayoutError
from ..gpu.hardware import BANK_BYTES, LINE_BYTES, NUM_BANKS
from .f2 import rank
from .linear import LinearLayout, is_power_of_two, log2
from .shared import NVMMASharedLayout, SwizzledSharedLayout


@dataclass(frozen=True)
class Strided:
    """An element lies at the sum of its indices times the strides, the last of which is 1.

    The buffer must be aligned to ``alignment`` bytes.
    """

    strides: tuple[int, ...]
    alignment: int = LINE_BYTES

    def offsets(self, indices: Sequence[Any]) -> Any:
        """Offset of each element; indices are arrays, one for each dim."""
        terms = (
            np.asarray(index, np.int64) * stride
            for index, stride in zip(indices, self.strides, strict=True)
        )
        return sum(terms, np.int64(0))

    def elements(self, shape: Sequence[int]) -> int:
        """Elements to allocate, the padding after the last row included."""
        return self.strides[0] * shape[0]

    def whole(self) -> int:
        """Find how many aligned neighbours of the last dim surely stay neighbours and aligned."""
        if self.strides[-1] != 1:
            return 1
        outer = [stride for stride in self.strides[:-1] if stride]
        return min((stride & -stride for stride in outer), default=1 << 30)


@dataclass(frozen=True)
class Xor:
    """An element lies at the XOR of the images of its indices' bits: offsets, lowest bit first."""

    images: tuple[tuple[int, ...], ...]
    alignment: int = LINE_BYTES

    def __str__(self) -> str:
        """As the annotation of a swizzle has it.

        >>> str(Xor(((4, 10), (1, 2), ())))
        '4,10;1,2;'
        """
        return ";".join(",".join(map(str, bits)) for bits in self.images)

    def offsets(self, indices: Sequence[Any]) -> Any:
        """Offset of each element; indices are arrays, one for each dim."""
        total: Any = np.int64(0)
        for index, images in zip(indices, self.images, strict=True):
            values = np.asarray(index, np.int64)
            for bit, image in enumerate(images):
                total = total ^ (values >> bit & 1) * image
        return total

    def elements(self, shape: Sequence[int]) -> int:
        """Elements to allocate: up to the last offset in use."""
        grid = np.meshgrid(*map(np.arange, shape), indexing="ij", sparse=True)
        return int(np.max(self.offsets(grid))) + 1

    def whole(self) -> int:
        """Find how many aligned neighbours of the last dim surely stay neighbours and aligned."""
        last = self.images[-1]
        others = [image for images in self.images[:-1] for image in images]
        width = 1
        while width.bit_length() <= len(last) and last[width.bit_length() - 1] == width:
            rest = [*last[width.bit_length() :], *others]
            if any(image & width for image in rest):
                break
            width *= 2
        return width


Placement = Strided | Xor


def dense(shape: Sequence[int]) -> Strided:
    """Plain rows without gaps."""
    return Strided(tuple(prod(shape[d + 1 :]) for d in range(len(shape))))


def padded(shape: Sequence[int], padding: int) -> Strided:
    """Rows with ``padding`` elements after each."""
    if len(shape) < 2:
        raise LayoutError(f"A buffer of shape {list(shape)} has no rows to pad.")
    return dense([*shape[:-1], shape[-1] + padding])


def xor_rows(shape: Sequence[int], vec: int, per_phase: int, max_phase: int) -> Xor:
    """Permute each row's vectors by an XOR with its number, as :class:`.SwizzledSharedLayout`."""
    return _xor_rows(tuple(shape), vec, per_phase, max_phase)


# Every buffer of a shape is offered the same dozens of swizzles.
@lru_cache(maxsize=1 << 12, typed=True)
def _xor_rows(shape: tuple[int, ...], vec: int, per_phase: int, max_phase: int) -> Xor:
    rows, columns = _rows(shape)
    if vec * max_phase > columns:
        raise LayoutError(
            f"Rows of {columns} elements hold {columns // vec} vectors of {vec}, too few for "
            f"{max_phase} permutations."
        )
    layout = SwizzledSharedLayout(vec, per_phase, max_phase, [1, 0])
    return split_rows(of_linear(layout.to_linear([rows, columns])), shape)


def hardware_swizzle(shape: Sequence[int], width: int, element_bits: int) -> Xor:
    """Lay rows out as TMA and ``wgmma`` swizzle them, in panels of 32, 64 or 128 bytes.

    All dims but the last count rows together, 8 or more.
    """
    rows, columns = _rows(shape)
    layout = NVMMASharedLayout(width, element_bits)
    if rows < 8 or columns * element_bits < 8 * width:
        raise LayoutError(
            f"A {width}-byte swizzle needs 8 rows or more of {width} bytes or more; the buffer has "
            f"{rows} of {columns * element_bits // 8} bytes."
        )
    images = of_linear(layout.to_linear([rows, columns]))
    return Xor(split_rows(images, shape).images, layout.alignment)


def laid_out(layout: Any, shape: Sequence[int], element_bits: int) -> Xor:
    """Lay a buffer out by a shared or linear layout."""
    if isinstance(layout, LinearLayout):
        return check_placement(of_linear(layout), shape)
    if isinstance(layout, NVMMASharedLayout) and layout.element_bitwidth != element_bits:
        raise LayoutError(
            f"{layout!r} is for elements of {layout.element_bitwidth} bits, not {element_bits}."
        )
    linear = layout.to_linear([1 << (shape[0] - 1).bit_length(), *shape[1:]])
    placement = Xor(of_linear(linear).images, max(LINE_BYTES, layout.alignment))
    return check_placement(placement, shape)


def check_placement(placement: Xor, shape: Sequence[int]) -> Xor:
    """Refuse images that do not cover a shape, or that put several elements at one offset."""
    if len(placement.images) != len(shape):
        raise LayoutError(f"It has {len(shape)} dims, the swizzle {len(placement.images)}.")
    for dim, (extent, bits) in enumerate(zip(shape, placement.images, strict=True)):
        if extent > 1 << len(bits):
            raise LayoutError(
                f"It has {extent} elements along dim {dim}, the swizzle {1 << len(bits)}."
            )
    flat = [image for bits in placement.images for image in bits]
    if any(image >= 1 << len(flat) for image in flat) or rank(flat) < len(flat):
        raise LayoutError(f"It would have several elements at one offset: {flat}.")
    return placement


def of_linear(layout: LinearLayout) -> Xor:
    """Read a map from offset to element the other way round: from index bits to offsets."""
    others = [name for name in layout.in_dims if name != "offset" and layout.in_sizes[name] > 1]
    if "offset" not in layout.in_dims or others:
        raise LayoutError(f"{layout} is no layout of shared memory: it maps {layout.in_dims}.")
    plain = layout.sublayout(["offset"], layout.out_names)
    if not plain.is_bijective():
        raise LayoutError(f"{layout} puts several elements at one offset.")
    back = plain.invert()
    return Xor(tuple(tuple(v[0] for v in back.basis(name)) for name in back.in_dims))


def split_rows(placement: Xor, shape: Sequence[int]) -> Xor:
    """Share the row number's bits out among all dims but the last, the first taking the rest."""
    rows, columns = placement.images
    parts: list[tuple[int, ...]] = []
    for extent in reversed(shape[1:-1]):
        parts.insert(0, rows[: log2(extent)])
        rows = rows[log2(extent) :]
    return Xor((rows, *parts, columns), placement.alignment)


def _rows(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns; rows rounded up to a power of two."""
    if len(shape) < 2:
        raise LayoutError(f"A swizzle needs rows and columns; the shape is {list(shape)}.")
    for dim, extent in enumerate(shape[1:], 1):
        if not is_power_of_two(extent):
            raise LayoutError(
                f"Dim {dim} of shape {list(shape)} has {extent} elements; all dims but the first "
                "must be powers of two to be swizzled."
            )
    return 1 << (prod(shape[:-1]) - 1).bit_length(), shape[-1]


def bank_text(
    placement: Placement, shape: Sequence[int], element_bits: int, vector: int = 1
) -> str:
    """Draw a buffer's rows with the bank at which each vector begins.

    >>> print(bank_text(xor_rows([4, 32], 8, 2, 2), [4, 32], 16, 8))
     0  4  8 12
    16 20 24 28
     4  0 12  8
    20 16 28 24
    """
    rows, columns = np.meshgrid(
        np.arange(shape[0]), np.arange(0, shape[1], vector), indexing="ij", sparse=True
    )
    places = placement.offsets([rows, columns]) * element_bits // (8 * BANK_BYTES) % NUM_BANKS
    return "\n".join(" ".join(f"{bank:2}" for bank in row) for row in places.tolist())
