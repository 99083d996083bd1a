"""Share out a block whose loads want another order than its store, through shared memory.

The tile is no register tile of ``LowerFragment``, although both ask
:func:`~tvm_layout_ext.layout.optimal_swizzle` for their memory: that is a power of two along each
dim and whole in registers on either side, while this one ends where the buffer does, be its size a
number or a symbol, and each thread holds only the vectors that it turns round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...analysis.nest import Loop, Nest, read_nest
from ...analysis.tile_bounds import longer_than
from ...errors import ScheduleError
from ...gpu.hardware import MAX_ACCESS_BYTES, STATIC_SHARED_BYTES
from ...ir.annotations import SWIZZLE
from ..canonical import canonicalize, map_of_iterators, transform_iterators
from ..emit import bind, spread
from ..mapping import Mapping, merged_groups
from ..request import Request
from ..store_policy import keep_stores
from .plan import StagedLoad, TilePlan, dims_of, plan_tile, store_of

#: Threads of a block to try where TVM does not find the bound of a tile with those asked for.
_FEWER_THREADS = (512, 256, 128, 64, 32)


class _UnboundedTileError(ScheduleError):
    """TVM does not find the bound of a tile; it may with other threads."""


def stage_block(
    raw: Nest, nest: Nest, mapping: Mapping, request: Request, sch: Any, block: Any
) -> str:
    """Bind a whole nest, its disagreeing loads going through a shared tile; tell how.

    ::

        for j, i in T.grid(N, M):            for tile in T.thread_binding(...):
            B[j, i] = A[i, j]                    A_shared[swizzled] = A[rows of the tile]
                                                 B[columns of the tile] = A_shared[swizzled]

    ``raw`` is the block as it is, ``nest`` with its loops in canonical form, all of them free. A
    power of two of the threads asked for shares out the tile; of a symbolic size less where TVM
    finds no bound of the tile with as many.

    Raises ScheduleError if the block cannot be staged, or TVM would allot more shared memory than
    the tile.
    """
    canonicalize(sch, block, raw)
    most, width = request.num_threads, request.vector_bytes
    if any(loop.size is None for loop in nest.loops):
        for threads in (most, *(n for n in _FEWER_THREADS if most is None or n < most)):
            try:
                _stage(sch.copy(), block, nest, mapping, threads, width)
            except _UnboundedTileError:
                continue
            most = threads
            break
    return _stage(sch, block, nest, mapping, most, width)


def _stage(sch: Any, block: Any, nest: Nest, mapping: Mapping, most: int | None, width: int) -> str:
    if nest.is_guarded:
        # TVM 0.27's transform_block_layout leaves the variables of loops that are gone in it.
        raise ScheduleError(
            f"Block {nest.block.name_hint} runs only where {nest.predicate} holds, and a staged "
            "block has other loops"
        )
    _merge(sch, block, nest, mapping)
    names = {access.name for access in mapping.disagreeing}
    merged = read_nest(sch, block)
    plan = plan_tile(merged, names, most, width)
    _check_shared(plan)
    caches = [_cache(sch, block, one.access.name, one.dims, "shared") for one in plan.tiles]
    held = [_hold(sch, cache, one) for cache, one in zip(caches, plan.tiles, strict=True)]
    stored = _write_out(sch, block, caches, plan)
    for cache, one, vector in zip(caches, plan.tiles, held, strict=True):
        _read_in(sch, cache, one, vector)
    _check_bounds(sch, merged, caches, plan)
    stores = plan.out.unit[-1] * store_of(merged).bytes
    return f"{plan}{keep_stores(sch, block, stored, stores)}"


def _merge(sch: Any, block: Any, nest: Nest, mapping: Mapping) -> None:
    """Make one loop, and one block iterator, of loops that every access walks as one.

    Not beside a store into a buffer with strides: TVM gives these to the registers before it, which
    then need as many dims.
    """
    groups: list[list[Loop]] = []
    has_strides = bool(store_of(nest).buffer.ty.strides)
    for group in merged_groups(nest, mapping):
        for at, loop in enumerate(group):
            if at == 0 or loop.size is None or has_strides:
                groups.append([])
            groups[-1].append(loop)
    where = [[nest.position(loop) for loop in group] for group in groups]

    def index_map(*iters: Any) -> list[Any]:
        return [_flat([(iters[i], nest.loops[i].extent) for i in group]) for group in where]

    transform_iterators(sch, block, index_map)


def _flat(parts: Sequence[tuple[Any, Any]]) -> Any:
    value = parts[0][0]
    for var, extent in parts[1:]:
        value = value * extent + var
    return value


def _check_shared(plan: TilePlan) -> None:
    """Refuse more than every GPU has without opt-in."""
    if plan.shared_bytes > STATIC_SHARED_BYTES:
        raise ScheduleError(
            f"Staging {len(plan.tiles)} loads needs {plan.shared_bytes:,} bytes of shared memory "
            f"of {STATIC_SHARED_BYTES:,}."
        )


def _check_bounds(sch: Any, nest: Nest, caches: Sequence[Any], plan: TilePlan) -> None:
    """Refuse a tile that TVM cuts at the buffer's end and then does not find."""
    if all(
        loop.size is not None and loop.size % part == 0
        for loop, part in zip(nest.loops, plan.out.tile, strict=True)
    ):
        return
    for cache, one in zip(caches, plan.tiles, strict=True):
        tile = one.into.tile
        shape = longer_than(sch, cache, tile)
        if shape is not None:
            raise _UnboundedTileError(
                f"TVM finds no bound for the {'x'.join(map(str, tile))} tile of "
                f"{one.access.name} with {plan.out.threads} threads, and would make it {shape}"
            )


