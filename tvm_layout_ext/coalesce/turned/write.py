"""Put the kernels of annotated blocks that turn tiles into a function."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ...errors import ScheduleError
from ...ir.annotations import EVICTION_POLICY, TURNED
from ...ir.queries import blocks_in
from ...ir.rebuild import block_with, realize_with, sequence
from ...ir.walk import top_statements
from .emit import TurnedKernel
from .move import read_turn, why_not
from .plan import Tile, TurnPlan


def write_tiles(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, dict[str, str]]:
    """Write the kernels that blocks ask for; return what is told of each.

    Raises ScheduleError if an annotation is no plan, or its block is not to be turned.
    """
    told: dict[str, str] = {}
    for block in (one for one in blocks_in(func.body) if TURNED in one.annotations):
        name, wanted = str(block.name_hint), list(block.annotations[TURNED])
        turn = read_turn(block)
        reason = "it turns no rows into columns" if turn is None else why_not(turn)
        if reason or turn is None:
            raise ScheduleError(f"Block {name} is marked {TURNED}, but {reason}.")
        tile = Tile(turn, TurnPlan(*map(int, wanted)))
        told[name] = str(tile)
        func = _with_kernel(func, block, TurnedKernel(tile).write(name, _kept(block)))
    return func, told


def _kept(block: Any) -> dict[str, Any]:
    """What is asked of the stores of a block."""
    return {k: v for k, v in block.annotations.items() if k == EVICTION_POLICY}


def _with_kernel(func: tirx.PrimFunc, block: Any, kernel: Any) -> tirx.PrimFunc:
    root = func.body.block
    nests = [
        kernel if any(block.same_as(own) for own in blocks_in(stmt)) else stmt
        for stmt in top_statements(func)
    ]
    return func.with_body(realize_with(func.body, block_with(root, body=sequence(nests))))
