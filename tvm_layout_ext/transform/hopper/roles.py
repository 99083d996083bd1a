"""Write the main loop of a kernel of warpgroups: one copies, the others multiply.

Each stage of shared memory has two mbarriers. ``full`` ends a phase when the bytes of both tiles
have come; ``empty`` when every consuming warpgroup has read them. Step number ``it``, counted on
over all tiles of a block, uses stage ``it % stages`` in phase ``it // stages``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from ...gpu.warpgroups import PANEL_BYTES, WARPGROUP_ROWS, WARPGROUP_THREADS
from ...intrin import asynchronous
from ...ir.rebuild import sequence
from ..launch.rasterize_blocks import grouped
from .groups import Walk
from .members import MemberRows
from .pieces import (
    PIECE_BYTES,
    described,
    loop,
    mbarriers,
    phase,
    registers,
    release,
    tiles_arena,
    when,
)
from .places import named
from .plan import Plan
from .read_kernel import Kernel


@dataclass(frozen=True)
class Parts:
    """Variables and buffers of a kernel."""

    plan: Plan
    block: Any
    thread: Any
    arena: Any
    full: Any
    empty: Any
    maps: dict[str, Any]
    address: Any


def make_parts(plan: Plan, maps: dict[str, Any]) -> Parts:
    """Make the variables and buffers of a kernel."""
    block, thread = (tirx.Var(name, "int32") for name in ("block", "thread"))
    address = tirx.decl_buffer((1,), "uint32", "address", scope="local")
    full, empty = (mbarriers(name, plan.stages) for name in ("full", "empty"))
    return Parts(plan, block, thread, tiles_arena(plan.arena_bytes), full, empty, maps, address)


def start(parts: Parts) -> Any:
    """Initialise the barriers, and let the tensor maps come meanwhile."""
    plan = parts.plan
    made = [
        asynchronous.init_barrier(barriers, i, count)
        for i in range(plan.stages)
        for barriers, count in ((parts.full, 1), (parts.empty, plan.arrivals))
    ]
    published = asynchronous.publish_barriers(plan.blocks)
    maps = map(asynchronous.prefetch_map, parts.maps.values())
    return sequence([when(parts.thread.equal(0), *maps, *made), *published])


def end(parts: Parts) -> list[Any]:
    """Keep a block while others of its cluster copy into it or arrive at its barriers."""
    return asynchronous.cluster_barrier() if parts.plan.blocks > 1 else []


def slice_of(parts: Parts) -> Any:
    """Which slice of K a block has: blocks of a cluster follow each other."""
    return parts.block % parts.plan.kernel.slices


@dataclass(frozen=True)
class Tile:
    """A tile of a block: the number of its turn, its product, and its first row and column.

    Rows of a group end at ``end``.
    """

    turn: Any
    batch: Any
    row: Any
    column: Any
    end: Any = None


def over_tiles(parts: Parts, body: Callable[[Tile], Any], own: Any = None) -> Any:
    """Take tile after tile; with ``own``, 0 or 1, every second one."""
    plan = parts.plan
    rows, columns = plan.tiles
    knows, has_batch = isinstance(rows, int), plan.kernel.batch is not None
    if plan.kernel.groups is not None:
        return _over_groups(parts, body)

    def turn(t: Any) -> Any:
        number = t * plan.grid + parts.block
        tile, batch, row, column = (
            tirx.Var(name, "int32") for name in ("tile", "batch", "row", "column")
        )
        inside = [
            tirx.Bind(tile, number // plan.kernel.slices),
            tirx.Bind(batch, tile // (rows * columns) if knows or has_batch else 0),
        ]
        for var, at, size in zip((row, column), _place(plan, tile), plan.tile, strict=False):
            inside += named(var, at * size, knows)
        inside.append(body(Tile(t, batch, row, column)))
        each = plan.grid * (1 if own is None else 2)
        even = isinstance(plan.count, int) and plan.count % each == 0
        if even or not plan.kernel.persistent:
            return sequence(inside)
        return when(number < plan.count, *inside)

    if own is None:
        return loop("turn", plan.turns, turn)
    return loop("pair", (plan.turns + 1) // 2, lambda pair: turn(pair * 2 + own))


def _over_groups(parts: Parts, body: Callable[[Tile], Any]) -> Any:
    """Take tile after tile of groups of rows."""
    plan, kernel = parts.plan, parts.plan.kernel
    assert kernel.groups is not None
    high, wide, _ = plan.tile
    order = kernel.group, plan.grid, plan.turns, parts.block
    walk = Walk(kernel.groups, high, plan.tiles[1], *order)
    return walk.over(lambda turn, g, row, end, at: body(Tile(turn, g, row, at * wide, end)))


def _place(plan: Plan, tile: Any) -> tuple[Any, Any]:
    """Row and column of a tile, by its number; tiles of a cluster follow each other."""
    if not isinstance(plan.tiles[0], int):
        return _place_of_any(plan, tile)
    rows, columns = (n // size for n, size in zip(plan.tiles, plan.kernel.cluster, strict=True))
    number = tile % (rows * columns * plan.blocks)
    if plan.blocks == 1:
        return grouped(0, number, rows, columns, min(plan.kernel.group, rows))
    group = max(1, plan.kernel.group // plan.kernel.cluster[0])
    row, column = grouped(0, number // plan.blocks, rows, columns, min(group, rows))
    high, wide = plan.kernel.cluster
    rank = number % plan.blocks
    return row * high + rank % high, column * wide + rank % wide


def _place_of_any(plan: Plan, tile: Any) -> tuple[Any, Any]:
    """Row and column of a tile of products of a symbolic number of rows."""
    (rows, columns), group = plan.tiles, plan.kernel.group
    if plan.kernel.batch is not None:
        tile = tile % tirx.max(rows * columns, 1)
    first, inside = tile // (group * columns) * group, tile % (group * columns)
    # Not below 1, or TVM divides as if it might be negative.
    height = tirx.max(tirx.min(rows - first, group), 1)
    return first + inside % height, inside // height


def produce(parts: Parts) -> Any:
    """Copy the tiles of every step, as soon as their stage is empty."""
    plan = parts.plan
    first = slice_of(parts) * plan.steps if plan.kernel.slices > 1 else 0

    def copied(tile: Tile, k: Any, stage: Any) -> list[Any]:
        """Copy the tiles of a step; B, where it stays, only for the first tile of a block."""
        begins = tile.turn.equal(0)
        expect = asynchronous.expect_bytes(parts.full, stage, sum(plan.loaded))
        a = _copies(parts, "a", stage * plan.stage_bytes, stage, tile, first + k)
        b = _copies(parts, "b", plan.b_at(stage, k), stage, tile, first + k)
        if plan.keeps_b:
            less = asynchronous.expect_bytes(parts.full, stage, plan.loaded[0])
            expect, b = tirx.IfThenElse(begins, expect, less), [when(begins, *b)]
        return [expect, *a, *b]

    def step(tile: Tile) -> Callable[[Any], Any]:
        def body(k: Any) -> Any:
            it = tirx.Var("step", "int32")
            stage = it % plan.stages
            bound = tirx.Bind(it, tile.turn * plan.steps + k)
            return sequence(
                [
                    bound,
                    asynchronous.wait_barrier(
                        parts.empty, stage, T.bitwise_xor(phase(it, plan.stages), 1)
                    ),
                    *copied(tile, k, stage),
                ]
            )

        return body

    # Unrolled, places of a window took more registers than a thread that copies has: 18 steps of
    # 16x56x56x128 by 3x3 spilled 352 bytes.
    loops = over_tiles(parts, lambda tile: loop("k", plan.steps, step(tile), rolled=True))
    leads = parts.thread.equal(plan.kernel.consumers * WARPGROUP_THREADS)
    # Those that multiply meet those of other blocks twice to add up.
    met = asynchronous.cluster_barrier() * 2 if plan.kernel.slices > 1 else []
    return sequence([*registers(plan.kernel.consumers, 0), when(leads, loops), *met])


def _copies(parts: Parts, side: str, at: Any, stage: Any, tile: Tile, k: Any) -> list[Any]:
    """Copy a tile of a step, of a convolution run after run."""
    plan, kernel = parts.plan, parts.plan.kernel
    depth = (kernel.a if side == "a" else kernel.b).source.moving[-1]
    windows = kernel.windows
    if windows is not None and windows.halo is not None:
        places = range(1 if side == "a" else windows.places)
        begins = [windows.at(place, k * windows.run) for place in places]
    elif windows is not None:
        begins = [windows.begin(k * kernel.runs + n) for n in range(kernel.runs)]
    elif kernel.scaled is not None:
        begins = [{depth: tirx.IntImm("int32", 0), kernel.scaled.step: k}]
    else:
        begins = [{depth: k * plan.tile[2]}]
    each = plan.loaded["ab".index(side)] // len(begins)
    made = []
    for number, term in enumerate(begins):
        made += _boxes(parts, side, at + number * each, stage, tile, term)
    return made


def _boxes(
    parts: Parts, side: str, at: Any, stage: Any, tile: Tile, term: dict[Any, Any]
) -> list[Any]:
    """Copy one box of rows along K from a term on, or panels of 64 neighbours each."""
    plan, kernel = parts.plan, parts.plan.kernel
    operand, first = (kernel.a, tile.row) if side == "a" else (kernel.b, tile.column)
    panel, windows = plan.tile[2], kernel.windows if side == "a" else None
    own, depth = operand.source.moving[0], operand.source.moving[-1]
    blocks = plan.blocks if side == plan.shared else 1
    rank = parts.block % blocks if blocks > 1 else 0

    def box(of: MemberRows, offset: Any, start: Any, ahead: Any = 0) -> Any:
        row = {own: start} | of.values
        if windows is not None:
            row = windows.corner(start // WARPGROUP_ROWS)
        values = row | term | {depth: term[depth] + ahead} | with_batch(kernel, tile)
        pointer = parts.arena.access_ptr("w", offset=at + offset)
        place = operand.source.place(values)
        return asynchronous.load_box(pointer, parts.maps[of.map], place, parts.full, stage, blocks)

    made = []
    for one in plan.parts(side):
        start, rows = first + one.start, one.rows
        if not operand.k_major:
            part = rank * (panel // blocks)
            made += [
                box(one, (one.at + p) * PANEL_BYTES + part * PANEL_BYTES, start + p, part)
                for p in range(0, rows, panel)
            ]
            continue
        part = rank * (rows // blocks)
        step = rows // blocks if windows is None else WARPGROUP_ROWS
        for i in range(0, rows // blocks, step):
            offset = (one.at + part + i) * kernel.row_bytes
            if side == "a" and kernel.halo is not None:
                offset = i // WARPGROUP_ROWS * plan.piece_bytes
            made.append(box(one, offset, start + part + i))
    return made


def with_batch(kernel: Kernel, tile: Tile) -> dict[Any, Any]:
    """The value of the batch's variable."""
    return {} if kernel.batch is None else {kernel.batch: tile.batch}


