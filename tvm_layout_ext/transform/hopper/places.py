"""Places in a kernel, as numbers of blocks, rows and pixels are: none is negative."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx


def divided_as_places(stmt: Any) -> Any:
    """A kernel in which places are divided by symbolic extents without a correction of the sign.

    Extents are positive in a kernel that has blocks. Where TVM has to correct the sign of each
    quotient, an index through several dims becomes hundreds of operations.
    """
    rules = [(tirx.FloorDiv, _divided), (tirx.FloorMod, _divided)]
    return tvm_ffi.structural_map(stmt, rules, order="post")


def named(var: Any, value: Any, knows_sizes: bool) -> list[Any]:
    """Statements that name a value of 32 bits; where sizes are symbolic, a register keeps it.

    TVM writes the value of a ``Bind`` wherever its name is used, and simplifies it there. By
    symbolic sizes that made 750 KB of CUDA of a kernel of attention, for which nvrtc took 20 s.
    """
    if knows_sizes:
        return [tirx.Bind(var, value)]
    held = tirx.decl_buffer((1,), "int32", f"{var.name}_kept", scope="local")
    return [tirx.AllocBuffer(held), tirx.BufferStore(held, value, [0]), tirx.Bind(var, held[0])]


def _divided(node: Any) -> Any:
    if isinstance(node.b, tirx.IntImm) or not _is_place(node.a):
        return node
    how = tirx.truncdiv if isinstance(node, tirx.FloorDiv) else tirx.truncmod
    return how(node.a, node.b)


def _is_place(expr: Any) -> bool:
    """Whether an expression is never negative, as numbers of blocks, heads and rows are not."""
    if isinstance(expr, tirx.IntImm):
        return int(expr) >= 0
    if isinstance(expr, tirx.Cast):
        return _is_place(expr.value)
    if isinstance(expr, tirx.Add | tirx.Mul):
        return _is_place(expr.a) and _is_place(expr.b)
    if isinstance(expr, tirx.FloorDiv | tirx.FloorMod | tirx.Div | tirx.Mod):
        return _is_place(expr.a)
    return isinstance(expr, tirx.Var)
