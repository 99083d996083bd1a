"""Lay partial sums out in shared memory so that neither writing nor adding them up meets a bank.

Column sums leave one partial sum for each column and deal of rows. A lane writes those of its
vector of columns one by one; then a warp reads along the deals of a column, or each lane reads a
column of its own. How far columns and vectors of columns have to lie apart for that depends on the
bytes of a sum: lanes of 8 bytes go half a warp at a time, and those of less than 4 share words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...gpu.banks import request_wavefronts
from ...gpu.hardware import BANK_BYTES, LINE_BYTES, WARP_SIZE


@dataclass(frozen=True)
class SumsTile:
    """Partial sums of one block of threads.

    Attributes
    ----------
    columns, deals : int
        Of the tile.
    near : int
        Vectors of columns that neighbouring lanes write.
    vector : int
        Columns of a vector.
    bytes : int
        Of a sum.
    by_column : bool
        Whether a lane adds up a column; else a warp does, along its deals.
    """

    columns: int
    deals: int
    near: int
    vector: int
    bytes: int
    by_column: bool

    def conflicts(self, column: int, vector: int) -> int:
        """Count wavefronts too many where columns and vectors lie so many sums apart."""
        threads = -(-self.columns // self.vector) * self.deals
        flat = np.arange(-(-threads // WARP_SIZE) * WARP_SIZE).reshape(-1, WARP_SIZE)
        group = flat // (self.near * self.deals) * self.near + flat % self.near
        deal = flat // self.near % self.deals
        parts = np.arange(min(self.vector, BANK_BYTES))[:, None, None]
        written = group * vector + parts * column + deal
        found = self._too_many(written, joins=False)
        if self.by_column:
            own = np.arange(max(WARP_SIZE, self.columns)).reshape(-1, WARP_SIZE)
            first = own // self.vector * vector + own % self.vector * column
            deals = np.arange(min(self.deals, BANK_BYTES))[:, None, None]
            found += self._too_many(first + deals, joins=True)
        return found

    def _too_many(self, places: Any, *, joins: bool) -> int:
        rows = places.reshape(-1, WARP_SIZE) * self.bytes
        every = np.ones(rows.shape, bool)
        waves, least = request_wavefronts(rows, every, self.bytes, joins=joins)
        return int((waves - least).sum())


def lay_out(sch: Any, sums: Any, rank: int, tile: SumsTile) -> None:
    """Pad the columns of partial sums, and where that is not enough, vectors of columns, too.

    Two columns of a 16-byte vector of 8-byte sums are two banks apart, whatever lies between
    columns, so half a warp of such lanes meets each bank twice. With another gap after each vector
    it meets each once.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
    sums : SBlockRV
        The block that writes the partial sums, their last dims columns and deals.
    rank : int
        Dims of the result, of which the last are the columns.
    tile : SumsTile
    """
    factor, offset = _skew(tile.near, tile.vector)
    usual = tile.deals + (offset - tile.deals) % factor
    if not tile.conflicts(usual, usual * tile.vector):
        sch.storage_align(sums, 0, rank - 1, factor, offset)
        return
    period = LINE_BYTES // tile.bytes
    _, column, vector = min(_strides(tile, period), key=lambda one: one[0])
    if vector == column * tile.vector:
        sch.storage_align(sums, 0, rank - 1, period, column % period)
        return

    def index_map(*at: Any) -> list[Any]:
        *outer, inner, deal = at
        return [*outer, inner // tile.vector, inner % tile.vector, deal]

    sch.transform_layout(sums, ("write", 0), index_map)
    sch.storage_align(sums, 0, rank, period, column % period)
    sch.storage_align(sums, 0, rank - 1, period, vector % period)


def _strides(tile: SumsTile, period: int) -> Iterator[tuple[int, int, int]]:
    """Conflicts of pairs of strides, up to the first without any; one stride alone comes first."""
    for column in range(tile.deals, tile.deals + period):
        found = tile.conflicts(column, column * tile.vector)
        yield found, column, column * tile.vector
        if not found:
            return
    step = max(1, BANK_BYTES // tile.bytes)
    for column in range(tile.deals, tile.deals + period, step):
        for gap in range(0, period, step):
            vector = column * tile.vector + gap
            found = tile.conflicts(column, vector)
            yield found, column, vector
            if not found:
                return


def _skew(near: int, vector: int) -> tuple[int, int]:
    """Alignment of the columns of 4-byte sums, so that a warp's writes meet every bank once.

    A warp goes along ``near`` vectors of columns, which lie ``vector`` rows apart, and then along
    the row: vectors of columns should be as many banks apart as lanes go along the row.
    """
    apart = max(1, WARP_SIZE // (near * vector))
    return 2 * apart, apart
