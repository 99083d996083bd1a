"""Types and operands of TIR expressions, as index analysis needs them."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

#: Stands for an extent that is not known.
LONGEST = 1 << 30


def children(node: Any) -> list[Any]:
    """List the operands whose values make up a node's."""
    if isinstance(node, tirx.Cast | tirx.Broadcast):
        return [node.value]
    if isinstance(node, tirx.Ramp):
        return [node.base, node.stride]
    if isinstance(node, tirx.Let):
        return [node.value, node.body]
    if isinstance(node, tirx.Select):
        return [node.condition, node.true_value, node.false_value]
    if isinstance(node, tvm.ir.Call):
        return [*node.args]
    return [getattr(node, side) for side in ("a", "b") if hasattr(node, side)]


def padded(extent: Any) -> int:
    """Round an extent up to a power of two; one that is not known is taken as very long."""
    size = int(extent.value) if isinstance(extent, tirx.IntImm) else LONGEST
    return 1 << max(0, min(size, LONGEST) - 1).bit_length()


def is_integer(node: Any) -> bool:
    """Whether an expression has integer or boolean elements."""
    return str(node.ty).startswith(("int", "uint", "bool"))


def is_bool(node: Any) -> bool:
    """Whether an expression is a scalar truth value."""
    return str(node.ty) == "bool"


def range_of(node: Any) -> tuple[int, int]:
    """Least and largest number of an integer type."""
    name = str(node.ty)
    if is_bool(node):
        return 0, 1
    bits = int(name.lstrip("uint"))
    return (0, (1 << bits) - 1) if name[0] == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)
