"""Plans of tiles that go through shared memory: how large, how in, how laid out, how out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from ...analysis.nest import Access, Nest
from ...errors import ScheduleError
from ...gpu.hardware import SECTOR_BYTES, STATIC_SHARED_BYTES, WARP_SIZE
from .boxes import (
    StagedLoad,
    TilePlan,
    dims_of,
    plan_boxes,
    shared_out,
    store_of,
    store_vector,
)
from .shared_tile import choose_shared_layout
from .walks import TileWalk, box
from .whole_rows import TileSide, box_walk, patch_walks, whole_rows

#: Bytes of a tile from which on 512 threads move it faster than 256: on an H200 64x64 of f32 went
#: at 0.974 of a copy and 0.964, 128x256 of i8 at 0.950 and 0.931; 64x64 of f16 at 0.98 with either.
_LARGE_TILE = 1 << 14
#: The same for 1,024 threads, of elements of 2 bytes: on an H200 (driver 580.159.04) 128x128 of f16
#: went at 4.12 TB/s so, and at 4.08 with 512; f32 and i8 stay at 512.
_LARGEST_TILE, _LARGEST_OF = 1 << 15, 2
#: Threads of any tile of 2-byte elements that are loaded one by one: each has more on their way.
#: An H200 permuted 100x99x98x33 of f16 by (1, 3, 0, 2) in 45.1 us so, in 51.4 us with 512
#: (``benchmarks/results/h200_thread_maps.json``).
_NARROW_THREADS = 256


def plan_tile(
    nest: Nest,
    names: set[str],
    most: int | None,
    vector_bytes: int,
) -> TilePlan:
    """Plan how a block of threads moves a tile.

    Parameters
    ----------
    nest : Nest
        The block, loops that every access walks as one merged.
    names : set of str
        Buffers whose loads go through shared memory.
    most : int, optional
        Most threads of a block; by default 512 for a large tile, 1,024 for a larger one of 2-byte
        elements, and 256 for a small one.
    vector_bytes : int
        Bytes of the widest access of a thread.

    Raises
    ------
    ScheduleError
        If a block reads a buffer in two orders.
    """
    staged = _one_each(nest, names)
    if (together := _together(nest, staged, most, vector_bytes)) is not None:
        return together
    extents = [loop.size for loop in nest.loops]
    accesses = [store_of(nest), *staged]
    orders = [dims_of(access, nest) for access in accesses]
    tile = box(extents, orders, [access.bytes for access in accesses])
    run = [nest.loops[orders[1][-1]]]
    is_narrow = staged[0].bytes == _LARGEST_OF and staged[0].vector(run, vector_bytes) == 1
    if most is None and is_narrow:
        most = _NARROW_THREADS
    most = most or _usual_threads(prod(tile) * accesses[0].bytes, accesses[0].bytes)
    plan = plan_boxes(nest, staged, tile, most, vector_bytes)
    known = [extent for extent in extents if extent is not None]
    if len(staged) > 1 or len(known) < len(extents) or len(orders[0]) < len(extents):
        return plan
    sides = _sides(nest, plan)
    rows = [known[side.order[-1]] * side.size for side in sides]
    if not any(row % SECTOR_BYTES for row in rows) or not all(s.is_dense(known) for s in sides):
        return plan
    # Of loads in several orders each would want its own rows whole.
    return _whole_rows(nest, plan, known, most, vector_bytes) or plan


def _together(
    nest: Nest, staged: Sequence[Access], most: int | None, vector_bytes: int
) -> TilePlan | None:
    """Plan loads of one order as one of them, each with a tile of its own, if there is room."""
    first = staged[0]
    if len(staged) < 2 or any(
        one.bytes != first.bytes or not one.moves_alike(first) for one in staged
    ):
        return None
    run = [nest.loops[dims_of(first, nest)[-1]]]
    narrowest = min(staged, key=lambda one: one.vector(run, vector_bytes))
    plan = plan_tile(nest, {narrowest.name}, most, vector_bytes)
    plan = replace(plan, tiles=[replace(plan.tiles[0], access=one) for one in staged])
    return plan if plan.shared_bytes <= STATIC_SHARED_BYTES else None


def _usual_threads(tile_bytes: int, size: int) -> int:
    if size == _LARGEST_OF and tile_bytes >= _LARGEST_TILE:
        return 1024
    return 512 if tile_bytes >= _LARGE_TILE else 256


def _sides(nest: Nest, plan: TilePlan) -> list[TileSide]:
    """The load and the store of a plan with one staged load."""
    load, store = plan.tiles[0], store_of(nest)
    across = tuple(dims_of(store, nest))
    read = WARP_SIZE * load.walk.unit[load.dims[-1]]
    first, lanes = plan.out.pieces[0] if plan.out.pieces else (across[-1], 1)
    written = plan.out.unit[-1] * (lanes if first == across[-1] else 1)
    return [
        TileSide(load.dims, load.access.steps, load.access.bytes, read),
        TileSide(across, store.steps, store.bytes, written),
    ]


def _whole_rows(
    nest: Nest, boxes: TilePlan, extents: list[int], most: int, vector_bytes: int
) -> TilePlan | None:
    """Plan tiles of whole rows that meet every bank once; None if none moves fewer sectors."""
    load, store = boxes.tiles[0].access, store_of(nest)
    order, sides = list(boxes.tiles[0].dims), _sides(nest, boxes)
    for tile, (_, stored_whole) in whole_rows(boxes.tile, extents, sides):
        stores = _dividing(store_vector(nest, [load], vector_bytes), tile[-1])
        loads = _dividing(load.vector([nest.loops[order[-1]]], vector_bytes), tile[order[-1]])
        for out in _ways_out(tile, order[-1], stores, store.bytes, whole=stored_whole):
            for vector in _halves(loads):
                into = box_walk(tile, order, vector)
                place, left = choose_shared_layout(tuple(tile), tuple(order), into, out, load.bytes)
                if left == 0:
                    threads = shared_out([into.units, out.units], most)
                    slowest = out.pieces[-1][0]
                    if tile[slowest] < extents[slowest]:
                        # A rest would reach into the next tile, and TVM would load it, too.
                        threads = min(threads, out.units & -out.units)
                    return TilePlan(tile, [StagedLoad(load, into, place)], out, threads)
    return None


def _ways_out(
    tile: Sequence[int], load_inner: int, most: int, size: int, *, whole: bool
) -> Iterator[TileWalk]:
    """List the ways to write whole rows, the widest stores first."""
    for vector in _halves(most):
        if not whole:
            yield from patch_walks(tile, load_inner, vector, size)
        yield box_walk(tile, range(len(tile)), vector)


def _halves(most: int) -> list[int]:
    """The powers of two up to one, largest first."""
    return [most >> shift for shift in range(most.bit_length())]


def _dividing(width: int, extent: int) -> int:
    """Largest power of two up to ``width`` that divides ``extent``."""
    return min(width, extent & -extent)


def _one_each(nest: Nest, names: set[str]) -> list[Access]:
    found: dict[str, Access] = {}
    for access in nest.accesses:
        if access.kind == "store" or access.name not in names:
            continue
        if not access.moves_alike(found.setdefault(access.name, access)):
            raise ScheduleError(
                f"Block {nest.block.name_hint} reads {access.name} in two orders at once, and TVM "
                "puts one tile between a block and a buffer; pass it as two buffers"
            )
    return list(found.values())
