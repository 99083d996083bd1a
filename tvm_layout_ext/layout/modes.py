"""Where elements of a buffer lie by strides of their indices' digits: for rows of odd lengths.

An XOR needs powers of two, and one stride for each dim makes every row the same. Between them is
what CuTe calls a hierarchical layout (https://docs.nvidia.com/cutlass, "Layouts"): a dim falls into
modes, each an extent and a stride. ``25:208,2:5824`` are 50 rows, the second half of them set off
from the first by 3 rows that nobody uses; ``2:1,50:200`` are rows in pairs, element by element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ..errors import LayoutError
from ..gpu.hardware import LINE_BYTES

__all__ = ["Modes", "modes_of"]


@dataclass(frozen=True)
class Modes:
    """An element lies at the sum of its indices' digits, each times a stride.

    Attributes
    ----------
    dims : tuple of tuple of (int, int)
        For each dim its modes, extent and stride in elements, the fastest first.
    alignment : int
        Bytes to which the buffer must be aligned.

    Examples
    --------
    Four rows of three elements, in pairs that lie eight apart:

    >>> pairs = modes_of("2:1,2:8;3:2")
    >>> pairs.offsets(np.indices((4, 3)))
    array([[ 0,  2,  4],
           [ 1,  3,  5],
           [ 8, 10, 12],
           [ 9, 11, 13]])
    >>> pairs.elements([4, 3]), str(pairs)
    (14, '2:1,2:8;3:2')
    """

    dims: tuple[tuple[tuple[int, int], ...], ...]
    alignment: int = LINE_BYTES

    def __str__(self) -> str:
        return ";".join(",".join(f"{n}:{stride}" for n, stride in modes) for modes in self.dims)

    def offsets(self, indices: Sequence[Any]) -> Any:
        """Offset of each element; indices are arrays, one for each dim."""
        total: Any = np.int64(0)
        for index, modes in zip(indices, self.dims, strict=True):
            rest = np.asarray(index, np.int64)
            for extent, stride in modes:
                total = total + rest % extent * stride
                rest = rest // extent
        return total

    def elements(self, shape: Sequence[int]) -> int:
        """Elements to allocate: up to the last offset in use."""
        lines = np.zeros(len(shape), np.int64)
        for dim, extent in enumerate(shape):
            alone = [np.arange(extent) if other == dim else 0 for other in range(len(shape))]
            lines[dim] = np.max(self.offsets(alone))
        return int(lines.sum()) + 1

    def whole(self) -> int:
        """Find how many aligned neighbours of the last dim surely stay together: no vector does."""
        return 1

    def check(self, shape: Sequence[int]) -> None:
        """Refuse a shape that has more dims or elements, or two of them at one offset.

        Raises
        ------
        LayoutError
            With the numbers.
        """
        if len(shape) != len(self.dims):
            raise LayoutError(f"It has {len(shape)} dims, the modes are of {len(self.dims)}.")
        for dim, (extent, modes) in enumerate(zip(shape, self.dims, strict=True)):
            reach = prod(n for n, _ in modes)
            if extent > reach:
                raise LayoutError(f"It has {extent} elements along dim {dim}, the modes {reach}.")
        places = self.offsets(np.indices(shape, sparse=True)).reshape(-1)
        if len(np.unique(places)) < len(places):
            raise LayoutError(f"It would have several elements at one offset: {self}.")


def modes_of(text: str) -> Modes:
    """Read what ``str`` of :class:`Modes` writes.

    Raises
    ------
    LayoutError
        If it is not of this form, or an extent or a stride is not positive.

    Examples
    --------
    >>> modes_of("2:1,50:200;100:2").dims
    (((2, 1), (50, 200)), ((100, 2),))
    """
    try:
        pairs = [[part.split(":") for part in dim.split(",")] for dim in text.split(";")]
        dims = tuple(tuple((int(n), int(stride)) for n, stride in modes) for modes in pairs)
        if min(number for modes in dims for pair in modes for number in pair) <= 0:
            raise ValueError(text)
    except ValueError:
        raise LayoutError(
            f"The layout is {text!r}; it must look like '2:1,50:200;100:2', an extent and a "
            "stride for each mode of each dim."
        ) from None
    return Modes(dims)
