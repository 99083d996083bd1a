"""Write the main loop of a kernel of warpgroups: one copies, the others multiply.

Each stage of shared memory has two mbarriers. ``full`` ends a phase when the bytes of both tiles
have come; ``empty`` when every consuming warpgroup has read them. Step number ``it``, counted on
over all tiles of a block, uses stage ``it % stages`` in phase ``it // stages``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from ...gpu.warpgroups import (
    PANEL_BYTES,
    REGISTERS,
    SWIZZLE_BYTES,
    WARPGROUP_ROWS,
    WARPGROUP_THREADS,
)
from ...intrin import asynchronous
from ...ir.rebuild import sequence
from ..launch.rasterize_blocks import grouped
from .plan import Plan, b_rows
from .read_kernel import Kernel

#: Bytes of 64 rows of a panel; also of 64 x 64 elements of 16 bits, either way round.
_PIECE_BYTES = 64 * PANEL_BYTES
#: Bytes along K of one instruction.
_STEP_BYTES = 32


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


def make_parts(plan: Plan, maps: dict[str, Any]) -> Parts:
    """Make the variables and buffers of a kernel."""

    def barriers(name: str) -> Any:
        return tirx.decl_buffer((plan.stages,), "uint64", name, scope="shared", data_alignment=8)

    arena = tirx.decl_buffer(
        (plan.arena_bytes,), "uint8", "tiles", scope="shared.dyn", data_alignment=SWIZZLE_BYTES
    )
    block, thread = (tirx.Var(name, "int32") for name in ("block", "thread"))
    return Parts(plan, block, thread, arena, barriers("full"), barriers("empty"), maps)


def loop(name: str, extent: int, body: Callable[[Any], Any], kind: Any = None) -> Any:
    """Write a loop."""
    var = tirx.Var(name, "int32")
    kind = tirx.ForKind.SERIAL if kind is None else kind
    return tirx.For(var, 0, extent, kind, body(var), None, {})


def when(condition: Any, *body: Any) -> Any:
    """Write a condition."""
    return tirx.IfThenElse(condition, sequence(body), None)


def start(parts: Parts) -> Any:
    """Initialise the barriers."""
    plan = parts.plan
    made = [
        asynchronous.init_barrier(barriers, i, count)
        for i in range(plan.stages)
        for barriers, count in ((parts.full, 1), (parts.empty, plan.kernel.consumers))
    ]
    return sequence([when(parts.thread.equal(0), *made), *asynchronous.publish_barriers()])


@dataclass(frozen=True)
class Tile:
    """A tile of a block: the number of its turn, its product, and its first row and column."""

    turn: Any
    batch: Any
    row: Any
    column: Any


def over_tiles(parts: Parts, body: Callable[[Tile], Any]) -> Any:
    """Take tile after tile."""
    plan = parts.plan
    rows, columns = plan.tiles

    def turn(t: Any) -> Any:
        number = t * plan.grid + parts.block
        tile, batch, row, column = (
            tirx.Var(name, "int32") for name in ("tile", "batch", "row", "column")
        )
        places = grouped(0, tile % (rows * columns), rows, columns, min(plan.kernel.group, rows))
        inside = [
            tirx.Bind(tile, number),
            tirx.Bind(batch, tile // (rows * columns)),
            tirx.Bind(row, places[0] * plan.tile[0]),
            tirx.Bind(column, places[1] * plan.tile[1]),
            body(Tile(t, batch, row, column)),
        ]
        if plan.count % plan.grid == 0:
            return sequence(inside)
        return when(number < plan.count, *inside)

    return loop("turn", plan.turns, turn)


def produce(parts: Parts) -> Any:
    """Copy the tiles of every step, as soon as their stage is empty."""
    plan = parts.plan

    def step(tile: Tile) -> Callable[[Any], Any]:
        def body(k: Any) -> Any:
            it = tirx.Var("step", "int32")
            stage = it % plan.stages
            at = stage * plan.stage_bytes
            bound = tirx.Bind(it, tile.turn * plan.steps + k)
            return sequence(
                [
                    bound,
                    asynchronous.wait_barrier(
                        parts.empty, stage, T.bitwise_xor(_phase(it, plan), 1)
                    ),
                    asynchronous.expect_bytes(parts.full, stage, plan.stage_bytes),
                    *_copies(parts, "a", at, stage, tile, k),
                    *_copies(parts, "b", at + plan.a_bytes, stage, tile, k),
                ]
            )

        return body

    loops = over_tiles(parts, lambda tile: loop("k", plan.steps, step(tile)))
    first = plan.kernel.consumers * WARPGROUP_THREADS
    return sequence([*_registers(plan, 0), when(parts.thread.equal(first), loops)])


def _phase(it: Any, plan: Plan) -> Any:
    return T.bitwise_and(it // plan.stages, 1)


def _registers(plan: Plan, role: int) -> list[Any]:
    budget = REGISTERS[plan.kernel.consumers]
    return [] if budget is None else [asynchronous.set_registers(budget[role], more=bool(role))]


def _copies(parts: Parts, side: str, at: Any, stage: Any, tile: Tile, k: Any) -> list[Any]:
    """Copy a tile: one box of rows along K, or panels of 64 neighbours each."""
    plan = parts.plan
    kernel = plan.kernel
    operand, first = (kernel.a, tile.row) if side == "a" else (kernel.b, tile.column)
    rows = plan.tile[0] if side == "a" else b_rows(kernel)
    panel = plan.tile[2]
    own, depth = operand.source.moving[0], operand.source.moving[-1]
    windows = kernel.windows
    term = {depth: k * panel} if windows is None else windows.step(k, panel)

    def box(offset: int, start: Any) -> Any:
        row = {own: start}
        if side == "a" and windows is not None:
            row = windows.corner(start // WARPGROUP_ROWS)
        values = row | term | with_batch(kernel, tile)
        pointer = parts.arena.access_ptr("w", offset=at + offset)
        place = operand.source.place(values)
        return asynchronous.load_box(pointer, parts.maps[side], place, parts.full, stage)

    if side == "a" and windows is not None:
        return [box(i * PANEL_BYTES, first + i) for i in range(0, rows, WARPGROUP_ROWS)]
    if operand.k_major:
        return [box(0, first)]
    return [box(p * _PIECE_BYTES, first + p * panel) for p in range(rows // panel)]


def with_batch(kernel: Kernel, tile: Tile) -> dict[Any, Any]:
    """The value of the batch's variable."""
    return {} if kernel.batch is None else {kernel.batch: tile.batch}


