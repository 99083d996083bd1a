"""Write what becomes of the sums: through shared memory by TMA, or from registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.script import tirx as T

from ...gpu.warpgroups import PANEL_BYTES, WARPGROUP_ROWS, WARPGROUP_THREADS
from ...intrin import asynchronous
from ...ir.queries import size_of, substitute, uses
from ...ir.rebuild import sequence
from .pieces import column_of, loop, row_of, when
from .plan import Plan, result_bytes
from .read_kernel import Kernel
from .roles import Parts, Tile, first_piece, with_batch
from .short_erf import shorten_erf
from .turned_store import turned_rows

#: Columns of a group of sums, of which a thread has two neighbours in each of two rows.
_COLUMNS = 8
#: Bytes of the pieces of a row that the swizzle keeps whole.
_VECTOR_BYTES = 16
#: Types to which values are rounded more than :func:`.shorten_erf` is off.
_SHORT = ("float16", "bfloat16")


def finish(parts: Parts, results: Any, tile: Tile, sums: Any, share: int = 0) -> Any:
    """Write a tile of results, or a share of it that a block of a cluster has added up."""
    if parts.plan.stores_by_box:
        return _by_boxes(parts, results, tile, sums, share)
    return _by_threads(parts, tile, sums, share)


def _shared(every: Sequence[Any], share: int, shares: int) -> Sequence[Any]:
    each = len(every) // shares
    return every[share * each : (share + 1) * each]


def _named(parts: Parts, tile: Tile, place: tuple[Any, Any]) -> dict[Any, Any]:
    """Values of the variables of the result."""
    kernel, (row, column) = parts.plan.kernel, place
    *rows, last = kernel.result.target.moving
    found = {rows[0]: row} if kernel.windows is None else kernel.windows.pixel(row)
    return found | {last: column} | with_batch(kernel, tile)


def _value(
    parts: Parts,
    tile: Tile,
    place: tuple[Any, Any],
    own: Callable[[int], Any],
    made: Any = None,
) -> Any:
    """The result that belongs to a sum; beyond the edge others are read at it, in no branch.

    ``own`` gives the sum of each product that the tile has, by its number; ``made`` is what the
    result stores, where that is written in another way.
    """
    kernel = parts.plan.kernel
    result = kernel.result
    values = _named(parts, tile, place)
    if result.reads_more:
        values = _at_most(parts.plan, tile, values)
    found = substitute(result.store.value if made is None else made, values)

    def load(node: Any) -> Any:
        if not node.source.same_as(result.sums):
            return node
        return own(0 if kernel.members is None else int(node.indices[0]))

    value = tvm_ffi.structural_map(found, [(tvm.ir.TensorLoad, load)], order="post")
    return shorten_erf(value) if str(result.store.buffer.dtype) in _SHORT else value


def _ends(plan: Plan, tile: Tile) -> dict[Any, Any]:
    """Where rows and columns end that tiles reach beyond, by variable."""
    kernel, windows = plan.kernel, plan.kernel.windows
    *rows, column = kernel.result.target.moving
    ends: dict[Any, Any] = {column: kernel.sizes[1]} if plan.ragged[1] else {}
    if kernel.groups is not None:
        return ends | {rows[0]: tile.end}
    extents, each = (
        ((kernel.sizes[0],), (1,)) if windows is None else (windows.pixels.extents, windows.box)
    )
    # Boxes that a last tile has no rows for lie beyond the first dim.
    for var, extent, size in zip(rows, extents, each, strict=True):
        is_whole = size == 1 or (isinstance(extent, int) and extent % size == 0)
        if not is_whole or (plan.ragged[0] and var.same_as(rows[0])):
            ends[var] = extent
    return ends


def _at_most(plan: Plan, tile: Tile, values: dict[Any, Any]) -> dict[Any, Any]:
    """A place, or the last row and column where tiles reach beyond them."""
    ends = {var: tirx.min(values[var], end - 1) for var, end in _ends(plan, tile).items()}
    return values | ends


def _by_boxes(parts: Parts, results: Any, tile: Tile, sums: Any, share: int) -> Any:
    plan = parts.plan
    every = [(piece, at) for piece in range(plan.kernel.pieces) for at in plan.chunk_starts]
    places = _shared(every, share, plan.shares)
    even = len(places) % plan.chunks == 0
    made = []
    for number, place in enumerate(places):
        own = tile.turn // 2 if plan.kernel.pingpong else tile.turn
        count = number if even else own * len(places) + number
        made += _chunk(parts, results, count % plan.chunks, tile, place, sums)
    return sequence(made)


def _chunk(
    parts: Parts, results: Any, slot: Any, tile: Tile, which: tuple[int, int], sums: Any
) -> list[Any]:
    """Write rows of 128 or 64 bytes into a slot, 64 at most, and let TMA store them."""
    plan, thread = parts.plan, parts.thread
    kernel = plan.kernel
    piece, start = which
    group = thread // WARPGROUP_THREADS
    leads = (thread % WARPGROUP_THREADS).equal(0)
    barrier = asynchronous.named_barrier(group + 1, WARPGROUP_THREADS)
    at = (group * plan.chunks + slot) * plan.chunk_bytes
    row = tile.row + (first_piece(parts) + piece) * 64
    column = tile.column + start
    where = kernel.result.target.place(_named(parts, tile, (row, column)))
    pointer = parts.arena.access_ptr("r", offset=plan.results_at + at)
    store = asynchronous.store_box(pointer, parts.maps["c"], where)
    corner = replace(tile, row=row, column=column)
    first = at // result_bytes(kernel)
    if plan.turned:
        written = turned_rows(parts, plan.results_at + at, corner, which, sums, _value)
    else:
        written = _rows(parts, results, first, corner, which, sums)
    if kernel.groups is None:
        stored = [when(leads, store, asynchronous.commit_stores())]
    else:
        # Rows behind a group's last are another's, so a box must not reach there; the count of
        # stores that are waited for goes on without it.
        whole = row + WARPGROUP_ROWS <= tile.end
        stored = [
            when(leads, when(whole, store), asynchronous.commit_stores()),
            when(tirx.Not(whole), _by_vectors(parts, results, first, corner)),
        ]
    return [
        when(leads, asynchronous.wait_stores(plan.chunks - 1, read=True)),
        barrier,
        *written,
        asynchronous.fence_shared(),
        barrier,
        *stored,
    ]


def _by_vectors(parts: Parts, results: Any, first: Any, corner: Tile) -> Any:
    """Store the rows of a chunk that are the group's, 16 bytes a thread at a time."""
    plan, own = parts.plan, parts.thread % WARPGROUP_THREADS
    size = _VECTOR_BYTES // result_bytes(plan.kernel)
    vectors = PANEL_BYTES // _VECTOR_BYTES
    target = plan.kernel.result.store
    column, ends = own % vectors, _ends(plan, corner)

    def rows(i: Any) -> Any:
        row = i * (WARPGROUP_THREADS // vectors) + own // vectors
        at = first + row * plan.chunk_columns + T.bitwise_xor(column, row % 8) * size

        def values(v: Any) -> dict[Any, Any]:
            return _named(parts, corner, (corner.row + row, corner.column + column * size + v))

        def store(v: Any) -> Any:
            indices = [substitute(index, values(v)) for index in target.indices]
            return tirx.BufferStore(target.buffer, results[at + v], indices)

        inside = [values(0)[var] < end for var, end in ends.items()]
        return when(tirx.all(*inside), loop("v", size, store, tirx.ForKind.VECTORIZED))

    return loop("i", WARPGROUP_ROWS * vectors // WARPGROUP_THREADS, rows)


def _rows(
    parts: Parts, results: Any, at: Any, corner: Tile, which: tuple[int, int], sums: Any
) -> list[Any]:
    """Write a thread's results into their swizzled rows, two neighbours at a time.

    Half a warp writes four rows of 16 columns. Those of 4 bytes take half of the banks, and the
    swizzle turns every other row within them: odd rows are two groups of columns ahead.
    """
    plan, thread = parts.plan, parts.thread
    one, (piece, start) = plan.kernel.instruction, which
    first = piece * (one.shape[1] // 2) + start // _COLUMNS * 4
    turns = result_bytes(plan.kernel) == 4
    ahead = thread // 4 % 2 * 2
    held = tirx.decl_buffer((2,), one.sums, "held", scope="local")
    made = [tirx.AllocBuffer(held)] if turns else []
    values: list[Any] = [None, None]
    if plan.kernel.meant and plan.kernel.result.reads_more:
        stores, values = _by_held_rows(parts, corner)
        made += stores

    def own(group: int, half: int, v: Any, member: int = 0) -> Any:
        number = first + group * 4 + half * 2 + member * plan.member_sums
        return asynchronous.sum_at(one, sums, number + v)

    for group in range(plan.chunk_columns // _COLUMNS):
        for half in range(2):

            def hold(v: Any, group: int = group, half: int = half) -> Any:
                pair = own(group ^ 2, half, v), own(group, half, v)
                return tirx.BufferStore(held, tirx.Select(ahead > 0, *pair), [v])

            def value(v: Any, member: int, group: int = group, half: int = half) -> Any:
                return held[v] if turns else own(group, half, v, member)

            if turns:
                made.append(loop("v", 2, hold, tirx.ForKind.UNROLLED))
            where = row_of(thread, half), T.bitwise_xor(group, ahead) if turns else group
            made.append(_pair(parts, results, at, corner, where, value, values[half]))
    return made


def _by_held_rows(parts: Parts, corner: Tile) -> tuple[list[Any], list[Any]]:
    """What a thread stores of each of its two rows, by where these begin in other matrices.

    That is kept in registers, which statements fill: it takes products and quotients of symbolic
    sizes, which TVM would simplify at each load. Of 256 columns it took 8 s to flatten them.
    """
    result, made, found = parts.plan.kernel.result, list[Any](), list[Any]()
    for half in range(2):
        place = corner.row + row_of(parts.thread, half), corner.column
        values = _at_most(parts.plan, corner, _named(parts, corner, place))
        stores = list[Any]()
        load = partial(_from_row, parts.plan.kernel, values, stores)
        value = tvm_ffi.structural_map(
            result.store.value, [(tvm.ir.TensorLoad, load)], order="post"
        )
        made += stores
        found.append(value)
    return made, found


def _from_row(kernel: Kernel, values: dict[Any, Any], made: list[Any], load: Any) -> Any:
    """A load by where its row begins, which is kept, if its last index alone has the column."""
    source, (*leading, last) = load.source, load.indices
    column, is_sum = kernel.result.target.moving[-1], source.same_as(kernel.result.sums)
    beside = any(uses(index, column) for index in leading)
    if is_sum or not leading or beside or len(source.ty.strides):
        return load
    shape = [kernel.meant.get(n, n) for n in map(size_of, source.shape)]
    begin: Any = tirx.IntImm("int64", 0)
    for index, extent in zip(leading, shape, strict=False):
        begin = begin * extent + tirx.Cast("int64", substitute(index, values))
    held = tirx.decl_buffer((1,), "int64", f"{source.name}_row", scope="local")
    flat = tirx.decl_buffer(
        (prod(shape),), str(source.dtype), f"{source.name}_flat", data=source.data
    )
    made += [
        tirx.DeclBuffer(flat, data=source.data),
        tirx.AllocBuffer(held),
        tirx.BufferStore(held, begin * shape[-1], [0]),
    ]
    return tirx.BufferLoad(flat, [held[0] + tirx.Cast("int64", last)])


def _pair(
    parts: Parts,
    results: Any,
    at: Any,
    corner: Tile,
    where: tuple[Any, Any],
    value: Callable[[Any, int], Any],
    stored: Any,
) -> Any:
    """Write two neighbours of a row and a group of columns."""
    plan, thread = parts.plan, parts.thread
    kernel = plan.kernel
    whole = _VECTOR_BYTES // result_bytes(kernel)
    row, column = where[0], where[1] * _COLUMNS + column_of(thread, 0)
    rows = PANEL_BYTES // plan.chunk_row_bytes  # So many rows lie in 128 bytes.
    turned = T.bitwise_xor(column // whole, thread % 32 // (4 * rows))
    index = at + row * plan.chunk_columns + turned * whole + column % whole

    def store(v: Any) -> Any:
        place = corner.row + row, corner.column + column + v
        made = _value(parts, corner, place, partial(value, v), stored)
        return tirx.BufferStore(results, made, [index + v])

    packed = kernel.instruction.sums != "float32" and result_bytes(kernel) != 4
    pairs = not packed and not (kernel.result.reads_more and plan.ragged[1])
    return loop("v", 2, store, tirx.ForKind.VECTORIZED if pairs else tirx.ForKind.UNROLLED)


def _by_threads(parts: Parts, tile: Tile, sums: Any, share: int) -> Any:
    """Store each sum from its register, as far as there are rows and columns."""
    plan, thread = parts.plan, parts.thread
    kernel = plan.kernel
    result = kernel.result
    each, apart = kernel.columns // 2, kernel.instruction.shape[1] // 2
    made = []
    for number in _shared(range(kernel.pieces * each), share, plan.shares):
        piece, register = divmod(number, each)
        rows = (first_piece(parts) + piece) * 64
        row = tile.row + rows + row_of(thread, register // 2 % 2)
        column = tile.column + register // 4 * _COLUMNS + column_of(thread, register % 2)
        values = _named(parts, tile, (row, column))
        indices = [substitute(at, values) for at in result.store.indices]
        first = piece * apart + register

        def own(member: int, first: int = first) -> Any:
            number = first + member * plan.member_sums
            return asynchronous.sum_at(kernel.instruction, sums, number)

        value = _value(parts, tile, (row, column), own)
        store = tirx.BufferStore(result.store.buffer, value, indices)
        inside = [values[var] < end for var, end in _ends(plan, tile).items()]
        made.append(when(tirx.all(*inside), store) if inside else store)
    return sequence(made)


def result_view(parts: Parts) -> Any:
    """The part of shared memory in which results are put together, as elements of their type."""
    plan = parts.plan
    size = result_bytes(plan.kernel)
    return tirx.decl_buffer(
        ((plan.arena_bytes - plan.results_at) // size,),
        str(plan.kernel.result.store.buffer.dtype),
        "results",
        data=parts.arena.data,
        elem_offset=plan.results_at // size,
        scope="shared.dyn",
        data_alignment=PANEL_BYTES,
    )
