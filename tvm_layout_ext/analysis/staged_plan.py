"""Plans of tiles that go through shared memory: how large, how in, how laid out, how out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from ..errors import ScheduleError
from ..hardware import BANK_BYTES, MAX_ACCESS_BYTES, SECTOR_BYTES, STATIC_SHARED_BYTES, WARP_SIZE
from .access import Access, Nest
from .mapping import own_order
from .one_block import moved_sectors, one_block
from .shared_tile import SharedTile, end_conflicts, place_tile
from .staging import (
    LINE_BYTES,
    WIDE_ROW_BYTES,
    Walk,
    box,
    load_walk,
    store_walk,
    widest_load,
)
from .whole_rows import Side, box_walk, patch_walks, reshaped, sectors, whole_rows

__all__ = ["Plan", "StagedLoad", "dims_of", "plan_tile"]

#: Bytes of a tile from which on 512 threads move it faster than 256: on an H200 64x64 of f32 went
#: at 0.974 of a copy and 0.964, 128x256 of i8 at 0.950 and 0.931; 64x64 of f16 at 0.98 with either.
_LARGE_TILE = 1 << 14
#: The same for 1,024 threads, of elements of 2 bytes: on an H200 (driver 580.159.04) 128x128 of f16
#: went at 4.12 TB/s so, and at 4.08 with 512. Of f32 and i8 no tile is faster with more than 512.
_LARGEST_TILE, _LARGEST_OF = 1 << 15, 2
#: Bytes of the elements whose tiles are written in wide rows.
_WIDE_ELEMENTS = (2, 4)
#: Threads of a block that holds a whole tensor.
_MOST_THREADS = 512


@dataclass(frozen=True)
class StagedLoad:
    """A staged load.

    Attributes
    ----------
    access : Access
        The load, in the loops of the merged nest.
    walk : Walk
        How threads bring the tile.
    place : SharedTile
        Where they put it.
    put : int, optional
        Elements that they put down at once, where that is less than they bring at once.
    """

    access: Access
    walk: Walk
    place: SharedTile
    put: int | None = None

    @property
    def dims(self) -> tuple[int, ...]:
        """Dims that it depends on, in the order of the shared rows, the innermost last."""
        return self.place.order


@dataclass(frozen=True)
class Plan:
    """How a block of threads moves a tile.

    Attributes
    ----------
    tile : list of int
        Elements along each dim, in the order of the store.
    tiles : list of StagedLoad
        Its ways in.
    out : Walk
        Its way out.
    threads : int
        A power of two.
    """

    tile: list[int]
    tiles: list[StagedLoad]
    out: Walk
    threads: int

    @property
    def shared_bytes(self) -> int:
        """Bytes of all tiles in shared memory."""
        return sum(self._bytes(one) for one in self.tiles)

    def _bytes(self, one: StagedLoad) -> int:
        return one.place.elements(self.tile) * one.access.bytes

    def __str__(self) -> str:
        group = self.out.unit[self.tiles[0].dims[-1]]
        vector = self.out.unit[-1]
        turned = f", {group} by {vector} turned in registers" if group > 1 else ""
        rows = any(one.place.images is None for one in self.tiles)
        laid_out = "padded" if rows else "swizzled"
        if any(one.place.modes is not None for one in self.tiles):
            laid_out = f"one block, {self.tiles[0].walk.lanes} lanes in and {self.out.lanes} out"
        return (
            f"tile {'x'.join(map(str, self.tile))}, {self.threads} threads, "
            f"{laid_out}, stores of {vector} elements{turned}"
        )


def plan_tile(nest: Nest, names: set[str], most: int | None, vector_bytes: int) -> Plan:
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
    """
    staged = _one_each(nest, names)
    if (together := _together(nest, staged, most, vector_bytes)) is not None:
        return together
    extents = [loop.size for loop in nest.loops]
    accesses = [_store_of(nest), *staged]
    orders = [dims_of(access, nest) for access in accesses]
    tile = box(extents, orders, [access.bytes for access in accesses])
    most_of_all = most or _MOST_THREADS
    most = most or _usual_threads(prod(tile) * accesses[0].bytes, accesses[0].bytes)
    plan = _boxes(nest, staged, tile, most, vector_bytes)
    known = [extent for extent in extents if extent is not None]
    if len(staged) > 1 or len(known) < len(extents) or len(orders[0]) < len(extents):
        return plan
    sides = _sides(nest, plan)
    rows = [known[side.order[-1]] * side.size for side in sides]
    if not any(row % SECTOR_BYTES for row in rows) or not all(s.is_dense(known) for s in sides):
        return plan
    # Where only one side is ragged, blocks of whole rows may do as well.
    held = _held(nest, plan, known, most_of_all) if all(r % SECTOR_BYTES for r in rows) else None
    if held is not None:
        return held
    plan = _ragged(nest, plan, known, most, vector_bytes)
    if _moves_each_once(nest, plan, known):
        return plan
    return _held(nest, plan, known, most_of_all) or plan


