"""Share out a block whose loads want another order than its store, through shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx

from ..analysis.access import Access, Loop, Nest, read_nest
from ..analysis.mapping import Mapping, merged_run, own_order
from ..analysis.staging import Patch, choose_patch, choose_swizzle, choose_tile, images
from ..errors import ScheduleError
from ..hardware import BANK_BYTES, STATIC_SHARED_BYTES
from .coalesce_direct import DEFAULT_THREADS, fuse
from .swizzle_shared import SWIZZLE, swizzle_text

__all__ = ["schedule_staged"]


@dataclass(frozen=True)
class _Tile:
    """A staged load.

    Attributes
    ----------
    access : Access
        The load, in the loops of the merged nest.
    dims : tuple of int
        Dims that it depends on, in its order, the innermost last.
    vector : int
        Neighbours that a thread moves into shared memory at once.
    swizzle : list of list of int
        Where each index bit goes, as annotation ``layout_ext.swizzle`` has it.
    """

    access: Access
    dims: tuple[int, ...]
    vector: int
    swizzle: list[list[int]]


def schedule_staged(
    sch: Any,
    block: Any,
    nest: Nest,
    mapping: Mapping,
    num_threads: int | None,
    vector_bytes: int,
) -> tuple[str, list[Any]]:
    """Bind a whole nest, its disagreeing loads going through a shared tile.

    ::

        for j, i in T.grid(N, M):            for tile in T.thread_binding(...):
            B[j, i] = A[i, j]                    A_shared[swizzled] = A[rows of the tile]
                                                 B[columns of the tile] = A_shared[swizzled]

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
    block : SBlockRV
    nest : Nest
        The block as it is, all its loops free.
    mapping : Mapping
        The order of the store, and the loads that disagree.
    num_threads : int, optional
        Most threads of a block; a power of two of them shares out the tile.
    vector_bytes : int
        Bytes of the widest access of a thread.

    Returns
    -------
    tuple
        What was chosen, for the report, and the blocks that now access global memory.
    """
    names = {access.name for access in mapping.disagreeing}
    _merge(sch, block, nest, mapping)
    merged = read_nest(sch, block)
    extents = [loop.size for loop in merged.loops]
    staged = _one_each(merged, names)
    store = next(access for access in merged.accesses if access.kind == "store")
    orders = [_dims(store, merged), *(_dims(access, merged) for access in staged)]
    tile = choose_tile(extents, orders, [store.bytes, *(access.bytes for access in staged)])
    patch = choose_patch(
        tile,
        extents,
        orders[1],
        vector=_store_vector(merged, staged, vector_bytes),
        group=max(1, BANK_BYTES // staged[0].bytes),
        size=store.bytes,
    )
    tiles = [
        _tile(access, order, merged, tile, patch, vector_bytes)
        for access, order in zip(staged, orders[1:], strict=True)
    ]
    _check_shared(tiles, tile)
    threads = _threads(tiles, tile, patch, num_threads or DEFAULT_THREADS)
    caches = [_stage(sch, block, one, len(tile)) for one in tiles]
    out = _write_out(sch, block, caches, tiles, tile, patch, threads)
    for cache, one in zip(caches, tiles, strict=True):
        _read_in(sch, cache, one, tile, threads)
    text = f"tile {'x'.join(map(str, tile))}, {threads} threads, {_describe(patch)}"
    return text, [*caches, block, out]


def _threads(tiles: Sequence[_Tile], tile: Sequence[int], patch: Patch, most: int) -> int:
    """Threads that share out the tile without a rest, on its way in as on its way out.

    TVM allots shared memory for the rest, too, although nothing is ever there.
    """
    shares = [prod(tile) // (patch.vector * patch.group)]
    shares += [prod(tile[dim] for dim in one.dims) // one.vector for one in tiles]
    return 1 << (min(most, *shares).bit_length() - 1)


def _describe(patch: Patch) -> str:
    turned = f", {patch.group} by {patch.vector} turned in registers" if patch.group > 1 else ""
    return f"stores of {patch.vector} elements{turned}"


def _merge(sch: Any, block: Any, nest: Nest, mapping: Mapping) -> None:
    """Make one loop, and one block iterator, of loops that every access walks as one."""
    groups: list[list[Loop]] = []
    rest = list(mapping.order)
    while rest:
        run = merged_run(nest.accesses, nest.loops, rest)
        while any(loop.size is None for loop in rest[len(rest) - run + 1 :]):
            run -= 1
        groups.insert(0, rest[len(rest) - run :])
        rest = rest[: len(rest) - run]
    where = [[_position(nest, loop) for loop in group] for group in groups]

    def index_map(*iters: Any) -> list[Any]:
        return [_flat([(iters[i], nest.loops[i].extent) for i in group]) for group in where]

    sch.transform_block_layout(block, _map_of(index_map, len(nest.loops)))


def _position(nest: Nest, loop: Loop) -> int:
    return next(i for i, own in enumerate(nest.loops) if own is loop)


def _flat(parts: Sequence[tuple[Any, Any]]) -> Any:
    value = parts[0][0]
    for var, extent in parts[1:]:
        value = value * extent + var
    return value


def _map_of(function: Any, rank: int) -> Any:
    return tirx.IndexMap.from_func(function, ndim=rank)


def _one_each(nest: Nest, names: set[str]) -> list[Access]:
    found: dict[str, Access] = {}
    for access in nest.accesses:
        if access.kind == "store" or access.name not in names:
            continue
        if not access.moves_alike(found.setdefault(access.name, access)):
            raise ScheduleError(
                f"Block {nest.block.name_hint} reads {access.name} in two orders at once."
            )
    return list(found.values())


def _dims(access: Access, nest: Nest) -> list[int]:
    """Dims that an access depends on, in its own order."""
    order = own_order(access, nest, nest.loops)
    return [i for i in (_position(nest, loop) for loop in order) if access.steps[i] != 0]


def _store_vector(nest: Nest, staged: Sequence[Access], vector_bytes: int) -> int:
    """Elements along the store's innermost dim that all accesses but the staged can take."""
    last = nest.loops[-1]
    widths = [
        access.vector([last], vector_bytes)
        for access in nest.accesses
        if access.steps[-1] == 1 and all(access.name != other.name for other in staged)
    ]
    return min(widths, default=1)


