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


def _extreme(wide: Any, plain: Any, is_better: Any) -> Callable[[Any, Any], Any]:
    """The smaller or the larger: a NaN of 32 bits loses to a number, as in CUDA's ``fmin``.

    Of floats of 16 bits TVM writes ``a < b ? a : b``, which keeps a NaN that comes second.
    """

    def chosen(a: Any, b: Any) -> Any:
        dtype = np.result_type(a)
        if not is_float(dtype):
            return plain(a, b)
        return np.where(is_better(a, b), a, b) if dtype.itemsize == 2 else wide(a, b)

    return chosen


def _named(*kinds: type) -> dict[str, Callable[[Any, Any], Any]]:
    return {kind.__name__: ARITHMETIC[kind] for kind in kinds}


#: TIR node name -> function of two values of the node's operand type.
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    **_named(tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod, tirx.Mod),
    **_named(tirx.BitwiseAnd, tirx.BitwiseOr, tirx.BitwiseXor),
    "Div": _divide,
    "Min": _extreme(np.fmin, np.minimum, np.less),
    "Max": _extreme(np.fmax, np.maximum, np.greater),
    "LShift": _shift_left,
    "RShift": _shift_right,
}
COMPARISONS = _named(*queries.COMPARISONS)


def binary(name: str, right: Any) -> Callable[[Any, Any], Any]:
    """Return the function of an operator, a cheaper one where the right operand allows."""
    if name in ("LShift", "RShift") and isinstance(right, int) and 0 <= right < 32:
        return np.left_shift if name == "LShift" else np.right_shift
    return BINARY.get(name) or COMPARISONS[name]
