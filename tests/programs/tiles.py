"""Kernels whose blocks read or write a tile in shared memory, and whose copies are left to do."""

from __future__ import annotations

from typing import Any

from tests.programs.mapped import computed


def transposed(dtype: str, rows: Any, columns: Any) -> tuple[Any, Any]:
    """A transpose through tiles of 32x32 read by columns; the schedule and the tile's block."""
    sch = computed((rows, columns), lambda a, i, j: a[j, i], dtype, out=(columns, rows))
    block = sch.get_sblock("B")
    i, j = sch.get_loops(block)
    (io, ii), (jo, ji) = (sch.split(loop, [None, 32]) for loop in (i, j))
    sch.reorder(io, jo, ii, ji)
    sch.bind(io, "blockIdx.y")
    sch.bind(jo, "blockIdx.x")
    sch.bind(sch.split(ii, [None, 4])[1], "threadIdx.y")
    sch.bind(ji, "threadIdx.x")
    tile = sch.cache_read(block, 0, "shared")
    sch.compute_at(tile, jo)
    return sch, tile


def upside_down(dtype: str, columns: int = 64, cached: str = "read") -> tuple[Any, Any]:
    """64 rows in reverse, 16 a block, through a tile; the schedule and the tile's block.

    The tile holds what a block reads, or, with ``cached="write"``, what it writes.
    """
    sch = computed((64, columns), lambda a, i, j: a[63 - i, j], dtype)
    block = sch.get_sblock("B")
    tile = sch.cache_write(block, 0, "shared") if cached == "write" else None
    i, j = sch.get_loops(block)
    outer, inner = sch.split(i, [None, 16])
    sch.bind(outer, "blockIdx.x")
    sch.bind(inner, "threadIdx.y")
    sch.bind(sch.split(j, [None, 32])[1], "threadIdx.x")
    if tile is None:
        tile = sch.cache_read(block, 0, "shared")
        sch.compute_at(tile, outer)
    else:
        sch.reverse_compute_at(tile, outer)
    return sch, tile
