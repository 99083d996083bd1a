"""Write the kernels of chains of rows that ``sch.fuse_rows`` asked for."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from .. import decisions
from ..coalesce.rows.chain import NAME, RowChain, read_chain
from ..coalesce.rows.emit import RowKernel
from ..coalesce.rows.plan import RowPlan
from ..errors import ScheduleError
from ..ir.annotations import FUSE_ROWS
from ..ir.queries import blocks_in, uses
from ..ir.rebuild import block_with, realize_with, sequence
from ..ir.walk import top_statements
from .base import function_pass

_NUMBERS = 7


@function_pass(asks=FUSE_ROWS)
def FuseRows(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that puts chains of blocks over the same rows into one kernel each.

    A block annotated ``layout_ext.fuse_rows`` is the last of a chain: seven numbers, the fields of
    :class:`.plan.RowPlan`, and the names of its blocks. A thread keeps its part of a row in
    registers, or in shared memory, or reads it again.

    Does not handle, and refuses by name: what :func:`.chain.read_chain` refuses.
    """
    for block in (block for block in blocks_in(func.body) if FUSE_ROWS in block.annotations):
        name, wanted = str(block.name_hint), list(block.annotations[FUSE_ROWS])
        try:
            plan = RowPlan(*map(int, wanted[:_NUMBERS]))
        except (TypeError, ValueError) as error:
            raise ScheduleError(
                f"Block {name} asks {NAME} by {wanted}; it takes the {_NUMBERS} numbers of a plan, "
                "and blocks."
            ) from error
        chain = read_chain(func, [str(one) for one in wanted[_NUMBERS:]])
        decisions.note(NAME, name, plan.text(chain))
        func = _with_kernel(func, chain, RowKernel(chain, plan).write(name))
    return func


def _with_kernel(func: tirx.PrimFunc, chain: RowChain, kernel: Any) -> tirx.PrimFunc:
    """Put the kernel in the place of the chain's last statement, and drop the others."""
    last = max(chain.places)
    left = [
        kernel if place == last else stmt
        for place, stmt in enumerate(top_statements(func))
        if place == last or place not in chain.places
    ]
    root = func.body.block
    kept = [b for b in root.alloc_buffers if any(uses(stmt, b) for stmt in left)]
    block = block_with(root, body=sequence(left), alloc_buffers=kept)
    return func.with_body(realize_with(func.body, block))