def _together(
    nest: Nest, staged: Sequence[Access], most: int | None, vector_bytes: int
) -> Plan | None:
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


def _ragged(nest: Nest, plan: Plan, extents: list[int], most: int, vector_bytes: int) -> Plan:
    """Plan for rows that start anywhere: whole ones, or the box whose cuts cost least.

    Of staged loads in several orders each would want its own rows whole; those stay with boxes.
    """
    boxes = [
        _boxes(nest, [plan.tiles[0].access], tile, most, vector_bytes)
        for tile in reshaped(plan.tile, plan.tiles[0].dims[-1], extents)
    ]

    def cost(one: Plan) -> int:
        return sum(sectors(s, extents, one.tile, whole=False) for s in _sides(nest, one))

    best = min([plan, *boxes], key=cost)
    return _whole_rows(nest, best, extents, most, vector_bytes) or best


def _boxes(
    nest: Nest, staged: Sequence[Access], tile: list[int], most: int, vector_bytes: int
) -> Plan:
    """Plan the ways through a tile that is a power of two along each dim."""
    store = _store_of(nest)
    sizes = [loop.size for loop in nest.loops]
    ragged = any(n is None or n % part for n, part in zip(sizes, tile, strict=True))
    vector = min(_store_vector(nest, staged, vector_bytes), tile[-1])
    full = vector * store.bytes == MAX_ACCESS_BYTES and tile[-1] * store.bytes >= WIDE_ROW_BYTES
    if full and store.bytes in _WIDE_ELEMENTS and not ragged:
        wide = _box(nest, staged, tile, most, vector_bytes, WIDE_ROW_BYTES)
        if wide is not None:
            return wide
    plan = _box(nest, staged, tile, most, vector_bytes, LINE_BYTES, ragged=ragged)
    assert plan is not None
    return plan


