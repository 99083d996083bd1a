"""Math functions of device code, by the names that TVM's CUDA lowering gives them.

Float types narrower than 32 bits compute in float32 and round once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..model.values import cast, is_float
from .fma import fused
from .words import WORD_FUNCTIONS

Function = Callable[..., Any]


def _gamma(x: float) -> float:
    try:
        return math.gamma(x)
    except (ValueError, OverflowError):
        return math.nan if math.isnan(x) or x < 0 else math.inf


def _round_away(x: Any) -> Any:
    """Round halves away from zero, as C's ``round``."""
    return np.copysign(np.floor(np.abs(x) + x.dtype.type(0.5)), x)


#: What NumPy has by the same name, and what it calls arc and so on.
_SAME = (
    "exp exp2 expm1 log log2 log10 log1p tanh sin cos tan sinh cosh sqrt cbrt floor ceil trunc "
    "rint fabs abs fmod hypot copysign nextafter ldexp fmin fmax"
)
_ARCS = "sin cos tan sinh cosh tanh"
_MATH: dict[str, Function] = {
    **{name: getattr(np, name) for name in _SAME.split()},
    **{f"a{name}": getattr(np, f"arc{name}") for name in _ARCS.split()},
    "exp10": lambda x: np.power(x.dtype.type(10), x),
    "rsqrt": lambda x: x.dtype.type(1) / np.sqrt(x),
    "erf": np.vectorize(math.erf, [np.float64]),
    "erfc": np.vectorize(math.erfc, [np.float64]),
    "tgamma": np.vectorize(_gamma, [np.float64]),
    "nearbyint": np.rint,
    "round": _round_away,
    "pow": np.power,
    "atan2": np.arctan2,
    "min": np.fmin,
    "max": np.fmax,
    "fdividef": np.true_divide,
}


def popcount(x: Any) -> Any:
    """Bits set in each value's two's complement form."""
    unsigned = np.asarray(x).astype(f"u{np.asarray(x).dtype.itemsize}")
    return np.bitwise_count(unsigned)


def _leading_zeros(x: Any) -> Any:
    bits = np.asarray(x).dtype.itemsize * 8
    value = np.asarray(x).astype(f"u{bits // 8}")
    for shift in (1, 2, 4, 8, 16, 32):
        if shift < bits:
            value = value | value >> np.asarray(shift, value.dtype)
    return bits - np.bitwise_count(value).astype(np.int32)


def _first_set(x: Any) -> Any:
    """Position of the lowest set bit from 1, or 0 if none is set."""
    lowest = np.asarray(x) & -np.asarray(x)
    bits = lowest.dtype.itemsize * 8
    return np.where(lowest == 0, 0, bits - _leading_zeros(lowest))


_INTEGER: dict[str, Function] = {
    **WORD_FUNCTIONS,
    "__popc": popcount,
    "__popcll": popcount,
    "__clz": _leading_zeros,
    "__clzll": _leading_zeros,
    "__ffs": _first_set,
    "__ffsll": _first_set,
    "abs": np.abs,
    "min": np.minimum,
    "max": np.maximum,
}


def _base_name(name: str) -> str | None:
    """``__expf``, ``expf``, ``hexp``, ``__habs`` and ``exp`` are all one function: ``exp``."""
    bare = name.removeprefix("__")
    for candidate in (bare, bare.removesuffix("f"), bare.removeprefix("h")):
        if candidate in _MATH or candidate == "fma":
            return candidate
    return None


def _rounded(function: Function, result: np.dtype[Any]) -> Function:
    """Compute in float32 if the type is narrower, then round to the result type."""
    wide = np.dtype(np.float64 if result.itemsize == 8 else np.float32)

    def run(*arguments: Any) -> Any:
        raised = [a.astype(wide) if is_float(a.dtype) else a for a in map(np.asarray, arguments)]
        return cast(np.asarray(function(*raised)), result)

    return run


def extern(name: str, result: np.dtype[Any]) -> Function | None:
    """NumPy function for a call of a device function."""
    if name in _INTEGER and not is_float(result):
        integer = _INTEGER[name]
        return lambda *a: np.asarray(integer(*a)).astype(result)
    base = _base_name(name)
    if base == "fma":
        return fused(result)
    return _rounded(_MATH[base], result) if base else None
