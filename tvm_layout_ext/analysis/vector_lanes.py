"""Vector expressions as scalar ones of a lane number.

``T.Ramp(x, 2, 4) + T.Broadcast(y, 4)`` is ``x + lane * 2 + y`` for each ``lane`` from 0 to 3. So a
vector is one more axis to look along, and needs no rules of its own.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from .._compat import CHOICE
from ..errors import LayoutError

__all__ = ["Lanes", "lanes_of", "scalar_type"]

_PAIRS = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod),
    *(tirx.Min, tirx.Max, tirx.LShift, tirx.RShift),
    *(tirx.BitwiseAnd, tirx.BitwiseOr, tirx.BitwiseXor),
    *(tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or),
)


def lanes_of(node: Any) -> int:
    """Count the lanes of an expression.

    Raises
    ------
    LayoutError
        If only the hardware knows their number.
    """
    if "vscale" in str(node.ty):
        raise LayoutError(
            f"{node} has a scalable number of lanes; index analysis needs it to be known."
        )
    return int(tvm.DataType(str(node.ty)).lanes)


def scalar_type(node: Any) -> str:
    """Name the type of one lane.

    Examples
    --------
    >>> scalar_type(tirx.Ramp(tirx.Var("x", "int64"), 2, 4))
    'int64'
    """
    return str(node.ty).partition("x")[0]


class Lanes:
    """Writes vector expressions of one number of lanes as scalar ones.

    Attributes
    ----------
    variable : Var
        The lane.
    unknown : list of Var
        Stand-ins for vectors of which nothing is known.

    Examples
    --------
    >>> x, y = tirx.Var("x", "int32"), tirx.Var("y", "int32")
    >>> Lanes().scalar(tirx.Ramp(x, 2, 4) + tirx.Broadcast(y, 4))
    x + lane * 2 + y
    """

    def __init__(self) -> None:
        self.variable = tirx.Var("lane", "int32")
        self.unknown: list[Any] = []
        self._bound: dict[Any, Any] = {}

    def scalar(self, node: Any) -> Any:
        """Write what one lane of an expression has; a scalar is the same in all lanes."""
        if node.ty.is_scalar():
            return node
        if isinstance(node, tirx.Ramp):
            return node.base + self.variable.astype(str(node.base.ty)) * node.stride
        if isinstance(node, tirx.Broadcast):
            return node.value
        if isinstance(node, _PAIRS):
            return type(node)(self.scalar(node.a), self.scalar(node.b))
        return self._other(node)

    def _other(self, node: Any) -> Any:
        if isinstance(node, tirx.Not):
            return tirx.Not(self.scalar(node.a))
        if isinstance(node, tirx.Cast):
            return tirx.Cast(scalar_type(node), self.scalar(node.value))
        if isinstance(node, tirx.Select):
            parts = (node.condition, node.true_value, node.false_value)
            return tirx.Select(*map(self.scalar, parts))
        if isinstance(node, tirx.Let):
            return self._let(node)
        if isinstance(node, tvm.ir.TensorLoad) and node.source.ty.dtype.is_scalar():
            return tirx.BufferLoad(node.source, [self.scalar(index) for index in node.indices])
        if isinstance(node, tvm.ir.Call) and node.op.name == CHOICE:
            return tirx.if_then_else(*map(self.scalar, node.args))
        known = self._bound.get(node) if isinstance(node, tirx.Var) else None
        return self._stand_in(node) if known is None else known

    def _let(self, node: Any) -> Any:
        if node.var.ty.is_scalar():
            return tirx.Let(node.var, node.value, self.scalar(node.body))
        variable = tirx.Var(node.var.name, scalar_type(node.var))
        value = self.scalar(node.value)
        self._bound[node.var] = variable
        return tirx.Let(variable, value, self.scalar(node.body))

    def _stand_in(self, node: Any) -> Any:
        """Make a variable for what is opaque: a shuffle, a vector argument, another call."""
        variable = tirx.Var("unknown", scalar_type(node))
        self.unknown.append(variable)
        return variable