def _tile(
    access: Access,
    order: list[int],
    nest: Nest,
    tile: list[int],
    patch: Patch,
    vector_bytes: int,
) -> _Tile:
    inner = order[-1]
    vector = 1
    if access.steps[inner] == 1:
        vector = min(access.vector([nest.loops[inner]], vector_bytes), tile[inner])
    found, conflicts = choose_swizzle(tile, order, patch, load_vector=vector, size=access.bytes)
    while conflicts and vector > 1:
        vector //= 2
        found, conflicts = choose_swizzle(tile, order, patch, load_vector=vector, size=access.bytes)
    return _Tile(access, tuple(order), vector, images([tile[dim] for dim in order], found))


def _check_shared(tiles: Sequence[_Tile], tile: Sequence[int]) -> None:
    size = sum(prod(tile[dim] for dim in one.dims) * one.access.bytes for one in tiles)
    if size > STATIC_SHARED_BYTES:
        raise ScheduleError(
            f"Staging {len(tiles)} loads needs {size:,} bytes of shared memory of 49,152."
        )


def _stage(sch: Any, block: Any, one: _Tile, rank: int) -> Any:
    """Put a shared buffer, in the order of the load, between the load and the block."""
    return _cache(sch, block, one.access.name, one.dims, "shared", rank)


def _cache(sch: Any, block: Any, name: str, dims: Sequence[int], scope: str, rank: int) -> Any:
    """Read a buffer through another one that has just these dims of the nest, in this order."""
    reads = [str(region.source.name) for region in sch.get(block).reads]

    def index_map(*iters: Any) -> list[Any]:
        return [iters[dim] for dim in dims]

    return sch.reindex_cache_read(block, reads.index(name), scope, _map_of(index_map, rank))


