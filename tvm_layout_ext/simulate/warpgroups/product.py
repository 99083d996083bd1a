"""``wgmma``: operands described in shared memory, sums in the registers of four warps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from ...errors import SimulationError
from ...gpu.warpgroups import WARPGROUP_ROWS, WARPGROUP_THREADS
from .tensor_map import swizzled

#: Bits of a descriptor: address, both distances in units of 16 bytes, the swizzle.
_FIELD, _UNIT = 0x3FFF, 16
#: Bytes of a row by the swizzle.
_ROW_BYTES = {1: 128, 2: 64}


@dataclass(frozen=True)
class DescribedTile:
    """A described tile of an operand: ``rows`` along M or N, ``depth`` elements along K."""

    address: int
    leading: int
    stride: int
    rows: int
    depth: int
    k_major: bool
    row_bytes: int = 128

    @classmethod
    def read(cls, descriptor: int, rows: int, depth: int, k_major: bool) -> DescribedTile:
        """Take a descriptor apart.

        Raises
        ------
        SimulationError
            If its swizzle is none of 128 or 64 bytes, which is what is modelled.
        """
        row_bytes = _ROW_BYTES.get(descriptor >> 62)
        if row_bytes is None or (row_bytes < 128 and not k_major):
            raise SimulationError(
                f"A wgmma descriptor has swizzle {descriptor >> 62}; 1, of 128 bytes, and along K "
                "2, of 64 bytes, are modelled."
            )
        at, leading, stride = ((descriptor >> bit & _FIELD) * _UNIT for bit in (0, 16, 32))
        return cls(at, leading, stride, rows, depth, k_major, row_bytes)

    def addresses(self, itemsize: int) -> Any:
        """Byte addresses of the elements, ``[rows, depth]``."""
        row, k = np.meshgrid(np.arange(self.rows), np.arange(self.depth), indexing="ij")
        if self.k_major:
            plain = row // 8 * self.stride + row % 8 * self.row_bytes + k * itemsize
        else:
            wide = 128 // itemsize
            plain = row // wide * self.leading + row % wide * itemsize
            plain = plain + k // 8 * self.stride + k % 8 * 128
        return swizzled(self.address + plain, self.row_bytes)


@dataclass(frozen=True)
class TileBytes:
    """Addresses of a tile's elements ``[rows, depth]``, and ``cells``, the bytes of all of them.

    They lie from ``low`` to before ``high``.
    """

    addresses: Any
    cells: Any
    low: int
    high: int


@lru_cache(maxsize=256)
def tile_bytes(tile: DescribedTile, itemsize: int) -> TileBytes:
    """A tile's bytes in shared memory; blocks have their tiles at few places."""
    found = tile.addresses(itemsize)
    cells = (found.ravel() + np.arange(itemsize)[:, None]).ravel()
    return TileBytes(found, cells, int(found.min()), int(found.max()) + itemsize)


def spread(tile: Any) -> Any:
    """Sums of 64 x n as the threads hold them, ``[registers, threads]``."""
    rows, columns = _places(tile.shape[1])
    return tile[rows, columns]


def gathered(registers: Any) -> Any:
    """Sums of 64 x n of what the threads hold."""
    rows, columns = _places(2 * len(registers))
    tile = np.empty((WARPGROUP_ROWS, 2 * len(registers)), registers.dtype)
    tile[rows, columns] = registers
    return tile


@cache
def _places(columns: int) -> tuple[Any, Any]:
    """Row and column of each register of each thread (PTX ISA, "Register Fragments", D)."""
    register = np.arange(columns // 2)[:, None]
    thread = np.arange(WARPGROUP_THREADS)
    row = thread // 32 * 16 + register // 2 % 2 * 8 + thread % 32 // 4
    column = register // 4 * 8 + thread % 4 * 2 + register % 2
    return row, column
