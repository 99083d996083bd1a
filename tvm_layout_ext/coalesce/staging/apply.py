"""Share out a block whose loads want another order than its store, through shared memory.

The shared layout comes from the algebra that converts register tiles (``LowerFragment``), but the
tile itself is not made one: a register tile is a power of two along each dim, all of it in
registers on either side, while this one ends where the buffer does, be its size a number or a
symbol, and each thread holds only the vectors that it turns round.

So ``LowerFragment`` takes no part here. Both ask :func:`~tvm_layout_ext.layout.optimal_swizzle` for
the memory between two register layouts; what follows differs. A conversion barters all registers of
a fragment, round by round where they do not fit, and knows of no buffer's end; emitted as one, a
tile of 64x64 floats would be whole in registers on both sides, and ragged or symbolic sizes would
need the present code beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from ...analysis.nest import Loop, Nest, read_nest
from ...analysis.tile_bounds import longer_than
from ...errors import ScheduleError
from ...gpu.hardware import MAX_ACCESS_BYTES, STATIC_SHARED_BYTES
from ...ir.annotations import SWIZZLE
from ..emit import fuse
from ..mapping import Mapping, merged_run
from ..store_policy import keep_stores
from .plan import StagedLoad, TilePlan, dims_of, plan_tile
from .walks import TileWalk


class UnboundedTileError(ScheduleError):
    """TVM does not find the bound of a tile; it may with other threads."""


def schedule_staged(
    sch: Any,
    block: Any,
    nest: Nest,
    mapping: Mapping,
    num_threads: int | None,
    vector_bytes: int,
) -> str:
    """Bind a whole nest, its disagreeing loads going through a shared tile; tell how.

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

    Raises
    ------
    UnboundedTileError
        If TVM would allot more shared memory than the tile.
    ScheduleError
        If the block cannot be staged for another reason.
    """
    if nest.is_guarded:
        # TVM 0.27's transform_block_layout leaves the variables of loops that are gone in it.
        raise ScheduleError(
            f"Block {nest.block.name_hint} runs only where {nest.predicate} holds, and a staged "
            "block has other loops"
        )
    _merge(sch, block, nest, mapping)
    names = {access.name for access in mapping.disagreeing}
    merged = read_nest(sch, block)
    plan = plan_tile(merged, names, num_threads, vector_bytes)
    _check_shared(plan)
    caches = [_stage(sch, block, one) for one in plan.tiles]
    held = [_hold(sch, cache, one) for cache, one in zip(caches, plan.tiles, strict=True)]
    stored = _write_out(sch, block, caches, plan)
    for cache, one, vector in zip(caches, plan.tiles, held, strict=True):
        _read_in(sch, cache, one, plan, vector)
    _check_bounds(sch, merged, caches, plan)
    width = plan.out.unit[-1] * _store_bytes(merged)
    return f"{plan}{keep_stores(sch, block, stored, width)}"


def _store_bytes(nest: Nest) -> int:
    return next(access.bytes for access in nest.accesses if access.kind == "store")


def _merge(sch: Any, block: Any, nest: Nest, mapping: Mapping) -> None:
    """Make one loop, and one block iterator, of loops that every access walks as one.

    Not beside a store into a buffer with strides: TVM gives these to the registers before it, which
    then need as many dims.
    """
    groups: list[list[Loop]] = []
    rest = list(mapping.order)
    if any(access.kind == "store" and access.buffer.ty.strides for access in nest.accesses):
        groups, rest = [[loop] for loop in rest], []
    while rest:
        run = merged_run(nest.accesses, nest.loops, rest)
        while any(loop.size is None for loop in rest[len(rest) - run + 1 :]):
            run -= 1
        groups.insert(0, rest[len(rest) - run :])
        rest = rest[: len(rest) - run]
    where = [[nest.position(loop) for loop in group] for group in groups]

    def index_map(*iters: Any) -> list[Any]:
        return [_flat([(iters[i], nest.loops[i].extent) for i in group]) for group in where]

    sch.transform_block_layout(block, _map_of(index_map, [loop.var for loop in nest.loops]))


def _flat(parts: Sequence[tuple[Any, Any]]) -> Any:
    value = parts[0][0]
    for var, extent in parts[1:]:
        value = value * extent + var
    return value


def _map_of(function: Any, variables: Sequence[Any]) -> Any:
    """Make an index map in the loops' own type: TVM does not see through casts of symbols."""
    wide = any(str(var.ty) == "int64" for var in variables)
    index_dtype = "int64" if wide else "int32"
    return tirx.IndexMap.from_func(function, ndim=len(variables), index_dtype=index_dtype)


def _variables(sch: Any, block: Any) -> list[Any]:
    return [sch.get(loop).loop_var for loop in sch.get_loops(block)]


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
        for loop, part in zip(nest.loops, plan.tile, strict=True)
    ):
        return
    for cache, one in zip(caches, plan.tiles, strict=True):
        tile = [plan.tile[dim] for dim in one.dims]
        shape = longer_than(sch, cache, tile)
        if shape is not None:
            raise UnboundedTileError(
                f"TVM finds no bound for the {'x'.join(map(str, tile))} tile of "
                f"{one.access.name} with {plan.threads} threads, and would make it {shape}"
            )