def _hold(sch: Any, cache: Any, one: StagedLoad) -> Any | None:
    """Put registers between a load and its shared buffer, where vectors are put down in parts."""
    if one.put is None:
        return None
    used = sorted(one.dims)
    return _cache(sch, cache, one.access.name, [used.index(dim) for dim in one.dims], "local")


def _cache(sch: Any, block: Any, name: str, dims: Sequence[int], scope: str) -> Any:
    """Read a buffer through another one that has just these dims of the nest, in this order."""
    sources = [region.source for region in sch.get(block).reads]
    reads = [str(source.name) for source in sources]
    strides = list(sources[reads.index(name)].ty.strides)
    if strides and len(strides) != len(dims):
        raise ScheduleError(
            f"TVM gives the {len(strides)} strides of {name} to its tile, which has {len(dims)} "
            "dims"
        )

    def index_map(*iters: Any) -> list[Any]:
        return [iters[dim] for dim in dims]

    mapped = map_of_iterators(sch, block, index_map)
    return sch.reindex_cache_read(block, reads.index(name), scope, mapped)


def _write_out(sch: Any, block: Any, caches: Sequence[Any], plan: TilePlan) -> Any:
    """Bind the block's own loops, and put its result into registers; return what stores these."""
    unit = plan.out.unit
    direct = _vector_loads(sch, block) if unit[-1] > 1 else []
    words = [(one, MAX_ACCESS_BYTES) for one in direct] + [
        (
            sch.cache_read(block, _read_index(sch, block, cache), "local"),
            MAX_ACCESS_BYTES // one.access.bytes if one.access.has_vectors else 1,
        )
        for cache, one in zip(caches, plan.tiles, strict=True)
        if unit[one.dims[-1]] > 1
    ]
    same = map_of_iterators(sch, block, lambda *i: list(i))
    out = sch.reindex_cache_write(block, 0, "local", same)
    loops = spread(sch, sch.get_loops(out), plan.out, in_turns=True)
    bind(sch, loops)
    _compute_in(sch, block, loops.thread, along=None)
    for word, most in words:
        _compute_in(sch, word, loops.thread, along=-1, most=most)
    for cache in caches:
        sch.compute_at(cache, loops.grid, preserve_unit_loops=True)
    return out


def _vector_loads(sch: Any, block: Any) -> list[Any]:
    """Load into registers what runs along the store: the sums are formed element by element."""
    nest = read_nest(sch, block)
    loads = [a for a in nest.global_loads() if a.steps[-1] == 1]
    return [
        _cache(sch, block, access.name, dims_of(access, nest), "local")
        for access in {access.name: access for access in loads}.values()
    ]


def _compute_in(
    sch: Any, block: Any, thread: Any, *, along: int | None, most: int = MAX_ACCESS_BYTES
) -> None:
    """Compute a block inside a thread, its loops unrolled, or one of them in vectors."""
    sch.compute_at(block, thread, preserve_unit_loops=True)
    around = len(sch.get_loops(block)) - _own_loops(sch, block, thread)
    own = sch.get_loops(block)[around:]
    if along is not None:
        vector = own.pop(along)
        if along not in (-1, len(own)):
            sch.reorder(*own, vector)
        if int(sch.get(vector).extent) > most:
            part, vector = sch.split(vector, [None, most])
            own.append(part)
        sch.vectorize(vector)
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


def _read_in(sch: Any, cache: Any, one: StagedLoad, held: Any | None) -> None:
    """Spread the copy into shared memory over the threads, in the order of the load.

    Where ``held`` fills registers with whole vectors, the copy puts them down in parts.
    """
    used = sorted(one.dims)
    own = dict(zip(used, sch.get_loops(cache)[-len(used) :], strict=True))
    loops = spread(sch, [own[dim] for dim in one.dims], one.into, in_turns=True)
    vectors = loops.vectors
    if held is not None:
        part, *vectors = sch.split(vectors[0], [None, one.put])
        sch.unroll(part)
    bind(sch, replace(loops, vectors=vectors))
    if held is not None:
        _compute_in(sch, held, loops.thread, along=used.index(one.dims[-1]))
    sch.annotate(cache, SWIZZLE, str(one.place))
