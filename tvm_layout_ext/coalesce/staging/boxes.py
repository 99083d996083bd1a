"""Plans of tiles that are a power of two along each dim: boxes that go through shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ...analysis.nest import Access, Nest
from ...gpu.hardware import BANK_BYTES, LINE_BYTES, MAX_ACCESS_BYTES
from ..mapping import own_order
from .shared_tile import SharedTileLayout, choose_shared_layout
from .walks import WIDE_ROW_BYTES, TileWalk, load_walk, store_walk, widest_load

#: Bytes of the elements whose tiles are written in wide rows.
_WIDE_ELEMENTS = (2, 4)


@dataclass(frozen=True)
class StagedLoad:
    """A staged load."""

    access: Access  #: The load, in the loops of the merged nest
    walk: TileWalk  #: How threads bring the tile
    place: SharedTileLayout  #: Where they put it
    #: Elements that they put down at once, where that is less than they bring at once.
    put: int | None = None

    @property
    def dims(self) -> tuple[int, ...]:
        """Dims that it depends on, in the order of the shared rows, the innermost last."""
        return self.place.order


@dataclass(frozen=True)
class TilePlan:
    """How a block of threads moves a tile."""

    tile: list[int]  #: Elements along each dim, in the order of the store
    tiles: list[StagedLoad]  #: Its ways in
    out: TileWalk  #: Its way out
    threads: int  #: A power of two

    @property
    def shared_bytes(self) -> int:
        """Bytes of all tiles in shared memory."""
        return sum(self._bytes(one) for one in self.tiles)

    def _bytes(self, one: StagedLoad) -> int:
        return one.place.elements(self.tile) * one.access.bytes

    def __str__(self) -> str:
        group = max(self.out.unit[:-1], default=1)
        vector = self.out.unit[-1]
        turned = f", {group} by {vector} turned in registers" if group > 1 else ""
        rows = any(one.place.images is None for one in self.tiles)
        laid_out = "padded" if rows else "swizzled"
        return (
            f"tile {'x'.join(map(str, self.tile))}, {self.threads} threads, "
            f"{laid_out}, stores of {vector} elements{turned}"
        )


def plan_boxes(
    nest: Nest, staged: Sequence[Access], tile: list[int], most: int, vector_bytes: int
) -> TilePlan:
    """Plan the ways through a tile that is a power of two along each dim."""
    store = store_of(nest)
    sizes = [loop.size for loop in nest.loops]
    whole = all(n is not None and n % tile[d] == 0 for d, n in enumerate(sizes))
    vector = min(store_vector(nest, staged, vector_bytes), tile[-1])
    full = vector * store.bytes == MAX_ACCESS_BYTES and tile[-1] * store.bytes >= WIDE_ROW_BYTES
    if full and store.bytes in _WIDE_ELEMENTS and whole:
        wide = _box(nest, staged, tile, most, vector_bytes, WIDE_ROW_BYTES)
        if wide is not None:
            return wide
    plan = _box(nest, staged, tile, most, vector_bytes, LINE_BYTES)
    assert plan is not None
    return plan


def _box(
    nest: Nest,
    staged: Sequence[Access],
    tile: list[int],
    most: int,
    vector_bytes: int,
    row_bytes: int,
) -> TilePlan | None:
    """Plan a tile of which a warp stores so many bytes of a row.

    In rows of more than a line a thread puts down part of the vector that it brings, as reading
    them back asks for; None if some would still meet a bank twice. The way out is chosen for the
    first load. Where another one, of another order, would then be read from a bank twice, a thread
    puts it down in narrower parts.
    """
    store = store_of(nest)
    orders = [dims_of(access, nest) for access in staged]
    vector = _up_to(nest.loops[-1].size, min(store_vector(nest, staged, vector_bytes), tile[-1]))
    sides = list(zip(staged, orders, strict=True))
    vectors = [_load_vector(access, order[-1], nest, tile, vector_bytes) for access, order in sides]
    puts = [
        _put(access, order[-1], tile, width, (vector, store.bytes), row_bytes)
        for (access, order), width in zip(sides, vectors, strict=True)
    ]
    is_wide = row_bytes > LINE_BYTES
    vectors = vectors if is_wide else puts
    along = orders[0][-1]
    group = min(_group(staged[0]), tile[along]) if along != len(tile) - 1 else 1
    shares = [prod(tile) // (vector * group)]
    shares += [prod(tile[d] for d in o) // v for o, v in zip(orders, vectors, strict=True)]
    threads = shared_out(shares, most)
    out = store_walk(
        tile,
        along,
        vector=vector,
        group=group,
        size=store.bytes,
        threads=threads,
        row_bytes=row_bytes,
    )
    tiles = []
    for (access, order), width, put in zip(sides, vectors, puts, strict=True):
        into = load_walk(tile, order, width, threads)
        one, left = _placed(access, tile, order, into, out, put)
        if is_wide and (left or one.place.images is None):
            return None
        tiles.append(one)
    return TilePlan(tile, tiles, out, threads)


def _placed(
    access: Access,
    tile: list[int],
    order: list[int],
    into: TileWalk,
    out: TileWalk,
    put: int,
) -> tuple[StagedLoad, int]:
    """Place a load's tile, put down in the widest parts up to ``put`` that meet no bank twice."""
    inner = order[-1]
    found: list[tuple[StagedLoad, int]] = []
    while put >= max(1, out.unit[inner] if found else 1):
        part = put if put < into.unit[inner] else None
        place, left = choose_shared_layout(tuple(tile), tuple(order), into, out, access.bytes, part)
        found.append((StagedLoad(access, into, place, part), left))
        if left == 0:
            break
        put //= 2
    return min(found, key=lambda one: one[1])


def shared_out(shares: Sequence[int], most: int) -> int:
    """Threads that share out the tile without a rest, on its way in as on its way out.

    TVM allots shared memory for the rest, too, although nothing is ever there.
    """
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
    width = min(access.vector([nest.loops[inner]], vector_bytes), tile[inner])
    return _up_to(nest.loops[inner].size, width)


def _up_to(size: int | None, width: int) -> int:
    """Cut a vector to a power of two that the dim has: TVM would make one of 7 lanes of 8."""
    return width if size is None or size >= width else 1 << (size.bit_length() - 1)


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


def store_of(nest: Nest) -> Access:
    """Find the store of a block."""
    return next(access for access in nest.accesses if access.kind == "store")


def dims_of(access: Access, nest: Nest) -> list[int]:
    """Dims that an access depends on, in its own order."""
    order = own_order(access, nest, nest.loops)
    where = [nest.position(loop) for loop in order]
    return [i for i in where if access.steps[i] != 0]


def store_vector(nest: Nest, staged: Sequence[Access], vector_bytes: int) -> int:
    """Elements along the store's innermost dim that all accesses but the staged can take."""
    last = nest.loops[-1]
    widths = [
        access.vector([last], vector_bytes)
        for access in nest.accesses
        if access.steps[-1] == 1 and all(access.name != other.name for other in staged)
    ]
    return min(widths, default=1)
