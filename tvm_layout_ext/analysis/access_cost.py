"""What one access costs: the tile that it touches, and the wavefronts or sectors of a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ..gpu.hardware import LINE_BYTES, MATRIX_ROW_BYTES, MAX_ACCESS_BYTES
from ..ir import pointers
from ..ir.evaluate import placeholder_extent
from ..layout.banks import wavefronts
from .accesses import AccessSite


@dataclass(frozen=True)
class BufferUse:
    """Part of a buffer that a block uses: extents, row with padding, element bytes, swizzle."""

    extents: tuple[int, ...]
    row: int
    size: int
    versions: int = 1
    mode: str = "none"

    @property
    def bytes(self) -> int:
        """Of all versions."""
        return self.versions * prod(self.extents[:-1]) * self.row * self.size

    @property
    def is_swizzled(self) -> bool:
        """Whether lanes meet all banks evenly."""
        return self.mode in ("auto", "xor")


@dataclass(frozen=True)
class Use:
    """What an access costs a block.

    ``cost`` and ``least`` are sectors or wavefronts of a request, ``bytes`` what it moves, ``torn``
    its sectors in 128-byte lines of which it touches only a part.
    """

    site: AccessSite
    requests: float
    cost: float
    least: float
    bytes: int
    torn: int = 0

    @property
    def total(self) -> float:
        """Sectors or wavefronts of a block."""
        return self.requests * self.cost


def strides_of(buffer: Any) -> list[int]:
    """Elements between neighbours in each dim of a whole buffer; symbolic extents count 1021."""
    return [placeholder_extent(stride) for stride in pointers.strides_of(buffer)]


def padded_strides(tile: BufferUse) -> list[int]:
    """Elements between neighbours in each dim of a tile."""
    extents = [*tile.extents[:-1], tile.row]
    return [prod(extents[axis + 1 :]) for axis in range(len(extents))]


def flat(indices: Sequence[Any], strides: Sequence[int]) -> Any:
    """Element offset of indices."""
    return sum(i * s for i, s in zip(indices, strides, strict=True))


def matrix_degree(tile: BufferUse) -> float:
    """Wavefronts in which 8 rows of a matrix are read; 1 without conflicts."""
    if tile.is_swizzled:
        return 1.0
    return float(wavefronts(np.arange(8) * tile.row * tile.size, MATRIX_ROW_BYTES, store=True))


def copy_degree(tile: BufferUse) -> float:
    """Wavefronts for 128 bytes that ``cp.async`` copies: one for each pair of line and row."""
    width = tile.extents[-1] * tile.size
    torn = LINE_BYTES / min(width, LINE_BYTES)
    return torn * (3.0 if tile.mode == "pad" else 1.0)


def lane_wavefronts(indices: Sequence[Any], strides: Sequence[int], site: AccessSite) -> float:
    """Wavefronts of a request whose lanes touch these elements, vectors where they lie together."""
    offset = flat(indices, strides) * site.size
    offset = offset - offset.min()
    width = site.vector * site.size
    if width & (width - 1) == 0 and (np.diff(offset, axis=1) == site.size).all():
        step = min(width, MAX_ACCESS_BYTES)
        starts = [offset[:, 0] + at for at in range(0, width, step)]
    else:
        step, starts = site.size, [offset[:, at] for at in range(site.vector)]
    store = site.kind == "store"
    return float(sum(wavefronts(start, step, store=store) for start in starts))
