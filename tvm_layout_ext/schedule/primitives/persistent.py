"""``sch.persistent``: as many blocks as there are multiprocessors take tile after tile."""

from __future__ import annotations

from typing import Any

from ...errors import ScheduleError
from ...ir.annotations import PERSISTENT
from ...ir.queries import thread_tag
from ..handles import find_loop


def persistent(sch: Any, loop: Any) -> None:
    """Launch as many blocks as there are multiprocessors; each takes tile after tile.

    The warpgroup that copies goes on to the next tile while the others store the last one, and the
    start of a block is paid for once. Called "persistent kernels" in CUTLASS and Triton. Only
    kernels of ``use_tensor_core(block, "wgmma")`` can be persistent; ``loop`` is the one bound to
    the grid.
    """
    nest = find_loop(sch, loop, "persistent")
    if not thread_tag(nest).startswith("blockIdx."):
        raise ScheduleError(
            f"persistent needs a loop that is bound to blockIdx; {nest.loop_var.name} is not."
        )
    sch.annotate(loop, PERSISTENT, 1)