def boxes(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Boxes of the tensor maps of A and B, innermost dim first."""
    kernel = plan.kernel
    panel = plan.tile[2]
    rows = (plan.tile[0],) if kernel.windows is None else kernel.windows.box
    return {
        side: operand.source.box((*(own if operand.k_major else (panel,)), panel))
        for side, operand, own in (("a", kernel.a, rows), ("b", kernel.b, plan.tile[1:2]))
    }


def consume(parts: Parts, finish: Callable[[Tile, Any], Any]) -> Any:
    """Multiply the tiles of every step, then ``finish(tile, sums)``."""
    plan = parts.plan
    kernel = plan.kernel
    count = kernel.pieces * kernel.instruction.registers
    sums = tirx.decl_buffer((count,), kernel.instruction.register, "sums", scope="local")

    def body(tile: Tile) -> Any:
        last = (tile.turn * plan.steps + (plan.steps - 1)) % plan.stages
        return sequence(
            [
                loop("k", plan.steps, lambda k: _step(parts, sums, tile.turn, k)),
                asynchronous.wait_products(0),
                _release(parts, last),
                finish(tile, sums),
            ]
        )

    return sequence([*_registers(plan, 1), tirx.AllocBuffer(sums), over_tiles(parts, body)])


def _release(parts: Parts, stage: Any) -> Any:
    leads = (parts.thread % WARPGROUP_THREADS).equal(0)
    return when(leads, asynchronous.arrive(parts.empty, stage))


def _step(parts: Parts, sums: Any, t: Any, k: Any) -> Any:
    plan = parts.plan
    it = tirx.Var("step", "int32")
    stage = it % plan.stages
    return sequence(
        [
            tirx.Bind(it, t * plan.steps + k),
            asynchronous.wait_barrier(parts.full, stage, _phase(it, plan)),
            asynchronous.fence_sums(),
            *_products(parts, sums, stage, k),
            asynchronous.commit_products(),
            asynchronous.wait_products(1),
            when(k > 0, _release(parts, (it - 1) % plan.stages)),
        ]
    )


def _products(parts: Parts, sums: Any, stage: Any, k: Any) -> list[Any]:
    plan = parts.plan
    kernel = plan.kernel
    one = kernel.instruction
    each = one.registers
    made = []
    for s in range(PANEL_BYTES // _STEP_BYTES):
        for piece in range(kernel.pieces):
            own = [sums[piece * each + i] for i in range(each)]
            number = parts.thread // WARPGROUP_THREADS * kernel.pieces + piece
            a = _described(parts, kernel.a, stage * plan.stage_bytes + number * _PIECE_BYTES, s)
            b = _described(parts, kernel.b, stage * plan.stage_bytes + plan.a_bytes, s)
            adds = True if s else k > 0
            turned = (not kernel.a.k_major, not kernel.b.k_major)
            made.append(asynchronous.multiply(one, own, a, b, adds, turned))
    return made


def _described(parts: Parts, operand: Any, at: Any, step: int) -> Any:
    """Describe the part of a tile that an instruction of a step reads."""
    inside = _STEP_BYTES if operand.k_major else 16 * PANEL_BYTES
    pointer = parts.arena.access_ptr("r", offset=at + step * inside)
    leading = 0 if operand.k_major else _PIECE_BYTES
    return asynchronous.descriptor(pointer, leading, SWIZZLE_BYTES)
