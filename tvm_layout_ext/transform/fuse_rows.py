"""Write the kernels of chains of rows that ``sch.fuse_rows`` asked for."""

from __future__ import annotations

from tvm import tirx

from .. import decisions
from ..coalesce.rows.chain import NAME
from ..coalesce.rows.write import write_chains
from ..ir.annotations import FUSE_ROWS
from .base import function_pass


@function_pass(asks=FUSE_ROWS)
def FuseRows(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that puts chains of blocks over the same rows into one kernel each.

    A block annotated ``layout_ext.fuse_rows`` is the last of a chain: seven numbers, the fields of
    :class:`.plan.RowPlan`, and the names of its blocks. A thread keeps its part of a row in
    registers, or in shared memory, or reads it again.

    Does not handle, and refuses by name: what :func:`.chain.read_chain` refuses.
    """
    func, told = write_chains(func)
    for name, text in told.items():
        decisions.note(NAME, name, text)
    return func
