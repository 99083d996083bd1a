"""Put the kernels of annotated blocks that turn tiles into a function."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import SBlockRealize

from ...errors import ScheduleError
from ...ir.annotations import EVICTION_POLICY, TURNED
from ...ir.queries import blocks_in
from ...ir.rebuild import block_with, realize_with, sequence
from ...ir.walk import top_statements
from .emit import TurnedKernel
from .move import goes_through_all, read_turn, why_not
from .plan import TurnedTile, TurnPlan


def write_tiles(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, dict[str, str]]:
    """Write the kernels that blocks ask for; return what is told of each.

    Raises ScheduleError if an annotation is no plan, or its block is not to be turned.
    """
    told: dict[str, str] = {}
    marked = [one for one in blocks_in(func.body) if TURNED in one.annotations]
    nests = top_statements(func) if marked else []
    for at, nest in enumerate(nests):
        loops, realize = _nest(nest)
        if not isinstance(realize, SBlockRealize) or TURNED not in realize.block.annotations:
            continue
        block = realize.block
        name, tile = str(block.name_hint), _tile(realize, loops)
        told[name] = str(tile)
        nests[at] = TurnedKernel(tile).write(name, _kept(block))
    for block in marked[len(told) :]:
        raise ScheduleError(f"Block {block.name_hint} is marked {TURNED}, but its loops are bound.")
    if not told:
        return func, told
    root = block_with(func.body.block, body=sequence(nests))
    return func.with_body(realize_with(func.body, root)), told


def _nest(stmt: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """Loops of a nest, and what is in them."""
    loops = []
    while isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.SERIAL:
        loops.append((stmt.loop_var, stmt.extent))
        stmt = stmt.body
    return loops, stmt


def _tile(realize: Any, loops: list[tuple[Any, Any]]) -> TurnedTile:
    block = realize.block
    turn, wanted = read_turn(block), [int(n) for n in block.annotations[TURNED]]
    reason = "it turns no rows into columns" if turn is None else why_not(turn)
    if turn is not None and not goes_through_all(block, realize.iter_values, loops):
        reason = "its loops are not those of its iterators"
    if reason or turn is None:
        raise ScheduleError(f"Block {block.name_hint} is marked {TURNED}, but {reason}.")
    return TurnedTile(turn, TurnPlan(*wanted))


def _kept(block: Any) -> dict[str, Any]:
    """What is asked of the stores of a block."""
    return {k: v for k, v in block.annotations.items() if k == EVICTION_POLICY}