def boxes(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Boxes of the tensor maps of A and B, innermost dim first."""
    kernel = plan.kernel
    panel = plan.tile[2]
    found = {}
    for side, operand in (("a", kernel.a), ("b", kernel.b)):
        extent = next(plan.parts(side)).rows
        blocks = plan.blocks if side == plan.shared else 1
        sizes: tuple[int, ...]
        sizes = (extent // blocks, kernel.run) if operand.k_major else (panel, panel // blocks)
        if side == "a" and kernel.windows is not None:
            around = kernel.windows.box if kernel.halo is None else kernel.halo.box
            sizes = (*around, kernel.run)
        found[side] = operand.source.box(sizes)
    return found


def consume(parts: Parts, finish: Callable[[Tile, Any], Any]) -> Any:
    """Multiply the tiles of every step, then ``finish(tile, sums)``."""
    plan = parts.plan
    kernel = plan.kernel
    count = kernel.held * kernel.instruction.registers
    sums = tirx.decl_buffer((count,), kernel.instruction.register, "sums", scope="local")

    def body(tile: Tile) -> Any:
        last = (tile.turn * plan.steps + (plan.steps - 1)) % plan.stages
        steps = loop("k", plan.steps, lambda k: _step(parts, sums, tile.turn, k))
        return sequence(
            [
                *(in_turn(parts, tile, steps) if kernel.pingpong else [steps]),
                asynchronous.wait_products(0),
                give_back(parts, last),
                finish(tile, sums),
            ]
        )

    return consumer(parts, [sums], body)


def consumer(parts: Parts, held: Sequence[Any], body: Callable[[Tile], Any]) -> Any:
    """What warpgroups do that multiply, with their registers."""
    plan = parts.plan
    kept = [*held, parts.address] if plan.blocks * plan.kernel.slices > 1 else held
    own = parts.thread // WARPGROUP_THREADS if plan.kernel.pingpong else None
    made = [
        *registers(plan.kernel.consumers, 1),
        *map(tirx.AllocBuffer, kept),
        over_tiles(parts, body, own),
    ]
    return sequence(made)


def in_turn(parts: Parts, tile: Tile, steps: Any) -> list[Any]:
    """Multiply when the tile before has been, and let the other warpgroup go on with the next one.

    Whoever waits for ``full`` is then no more than a phase ahead of it, as its parity demands.
    """
    plan = parts.plan
    threads, own = 2 * WARPGROUP_THREADS, parts.thread // WARPGROUP_THREADS
    # Numbers behind those by which each warpgroup stores.
    mine, other = (1 + plan.kernel.consumers + which for which in (own, 1 - own))
    following = (tile.turn + 1) * plan.grid + parts.block
    return [
        when(tile.turn > 0, asynchronous.named_barrier(mine, threads)),
        steps,
        when(following < plan.count, asynchronous.arrive_named(other, threads)),
    ]


def first_piece(parts: Parts, each: int | None = None) -> Any:
    """Which 64 rows are the first of a warpgroup, of which each has ``each`` of a tile."""
    if parts.plan.kernel.pingpong:
        return 0
    return parts.thread // WARPGROUP_THREADS * (each or parts.plan.kernel.pieces)


def give_back(parts: Parts, stage: Any) -> Any:
    """Give a stage back: to all blocks of the cluster, which copy into it."""
    thread, blocks = parts.thread, parts.plan.blocks
    if blocks == 1:
        return release(thread, parts.empty, stage)
    rank = thread % WARPGROUP_THREADS
    there = asynchronous.arrive_at(parts.empty, stage, rank, parts.address[0])
    return when(rank < blocks, there)


def _step(parts: Parts, sums: Any, t: Any, k: Any) -> Any:
    plan = parts.plan
    it = tirx.Var("step", "int32")
    stage = it % plan.stages
    made = products(parts, sums, stage, k, range(plan.kernel.held))
    # Those of all places of a window are many: the stage before is given back behind the first.
    first = plan.kernel.held if plan.kernel.halo else len(made)
    rest = made[first:]
    return sequence(
        [
            tirx.Bind(it, t * plan.steps + k),
            asynchronous.wait_barrier(parts.full, stage, phase(it, plan.stages)),
            asynchronous.fence_sums(),
            *made[:first],
            asynchronous.commit_products(),
            asynchronous.wait_products(1),
            when(k > 0, give_back(parts, (it - 1) % plan.stages)),
            *([asynchronous.fence_sums(), *rest, asynchronous.commit_products()] if rest else []),
        ]
    )


def products(parts: Parts, sums: Any, stage: Any, k: Any, pieces: Sequence[int]) -> list[Any]:
    """Multiply 64 rows each into registers of their own; step 0 does not add to what they hold."""
    plan = parts.plan
    kernel = plan.kernel
    one = kernel.instruction
    each = one.registers
    made = []
    for s, (left, right) in enumerate(plan.slices):
        for place, piece in enumerate(pieces):
            own = [sums[place * each + i] for i in range(each)]
            number = first_piece(parts, kernel.held) + piece
            at = stage * plan.stage_bytes + number * plan.piece_bytes
            a = _described(parts, "a", at + left)
            b = _described(parts, "b", plan.b_at(stage, k) + right)
            adds = bool(s) or k > 0
            turned = (not kernel.a.k_major, not kernel.b.k_major)
            made.append(asynchronous.multiply(one, own, a, b, adds, turned))
    return made


def _described(parts: Parts, side: str, at: Any) -> Any:
    """Describe the part of a tile that an instruction of a step reads."""
    kernel = parts.plan.kernel
    operand = kernel.a if side == "a" else kernel.b
    if not operand.k_major:
        return described(parts.arena, at, PIECE_BYTES)
    halo = kernel.halo if side == "a" else None
    pitch = {} if halo is None else {"pitch": halo.pitch}
    return described(parts.arena, at, 0, kernel.row_bytes, **pitch)
