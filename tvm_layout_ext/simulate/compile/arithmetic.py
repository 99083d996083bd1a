"""What TIR's operators do in device code: C's integer rules, IEEE rounding of each float type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..model.values import is_float


def _remainder(a: Any, b: Any) -> Any:
    return np.fmod(a, b)


def _divide(a: Any, b: Any) -> Any:
    """Quotient; of integers rounded toward zero."""
    return np.true_divide(a, b) if is_float(np.result_type(a)) else (a - np.fmod(a, b)) // b


def _bits(a: Any) -> int:
    return np.result_type(a).itemsize * 8


def _shift_left(a: Any, b: Any) -> Any:
    """Shift as the hardware does: by the register width or more leaves nothing."""
    return np.where((b < 0) | (b >= _bits(a)), np.result_type(a).type(0), np.left_shift(a, b))


def _shift_right(a: Any, b: Any) -> Any:
    bits = _bits(a)
    return np.right_shift(a, np.where((b < 0) | (b >= bits), bits - 1, b).astype(np.result_type(b)))


def _minimum(a: Any, b: Any) -> Any:
    """Return the smaller; a NaN loses to a number, as in CUDA's ``fmin``."""
    return np.fmin(a, b) if is_float(np.result_type(a)) else np.minimum(a, b)


def _maximum(a: Any, b: Any) -> Any:
    return np.fmax(a, b) if is_float(np.result_type(a)) else np.maximum(a, b)


#: TIR node name -> function of two values of the node's operand type.
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": _divide,
    "Mod": _remainder,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Min": _minimum,
    "Max": _maximum,
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
    "LShift": _shift_left,
    "RShift": _shift_right,
}
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def binary(name: str, right: Any) -> Callable[[Any, Any], Any]:
    """Return the function of an operator, a cheaper one where the right operand allows."""
    if name in ("LShift", "RShift") and isinstance(right, int) and 0 <= right < 32:
        return np.left_shift if name == "LShift" else np.right_shift
    return BINARY.get(name) or COMPARISONS[name]
