"""What TIR's operators do in device code: C's integer rules, IEEE rounding of each float type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import tirx

from ...ir import queries
from ...ir.evaluate import ARITHMETIC
from ..model.values import is_float


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


def _named(*kinds: type) -> dict[str, Callable[[Any, Any], Any]]:
    return {kind.__name__: ARITHMETIC[kind] for kind in kinds}


#: TIR node name -> function of two values of the node's operand type.
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    **_named(tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod, tirx.Mod),
    **_named(tirx.BitwiseAnd, tirx.BitwiseOr, tirx.BitwiseXor),
    "Div": _divide,
    "Min": _minimum,
    "Max": _maximum,
    "LShift": _shift_left,
    "RShift": _shift_right,
}
COMPARISONS = _named(*queries.COMPARISONS)


def binary(name: str, right: Any) -> Callable[[Any, Any], Any]:
    """Return the function of an operator, a cheaper one where the right operand allows."""
    if name in ("LShift", "RShift") and isinstance(right, int) and 0 <= right < 32:
        return np.left_shift if name == "LShift" else np.right_shift
    return BINARY.get(name) or COMPARISONS[name]