def _write_out(
    sch: Any,
    block: Any,
    caches: Sequence[Any],
    tiles: Sequence[_Tile],
    tile: Sequence[int],
    patch: Patch,
    threads: int,
) -> Any:
    """Bind the block's own loops, and put its result into registers before it is stored."""
    rank, last = len(tile), len(tile) - 1
    words = _vector_loads(sch, block, patch, last)
    words += [
        sch.cache_read(block, _read_index(sch, block, cache), "local")
        for cache, one in zip(caches, tiles, strict=True)
        if patch.read_width(one.dims, last) > 1
    ]
    out = sch.reindex_cache_write(block, 0, "local", _map_of(lambda *i: list(i), rank))
    split = []
    for dim, loop in enumerate(sch.get_loops(out)):
        over, inside = sch.split(loop, [None, tile[dim]])
        factors = patch.factors(dim, last)
        split.append([over, *(sch.split(inside, factors) if len(factors) > 1 else [inside])])
    queues = [list(parts[1:-1]) for parts in split]
    walk = [queues[dim].pop() for dim, _ in patch.pieces]
    units = [parts[-1] for dim, parts in enumerate(split) if dim != last]
    vector = split[last][-1]
    outer = [parts[0] for parts in split]
    sch.reorder(*outer, *reversed(walk), *units, vector)
    grid = fuse(sch, outer)
    sch.bind(grid, "blockIdx.x")
    fused = fuse(sch, list(reversed(walk))) if walk else sch.add_unit_loop(units[0])
    step, thread = sch.split(fused, [None, threads])
    sch.bind(thread, "threadIdx.x")
    sch.unroll(step)
    for unit in units:
        sch.unroll(unit)
    sch.vectorize(vector)
    _compute_in(sch, block, thread, vectorize=False)
    for word in words:
        _compute_in(sch, word, thread, vectorize=True)
    for cache in caches:
        sch.compute_at(cache, grid, preserve_unit_loops=True)
    return out


def _vector_loads(sch: Any, block: Any, patch: Patch, last: int) -> list[Any]:
    """Load into registers what runs along the store: the sums are formed element by element."""
    nest = read_nest(sch, block)
    loads = [a for a in nest.of_scope("global") if a.kind == "load" and a.steps[last] == 1]
    if patch.vector == 1:
        return []
    return [
        _cache(sch, block, access.name, _dims(access, nest), "local", len(nest.loops))
        for access in {access.name: access for access in loads}.values()
    ]


def _compute_in(sch: Any, block: Any, thread: Any, *, vectorize: bool) -> None:
    """Compute a block inside a thread, its loops unrolled."""
    sch.compute_at(block, thread, preserve_unit_loops=True)
    around = len(sch.get_loops(block)) - _own_loops(sch, block, thread)
    own = sch.get_loops(block)[around:]
    if vectorize:
        sch.vectorize(own.pop())
    for loop in own:
        sch.unroll(loop)


def _own_loops(sch: Any, block: Any, thread: Any) -> int:
    """Loops of a block inside a thread's loop."""
    loops = [sch.get(loop) for loop in sch.get_loops(block)]
    outer = sch.get(thread)
    return len(loops) - 1 - next(i for i, loop in enumerate(loops) if loop.same_as(outer))


def _read_index(sch: Any, block: Any, cache: Any) -> int:
    shared = sch.get(cache).writes[0].source
    reads = sch.get(block).reads
    return next(i for i, region in enumerate(reads) if region.source.same_as(shared))


def _read_in(sch: Any, cache: Any, one: _Tile, tile: Sequence[int], threads: int) -> None:
    """Spread the copy into shared memory over the threads, in the order of the load."""
    loops = sch.get_loops(cache)
    used = sorted(one.dims)
    loop_of = dict(zip(used, loops[len(loops) - len(used) :], strict=True))
    whole = {dim: sch.split(loop, [None, tile[dim]]) for dim, loop in loop_of.items()}
    sch.reorder(*(outer for outer, _ in whole.values()), *(whole[dim][1] for dim in one.dims))
    order = [whole[dim][1] for dim in one.dims]
    groups, vector = sch.split(order[-1], [None, one.vector])
    fused = fuse(sch, [*order[:-1], groups])
    step, thread = sch.split(fused, [None, threads])
    sch.bind(thread, "threadIdx.x")
    sch.unroll(step)
    sch.vectorize(vector)
    sch.annotate(cache, SWIZZLE, swizzle_text(one.swizzle))
