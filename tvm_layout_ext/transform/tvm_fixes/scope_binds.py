"""Give what a kernel binds from memory a scope, as TVM's plan of shared memory wants."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ...ir.queries import nodes_in
from ...ir.rebuild import sequence
from ...ir.walk import is_launch
from ..base import function_pass, mapped

_DYNAMIC = "shared.dyn"


def _binds_from_memory(stmt: Any) -> bool:
    return isinstance(stmt, tirx.Bind) and bool(nodes_in(stmt.value, tvm.ir.TensorLoad))


def _scoped(launch: Any) -> Any:
    """A launch whose statements behind all allocations are a loop of one iteration."""
    if not is_launch(launch) or not isinstance(launch.body, tirx.SeqStmt):
        return launch
    stmts = [*launch.body.seq]
    begin = 1 + max((i for i, s in enumerate(stmts) if isinstance(s, tirx.AllocBuffer)), default=-1)
    if not any(map(_binds_from_memory, stmts[begin:])):
        return launch
    loop = tirx.For(
        tirx.Var("once", "int32"),
        tirx.const(0, "int32"),
        tirx.const(1, "int32"),
        tirx.ForKind.SERIAL,
        sequence(stmts[begin:]),
    )
    body = sequence([*stmts[:begin], loop])
    return tirx.AttrStmt(launch.node, launch.attr_key, launch.value, body)


@function_pass()
def ScopeBinds(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that puts values bound from memory into a loop of one iteration.

    TVM 0.27's ``MergeSharedMemoryAllocations`` fails where a kernel has several dynamic buffers of
    shared memory and reads any buffer in a ``Bind`` that no loop, condition or store is around:
    sums of two results along rows that are staged do.
    """
    allocated = nodes_in(func.body, tirx.AllocBuffer)
    dynamic = [one for one in allocated if one.buffer.scope() == _DYNAMIC]
    if len(dynamic) < 2:
        return func
    return mapped(func, (tirx.AttrStmt, _scoped))
