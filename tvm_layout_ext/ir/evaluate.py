"""Evaluating TIR's integer expressions for arrays of values: an interpreter over NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from .ops import CHOICE, FLOOR, LIKELY, ROUND, TRUNC

#: What a symbolic size counts as; odd, so that nothing is aligned by chance.
STAND_IN = 1021


def _truncated(a: Any, b: Any) -> Any:
    return np.trunc(a / b).astype(np.int64)


#: NumPy's functions for the operations of two numbers.
ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
    tirx.Min: np.minimum,
    tirx.Max: np.maximum,
    tirx.LT: np.less,
    tirx.LE: np.less_equal,
    tirx.GT: np.greater,
    tirx.GE: np.greater_equal,
    tirx.EQ: np.equal,
    tirx.NE: np.not_equal,
    tirx.And: np.logical_and,
    tirx.Or: np.logical_or,
    tirx.Div: lambda a, b: a / b if "f" in (a.dtype.kind, b.dtype.kind) else _truncated(a, b),
    tirx.Mod: np.fmod,
    tirx.BitwiseAnd: np.bitwise_and,
    tirx.BitwiseOr: np.bitwise_or,
    tirx.BitwiseXor: np.bitwise_xor,
    tirx.LShift: np.left_shift,
    tirx.RShift: np.right_shift,
}
_CALLS: dict[str, Callable[..., Any]] = {
    CHOICE: np.where,
    LIKELY: np.asarray,
    FLOOR: np.floor,
    ROUND: np.round,
    TRUNC: np.trunc,
}
#: Calls whose values are known where those of their arguments are; bit operations are none.
KNOWN_CALLS = tuple(_CALLS)


def evaluate(expr: Any, env: Mapping[Any, Any]) -> np.ndarray:
    """Evaluate an index for arrays of values; KeyError if a part is no arithmetic.

    Variables that ``env`` does not have are symbolic sizes and count as 1021. The elements of a
    ramp lie along the last axis, so where there are ramps, arrays of values end in an axis of 1.
    """
    # What indices are made of comes first.
    rule = ARITHMETIC.get(type(expr))
    if rule is not None:
        return np.asarray(rule(evaluate(expr.a, env), evaluate(expr.b, env)))
    if isinstance(expr, tirx.Var):
        value = env.get(expr, STAND_IN)
        if value is None:
            raise KeyError(expr.name)
        return np.asarray(value)
    if isinstance(expr, tirx.IntImm | int):
        return np.asarray(int(expr), np.int64)
    if isinstance(expr, tirx.FloatImm):
        return np.asarray(expr.value, str(expr.ty.dtype))
    if isinstance(expr, tirx.Select):
        parts = (expr.condition, expr.true_value, expr.false_value)
        return np.where(*(evaluate(part, env) for part in parts))
    if isinstance(expr, tirx.Cast):
        value, dtype = evaluate(expr.value, env), str(expr.ty.dtype)
        # Integers are kept as they are: all have 64 bits here.
        return value.astype(dtype) if "float" in dtype or value.dtype.kind == "f" else value
    if isinstance(expr, tirx.Not):
        return np.logical_not(evaluate(expr.a, env))
    if isinstance(expr, tirx.BitwiseNot):
        return np.invert(evaluate(expr.a, env))
    if isinstance(expr, tirx.Ramp):
        return evaluate(expr.base, env) + evaluate(expr.stride, env) * np.arange(int(expr.lanes))
    if isinstance(expr, tirx.Broadcast):
        return evaluate(expr.value, env)
    if isinstance(expr, tvm.ir.Call):
        return np.asarray(_CALLS[expr.op.name](*(evaluate(arg, env) for arg in expr.args)))
    raise KeyError(type(expr).__name__)


def known_value(expr: Any, env: Mapping[Any, Any]) -> np.ndarray | None:
    """Evaluate an expression as :func:`evaluate` does; None where that raises KeyError."""
    try:
        return evaluate(expr, env)
    except KeyError:
        return None


def bind_lets(env: dict[Any, Any], lets: Sequence[tuple[Any, Any]]) -> None:
    """Add variables that stand for expressions; None for those that are not arithmetic."""
    for var, value in lets:
        env[var] = known_value(value, env)


def placeholder_extent(extent: Any) -> int:
    """Size of a loop or a step; a symbolic one as if every variable were 1021."""
    if isinstance(extent, int | tirx.IntImm):
        return int(extent)
    return int(np.max(evaluate(extent, {})))
