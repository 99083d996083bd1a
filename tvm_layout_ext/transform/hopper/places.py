"""Places in a kernel, as numbers of blocks, rows and pixels are: none is negative."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ..launch.divide_places import divided


def divided_as_places(stmt: Any) -> Any:
    """A kernel in which places are divided by symbolic extents without a correction of the sign.

    Extents are positive in a kernel that has blocks. Where TVM has to correct the sign of each
    quotient, an index through several dims becomes hundreds of operations.
    """
    return divided(stmt, lambda var: True)


def named(var: Any, value: Any, knows_sizes: bool) -> list[Any]:
    """Statements that name a value of 32 bits; where sizes are symbolic, a register keeps it.

    TVM writes the value of a ``Bind`` wherever its name is used, and simplifies it there. By
    symbolic sizes that made 750 KB of CUDA of a kernel of attention, for which nvrtc took 20 s.
    """
    if knows_sizes:
        return [tirx.Bind(var, value)]
    held = tirx.decl_buffer((1,), "int32", f"{var.name}_kept", scope="local")
    return [tirx.AllocBuffer(held), tirx.BufferStore(held, value, [0]), tirx.Bind(var, held[0])]