def _stage(sch: Any, block: Any, one: StagedLoad) -> Any:
    """Put a shared buffer, in the order of the load, between the load and the block."""
    return _cache(sch, block, one.access.name, one.dims, "shared")


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

    index_map_of = _map_of(index_map, _variables(sch, block))
    return sch.reindex_cache_read(block, reads.index(name), scope, index_map_of)


def _write_out(sch: Any, block: Any, caches: Sequence[Any], plan: TilePlan) -> Any:
    """Bind the block's own loops, and put its result into registers; return what stores these."""
    walk = plan.out
    direct = _vector_loads(sch, block) if walk.unit[-1] > 1 else []
    words = [(one, MAX_ACCESS_BYTES) for one in direct] + [
        (
            sch.cache_read(block, _read_index(sch, block, cache), "local"),
            MAX_ACCESS_BYTES // one.access.bytes if one.access.has_vectors else 1,
        )
        for cache, one in zip(caches, plan.tiles, strict=True)
        if walk.unit[one.dims[-1]] > 1
    ]
    same = _map_of(lambda *i: list(i), _variables(sch, block))
    out = sch.reindex_cache_write(block, 0, "local", same)
    loops = dict(enumerate(sch.get_loops(out)))
    grid_loops, fused, units = _walk_loops(sch, loops, walk, plan.tile, list(loops))
    grid = fuse(sch, grid_loops)  # Neighbouring blocks go along the store.
    sch.bind(grid, "blockIdx.x")
    step, thread = _deal(sch, fused, plan)
    sch.unroll(step)
    for unit in units[:-1]:
        sch.unroll(unit)
    sch.vectorize(units[-1])
    _compute_in(sch, block, thread, along=None)
    for word, most in words:
        _compute_in(sch, word, thread, along=-1, most=most)
    for cache in caches:
        sch.compute_at(cache, grid, preserve_unit_loops=True)
    return out


def _walk_loops(
    sch: Any, loops: dict[int, Any], walk: TileWalk, tile: Sequence[int], units: Sequence[int]
) -> tuple[list[Any], Any, list[Any]]:
    """Nest the loops of a tile as a walk goes: tiles, the fused walk, the elements of a unit.

    Parameters
    ----------
    loops : dict of int to LoopRV
        The loop of each dim.
    units : sequence of int
        Dims in the order in which the loops inside of a unit follow each other.
    """
    outer, queues, inside = [], {}, {}
    for dim, loop in loops.items():
        over, rest = sch.split(loop, [None, tile[dim]])
        factors = walk.factors(dim)
        parts = list(sch.split(rest, factors)) if len(factors) > 1 else [rest]
        outer.append(over)
        queues[dim], inside[dim] = parts[:-1], parts[-1]
    order = [queues[dim].pop() for dim, _ in walk.pieces]
    held = [inside[dim] for dim in units]
    sch.reorder(*outer, *reversed(order), *held)
    fused = fuse(sch, list(reversed(order))) if order else sch.add_unit_loop(held[0])
    return outer, fused, held


def _deal(sch: Any, fused: Any, plan: TilePlan) -> tuple[Any, Any]:
    """Bind a walk's loop to threads, in steps."""
    step, thread = sch.split(fused, [None, plan.threads])
    sch.bind(thread, "threadIdx.x")
    return step, thread


def _vector_loads(sch: Any, block: Any) -> list[Any]:
    """Load into registers what runs along the store: the sums are formed element by element."""
    nest = read_nest(sch, block)
    loads = [a for a in nest.of_scope("global") if a.kind == "load" and a.steps[-1] == 1]
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


def _read_in(sch: Any, cache: Any, one: StagedLoad, plan: TilePlan, held: Any | None) -> None:
    """Spread the copy into shared memory over the threads, in the order of the load.

    Where ``held`` fills registers with whole vectors, the copy puts them down in parts.
    """
    loops = sch.get_loops(cache)
    used = sorted(one.dims)
    loop_of = dict(zip(used, loops[len(loops) - len(used) :], strict=True))
    _, fused, units = _walk_loops(sch, loop_of, one.walk, plan.tile, one.dims)
    step, thread = _deal(sch, fused, plan)
    sch.unroll(step)
    if held is None:
        sch.vectorize(units[-1])
    else:
        _compute_in(sch, held, thread, along=used.index(one.dims[-1]))
        part, element = sch.split(units[-1], [None, one.put])
        sch.unroll(part)
        sch.vectorize(element)
    if one.place.swizzle is not None:
        sch.annotate(cache, SWIZZLE, one.place.swizzle)
    elif len(one.dims) > 1:
        sch.storage_align(cache, 0, len(one.dims) - 2, one.place.row, 0)