def _box(
    nest: Nest,
    staged: Sequence[Access],
    tile: list[int],
    most: int,
    vector_bytes: int,
    row_bytes: int,
    *,
    ragged: bool = False,
) -> Plan | None:
    """Plan a tile of which a warp stores so many bytes of a row.

    In rows of more than a line a thread puts down part of the vector that it brings, as reading
    them back asks for; None if some would still meet a bank twice.
    """
    store = _store_of(nest)
    orders = [dims_of(access, nest) for access in staged]
    vector = min(_store_vector(nest, staged, vector_bytes), tile[-1])
    sides = list(zip(staged, orders, strict=True))
    vectors = [_load_vector(access, order[-1], nest, tile, vector_bytes) for access, order in sides]
    puts = [
        _put(access, order[-1], tile, width, (vector, store.bytes), row_bytes)
        for (access, order), width in zip(sides, vectors, strict=True)
    ]
    is_wide = row_bytes > LINE_BYTES
    vectors = vectors if is_wide else puts
    group = min(_group(staged[0]), tile[orders[0][-1]])
    shares = [prod(tile) // (vector * group)]
    shares += [prod(tile[d] for d in o) // v for o, v in zip(orders, vectors, strict=True)]
    threads = _threads(shares, most)
    out = store_walk(
        tile,
        orders[0][-1],
        vector=vector,
        group=group,
        size=store.bytes,
        threads=threads,
        row_bytes=row_bytes,
    )
    tiles = []
    for (access, order), width, put in zip(sides, vectors, puts, strict=True):
        into, part = load_walk(tile, order, width, threads), put if put < width else None
        place, left = place_tile(tile, order, into, out, access.bytes, ragged=ragged, put=part)
        if is_wide and (left or place.images is None):
            return None
        tiles.append(StagedLoad(access, into, place, part))
    return Plan(tile, tiles, out, threads)


def _sides(nest: Nest, plan: Plan) -> list[Side]:
    """The load and the store of a plan with one staged load."""
    load, store = plan.tiles[0], _store_of(nest)
    across = tuple(dims_of(store, nest))
    read = WARP_SIZE * load.walk.unit[load.dims[-1]]
    first, lanes = plan.out.pieces[0] if plan.out.pieces else (across[-1], 1)
    written = plan.out.unit[-1] * (lanes if first == across[-1] else 1)
    return [
        Side(load.dims, load.access.steps, load.access.bytes, read),
        Side(across, store.steps, store.bytes, written),
    ]


def _whole_rows(
    nest: Nest, boxes: Plan, extents: list[int], most: int, vector_bytes: int
) -> Plan | None:
    """Plan tiles of whole rows that meet every bank once; None if none moves fewer sectors."""
    load, store = boxes.tiles[0].access, _store_of(nest)
    order, sides = list(boxes.tiles[0].dims), _sides(nest, boxes)
    for tile, (_, stored_whole) in whole_rows(boxes.tile, extents, sides):
        stores = _dividing(_store_vector(nest, [load], vector_bytes), tile[-1])
        loads = _dividing(load.vector([nest.loops[order[-1]]], vector_bytes), tile[order[-1]])
        for out in _ways_out(tile, order[-1], stores, store.bytes, whole=stored_whole):
            for vector in _halves(loads):
                into = box_walk(tile, order, vector)
                place, left = place_tile(tile, order, into, out, load.bytes)
                if left == 0 and not end_conflicts(out, tile, place, load.bytes, extents):
                    threads = _threads([into.units, out.units], most)
                    slowest = out.pieces[-1][0]
                    if tile[slowest] < extents[slowest]:
                        # A rest would reach into the next tile, and TVM would load it, too.
                        threads = min(threads, out.units & -out.units)
                    return Plan(tile, [StagedLoad(load, into, place)], out, threads)
    return None


def _held(nest: Nest, plan: Plan, extents: list[int], most: int) -> Plan | None:
    """Plan a tensor that one block can hold as one tile; None if none is found."""
    load, order = plan.tiles[0].access, plan.tiles[0].dims
    found = one_block(tuple(extents), order, load.bytes, _store_of(nest).bytes, most)
    if found is None:
        return None
    return Plan(extents, [StagedLoad(load, found.into, found.place)], found.out, found.threads)


def _moves_each_once(nest: Nest, plan: Plan, extents: list[int]) -> bool:
    """Whether a plan of a tensor that one block could hold moves no sector twice."""
    load, store = plan.tiles[0], _store_of(nest)
    if prod(extents) * load.access.bytes > STATIC_SHARED_BYTES:
        return False
    ways = [
        (load.walk, load.dims, load.access.bytes),
        (plan.out, range(len(extents)), store.bytes),
    ]
    return all(
        moved_sectors(
            replace(walk, lanes=min(WARP_SIZE, plan.threads)), plan.tile, extents, order, size
        )
        == -(-prod(extents) * size // SECTOR_BYTES)
        for walk, order, size in ways
    )


def _ways_out(
    tile: Sequence[int], load_inner: int, most: int, size: int, *, whole: bool
) -> Iterator[Walk]:
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


def _threads(shares: Sequence[int], most: int) -> int:
    """Threads that share out the tile without a rest, on its way in as on its way out.

    TVM allots shared memory for the rest, too, although nothing is ever there.

    Raises
    ------
    ScheduleError
        If a single thread would take more at once than the tile has.
    """
    if min(shares) == 0:
        raise ScheduleError("A thread would take more elements at once than the tile has")
    return 1 << (min(most, *shares).bit_length() - 1)


def _group(access: Access) -> int:
    """Elements that fill a bank."""
    return max(1, BANK_BYTES // access.bytes)


def _load_vector(
    access: Access, inner: int, nest: Nest, tile: Sequence[int], vector_bytes: int
) -> int:
    """Elements that a thread can load at once."""
    if access.steps[inner] != 1:
        return 1
    return min(access.vector([nest.loops[inner]], vector_bytes), tile[inner])


def _put(
    access: Access,
    inner: int,
    tile: Sequence[int],
    vector: int,
    store: tuple[int, int],
    row_bytes: int,
) -> int:
    """Elements of a loaded vector that a thread puts down at once."""
    group = min(_group(access), tile[inner])
    width, size = store
    return widest_load(
        tile,
        vector,
        group,
        store=width,
        store_size=size,
        size=access.bytes,
        row_bytes=row_bytes,
    )


def _store_of(nest: Nest) -> Access:
    return next(access for access in nest.accesses if access.kind == "store")


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


def dims_of(access: Access, nest: Nest) -> list[int]:
    """Dims that an access depends on, in its own order."""
    order = own_order(access, nest, nest.loops)
    where = [next(i for i, own in enumerate(nest.loops) if own is loop) for loop in order]
    return [i for i in where if access.steps[i] != 0]


def _store_vector(nest: Nest, staged: Sequence[Access], vector_bytes: int) -> int:
    """Elements along the store's innermost dim that all accesses but the staged can take."""
    last = nest.loops[-1]
    widths = [
        access.vector([last], vector_bytes)
        for access in nest.accesses
        if access.steps[-1] == 1 and all(access.name != other.name for other in staged)
    ]
    return min(widths, default=1)
