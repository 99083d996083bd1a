"""Write the kernels of tiles that ``auto_coalesce`` turns by aligned vectors."""

from __future__ import annotations

from tvm import tirx

from .. import decisions
from ..coalesce.turned.write import write_tiles
from ..ir.annotations import TURNED
from .base import function_pass


@function_pass(asks=TURNED)
def TurnTiles(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that turns rows which begin anywhere into columns by aligned vectors.

    A block annotated ``layout_ext.turned`` has the fields of :class:`.plan.TurnPlan`. Vectors of
    the source that a row has a part in are put down as they are, and vectors of the result are
    gathered from the tile.

    Does not handle, and refuses by name: what :func:`.move.read_turn` does not recognise.
    """
    func, told = write_tiles(func)
    for name, text in told.items():
        decisions.note("auto_coalesce", name, text)
    return func
