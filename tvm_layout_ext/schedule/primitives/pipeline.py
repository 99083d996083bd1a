"""``sch.pipeline``: keep several versions of every copy in a loop."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ...errors import ScheduleError
from ...ir.queries import is_global
from ..handles import find_loop
from .double_buffer import check_async_copy, check_num_stages, double_buffer


def pipeline(
    sch: Any, loop: Any, num_stages: int = 2, *, async_copy: bool | str = "auto"
) -> list[Any]:
    """Keep ``num_stages`` versions of all that a loop copies from global to shared memory.

    The same as :func:`double_buffer` for each block below the loop whose only statement copies an
    element of a global buffer into a shared one; these copies are returned. Triton's
    ``tl.range(..., num_stages=S)``; see :func:`.versions_for_triton_stages` for what S is here.
    ``num_stages`` and ``async_copy`` are as of :func:`double_buffer`.
    """
    check_num_stages(num_stages)
    check_async_copy(async_copy)
    name = find_loop(sch, loop, "pipeline").loop_var.name
    copies = [block for block in sch.get_child_blocks(loop) if _fills_shared(sch.get(block))]
    if not copies:
        raise ScheduleError(
            f"Loop {name} holds no block that copies from global to shared "
            "memory, so there is nothing to pipeline; cache_read an operand and compute it there."
        )
    for block in copies:
        double_buffer(sch, block, num_stages, async_copy=async_copy)
    return copies


def _fills_shared(block: Any) -> bool:
    scopes = {region.source.scope() for region in block.reads}
    return (
        len(block.writes) == 1
        and block.writes[0].source.scope() in ("shared", "shared.dyn")
        and (scopes == {"global"} or _gathers(block.body))
    )


def _gathers(stmt: Any) -> bool:
    """Whether a statement copies an element of a global buffer, wherever its indices lie."""
    value = stmt.value if isinstance(stmt, tirx.BufferStore) else None
    return isinstance(value, tvm.ir.TensorLoad) and is_global(value.source)
