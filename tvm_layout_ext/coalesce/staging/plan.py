"""Plans of tiles that go through shared memory: how large, how in, how laid out, how out.

A block of threads reads a box of elements in the order of the load and writes it in the order of
the store, each by a thread map of its own. On its way in a warp goes along rows of the load. On its
way out, lanes go along the store until they fill one or two lines, then along the load; elements
narrower than a bank go in groups along the load, a word at a time, and the thread that has such
groups for several places of the store turns them round in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from ...analysis.nest import Access, Nest
from ...errors import ScheduleError
from ...gpu.hardware import (
    BANK_BYTES,
    LINE_BYTES,
    MAX_ACCESS_BYTES,
    STATIC_SHARED_BYTES,
    WARP_SIZE,
)
from ...layout.placement import Xor
from ..mapping import own_order
from ..thread_map import ThreadMap
from .swizzles import swizzled

#: Bytes of an output row that the stores of a warp cover where a tile is full: two lines, by 16
#: lanes of 16 bytes and 2 rows. An H200 (driver 580.159.04) transposed 16384 x 16384 f32 at 0.975
#: of the best copy so, and at 0.970 with one line by 8 lanes and 4 rows.
_WIDE_ROW_BYTES = 256
#: Bytes of the elements whose tiles are written so.
_WIDE_ELEMENTS = (2, 4)
#: Bytes of a row of the tile along the store, and along a load, by the element's: two lines, so
#: that DRAM pages are left less often. An H200 moved 16384 x 16384 f16 at 0.96 of a copy with
#: 256 and 256, at 0.92 with 256 and 128; i8 at 0.95 with 128 and 256, at 0.93 with 128 and 128.
_STORE_BYTES = {1: 128, 2: 256, 4: 256, 8: 512}
_LOAD_BYTES = {1: 256, 2: 256, 4: 256, 8: 256}
#: Bytes of a tile from which on 512 threads move it faster than 256: on an H200 64x64 of f32 went
#: at 0.974 of a copy and 0.964, 128x256 of i8 at 0.950 and 0.931; 64x64 of f16 at 0.98 with either.
_LARGE_TILE = 1 << 14
#: Elements of which tiles of as many bytes have 1,024 threads: on an H200 (driver 580.159.04)
#: 128x128 of f16 went at 4.12 TB/s so, and at 4.08 with 512; f32 and i8 stay at 512.
_LARGEST_OF = 2
#: Threads of any tile of such elements that are loaded one by one: each has more on their way.
#: An H200 permuted 100x99x98x33 of f16 by (1, 3, 0, 2) in 45.1 us so, in 51.4 us with 512
#: (``benchmarks/results/h200_thread_maps.json``).
_NARROW_THREADS = 256


@dataclass(frozen=True)
class StagedLoad:
    """A staged load."""

    access: Access  #: The load, in the loops of the merged nest
    dims: tuple[int, ...]  #: Those that it depends on, in the order of its rows, the innermost last
    into: ThreadMap  #: How threads bring the tile, with these dims
    place: Xor  #: Where they put it
    #: Elements that they put down at once, where that is less than they bring at once.
    put: int | None = None


@dataclass(frozen=True)
class TilePlan:
    """How a block of threads moves a tile."""

    tiles: list[StagedLoad]  #: Its ways in
    out: ThreadMap  #: Its way out; its tile is that of the plan, in the order of the store

    @property
    def shared_bytes(self) -> int:
        """Bytes of all tiles in shared memory."""
        return sum(prod(one.into.tile) * one.access.bytes for one in self.tiles)

    def __str__(self) -> str:
        group = max(self.out.unit[:-1], default=1)
        vector = self.out.unit[-1]
        turned = f", {group} by {vector} turned in registers" if group > 1 else ""
        return (
            f"tile {'x'.join(map(str, self.out.tile))}, {self.out.threads} threads, swizzled, "
            f"stores of {vector} elements{turned}"
        )


def plan_tile(nest: Nest, names: set[str], most: int | None, vector_bytes: int) -> TilePlan:
    """Plan how a block of threads moves a tile.

    Every access walks the loops as one merged; ``names`` are buffers whose loads go through shared
    memory. By default a block has at most 512 threads for a large tile, 1,024 for one of 2-byte
    elements, and 256 for a small one.

    Raises ScheduleError if a block reads a buffer in two orders, or one thread moves all of it.
    """
    staged = _one_each(nest, names)
    if (together := _together(nest, staged, most, vector_bytes)) is not None:
        return together
    store, first = store_of(nest), staged[0]
    accesses = [store, *staged]
    sizes = [loop.size for loop in nest.loops]
    tile = box(sizes, [dims_of(one, nest) for one in accesses], [one.bytes for one in accesses])
    inner = nest.loops[dims_of(first, nest)[-1]]
    if most is None and first.bytes == _LARGEST_OF and first.vector([inner], vector_bytes) == 1:
        most = _NARROW_THREADS
    most = most or _usual_threads(prod(tile) * store.bytes, store.bytes)
    planner = _Planner(nest, staged, tile, most, vector_bytes)
    if planner.may_be_wide():
        plan, conflicts = planner.plan(_WIDE_ROW_BYTES)
        if not conflicts:
            return plan
    return planner.plan(LINE_BYTES)[0]


def store_of(nest: Nest) -> Access:
    """Find the store of a block."""
    return next(access for access in nest.accesses if access.kind == "store")


def dims_of(access: Access, nest: Nest) -> list[int]:
    """Dims that an access depends on, in its own order."""
    order = own_order(access, nest, nest.loops)
    return [at for at in map(nest.position, order) if access.steps[at] != 0]


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
    if tile_bytes < _LARGE_TILE:
        return 256
    return 1024 if size == _LARGEST_OF else 512


def box(
    extents: Sequence[int | None], orders: Sequence[Sequence[int]], element_bytes: Sequence[int]
) -> list[int]:
    """Choose the box that a block of threads moves: a power of two along each dim.

    Extents are of every dim, None where symbolic. ``orders`` are the dims of each access, the
    innermost last; the store's come first.

    Examples
    --------
    >>> box([16384, 16384], [[0, 1], [1, 0]], [4, 4])
    [64, 64]
    >>> box([64, 3136, 256], [[0, 1, 2], [0, 2, 1]], [2, 2])
    [1, 64, 64]

    3,136 is a multiple of 64, and not of 128: tiles of half the rows fill.
    """
    tile = _box(extents, orders, element_bytes, 1)
    half = _box(extents, orders, element_bytes, 2)
    return half if _rest(extents, tile) and not _rest(extents, half) else tile


def _rest(extents: Sequence[int | None], tile: Sequence[int]) -> bool:
    """Whether a tile at the end would not be full."""
    return any(n is not None and n % part for n, part in zip(extents, tile, strict=True))


def _box(
    extents: Sequence[int | None],
    orders: Sequence[Sequence[int]],
    element_bytes: Sequence[int],
    part_of: int,
) -> list[int]:
    tile = [1] * len(extents)
    for position, (order, size) in enumerate(zip(orders, element_bytes, strict=True)):
        wanted = (_LOAD_BYTES if position else _STORE_BYTES)[size] // size // part_of
        for dim in reversed(order):
            extent = extents[dim]
            part = wanted if extent is None else min(wanted, 1 << (extent - 1).bit_length())
            tile[dim] = max(tile[dim], part)
            wanted = -(-wanted // part)
            if wanted == 1:
                break
    return tile


@dataclass(frozen=True)
class _Planner:
    """Plans the ways through a tile."""

    nest: Nest
    staged: list[Access]
    tile: list[int]
    most: int
    vector_bytes: int

    @property
    def along(self) -> int:
        """The dim along which the first load is contiguous."""
        return dims_of(self.staged[0], self.nest)[-1]

    @property
    def vector(self) -> int:
        """Elements of a store: what all accesses along its innermost dim but the staged take."""
        last = self.nest.loops[-1]
        widths = [
            access.vector([last], self.vector_bytes)
            for access in self.nest.accesses
            if access.steps[-1] == 1 and all(access.name != other.name for other in self.staged)
        ]
        return _up_to(last.size, min([*widths, self.tile[-1]] if widths else [1]))

    def may_be_wide(self) -> bool:
        """Whether a warp may store two lines of a row: in full vectors, of a tile that is full."""
        size, sizes = store_of(self.nest).bytes, [loop.size for loop in self.nest.loops]
        whole = all(n is not None and n % m == 0 for n, m in zip(sizes, self.tile, strict=True))
        full = self.vector * size == MAX_ACCESS_BYTES and self.tile[-1] * size >= _WIDE_ROW_BYTES
        turns = all(dims_of(one, self.nest)[-1] != len(self.tile) - 1 for one in self.staged)
        return whole and full and turns and size in _WIDE_ELEMENTS

    def plan(self, row_bytes: int) -> tuple[TilePlan, int]:
        """Plan a tile of which a warp stores so many bytes of a row, and count its conflicts.

        In rows of more than a line a thread puts down part of the vector that it brings, as reading
        them back asks for.
        """
        sides = [(access, dims_of(access, self.nest)) for access in self.staged]
        group = 1
        if self.along != len(self.tile) - 1:
            group = min(_group(self.staged[0]), self.tile[self.along])
        puts = [self._put(access, dims[-1], group, row_bytes) for access, dims in sides]
        brought = puts
        if row_bytes > LINE_BYTES:
            brought = [self._load_vector(access, dims[-1]) for access, dims in sides]
        shares = [prod(self.tile) // (self.vector * group)]
        shares += [
            prod(self.tile[dim] for dim in dims) // width
            for (_, dims), width in zip(sides, brought, strict=True)
        ]
        threads = _shared_out(shares, self.most)
        if threads == 1:
            name, size = self.nest.block.name_hint, prod(self.tile)
            raise ScheduleError(f"Block {name} has {size} elements, which one thread moves at once")
        out = self._way_out(group, threads, row_bytes)
        tiles, conflicts = [], 0
        for (access, dims), width, put in zip(sides, brought, puts, strict=True):
            into = self._way_in(dims, width, threads)
            place, left = swizzled(into, out, dims, access.bytes, put)
            part = put if put < width else None
            tiles.append(StagedLoad(access, tuple(dims), into, place, part))
            # Reads of the first load take less than a vector; how much of it counts, not they.
            conflicts += left if dims[-1] != self.along else 0
        return TilePlan(tiles, out), conflicts

    def _load_vector(self, access: Access, inner: int) -> int:
        """Elements that a thread can load at once."""
        if access.steps[inner] != 1:
            return 1
        loop = self.nest.loops[inner]
        return _up_to(loop.size, min(access.vector([loop], self.vector_bytes), self.tile[inner]))

    def _put(self, access: Access, inner: int, group: int, row_bytes: int) -> int:
        """Elements that a thread puts down at once so that reading them meets every bank once.

        A phase of the reads takes several places along the store, and so of each only as many
        groups of the load as it has lanes left. They must make up whole vectors. Another load than
        the first, along another dim, is read one by one.
        """
        vector = self._load_vector(access, inner)
        if inner not in (self.along, len(self.tile) - 1):
            return 1
        own = min(_group(access), self.tile[inner])
        phase = WARP_SIZE * BANK_BYTES // max(BANK_BYTES, own * access.bytes)
        return min(vector, max(1, phase // self._line_lanes(row_bytes)) * own)

    def _line_lanes(self, row_bytes: int) -> int:
        """Lanes along the store: as many as fill so many bytes, if the tile is as wide."""
        width = self.vector * store_of(self.nest).bytes
        return min(WARP_SIZE, max(1, row_bytes // width), self.tile[-1] // self.vector)

    def _way_in(self, dims: Sequence[int], vector: int, threads: int) -> ThreadMap:
        """Go over a tile in the order of the load."""
        last = len(dims) - 1
        counts = [(at, self.tile[dim]) for at, dim in reversed(list(enumerate(dims)))]
        counts[0] = (last, counts[0][1] // vector)
        names = [str(self.nest.loops[dim].var.name) for dim in dims]
        rest = [(at, None) for at in range(len(dims))]
        return ThreadMap.dealt(names, [("vector", [(last, vector)])], counts, threads, "step", rest)

    def _way_out(self, group: int, threads: int, row_bytes: int) -> ThreadMap:
        """Go over a tile in the order of the store: a warp's patch is a few rows of vectors.

        Warps go along the store first, then over other dims, and last along the load.
        """
        last = len(self.tile) - 1
        others = [dim for dim in range(last - 1, -1, -1) if dim != self.along]
        order = list(dict.fromkeys([last, self.along, *others]))
        left = dict(enumerate(self.tile))
        left[self.along] //= group
        left[last] //= self.vector
        lanes = _taken(left, order, WARP_SIZE, first=self._line_lanes(row_bytes))
        most = max(1, threads // WARP_SIZE)
        warps = _taken(left, list(dict.fromkeys([last, *others, self.along])), most)
        warps.sort(key=lambda one: order.index(one[0]))
        counts = [*lanes, *warps, *((dim, left[dim]) for dim in order)]
        unit = [("vector", [(last, self.vector)]), ("register", [(self.along, group)])]
        names = [str(loop.var.name) for loop in self.nest.loops]
        rest = [(dim, None) for dim in reversed(range(len(self.tile)))]
        return ThreadMap.dealt(names, unit, counts, threads, "block", rest)


def _taken(
    left: dict[int, int], order: Sequence[int], most: int, first: int | None = None
) -> list[tuple[int, int]]:
    """Take up to so many of what is left along some dims, one after the other."""
    found = []
    for dim in order:
        count = min(left[dim], most if first is None or dim != order[0] else min(first, most))
        left[dim] //= count
        most //= count
        found.append((dim, count))
    return found


def _shared_out(shares: Sequence[int], most: int) -> int:
    """Threads that share out the tile without a rest, on its way in as on its way out.

    TVM allots shared memory for the rest, too, although nothing is ever there.
    """
    return 1 << (min(most, *shares).bit_length() - 1)


def _group(access: Access) -> int:
    """Elements that fill a bank."""
    return max(1, BANK_BYTES // access.bytes)


def _up_to(size: int | None, width: int) -> int:
    """Cut a vector to a power of two that the dim has: TVM would make one of 7 lanes of 8."""
    return width if size is None or size >= width else 1 << (size.bit_length() - 1)
