"""``a * b + c`` rounded once, as a GPU's fused multiply-add does it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

Ternary = Callable[[Any, Any, Any], Any]

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
#: Bits of a float64 below the last place of a narrower type.
_SPARE = {np.dtype(np.float32): 29, np.dtype(np.float16): 42, _BFLOAT16: 45}
#: Types whose products a GPU joins with sums.
TYPES = (np.dtype(np.float64), *_SPARE)
#: Splits the digits of a float64 in halves whose products are exact.
_SPLITTER = np.float64((1 << 27) + 1)


@cache
def fused(dtype: np.dtype[Any]) -> Ternary:
    """Return the function of three values of a type.

    In the narrow types results are exact but for those below the least normal number, where nvcc's
    fast math has zeros of float32. In float64 they may be off by one place, next to a tie.
    """
    return _in_float64 if dtype == np.float64 else _by_float64(dtype)


def _by_float64(dtype: np.dtype[Any]) -> Ternary:
    """The function of a type whose products float64 holds exactly."""
    spare = _SPARE[dtype]
    below, tie = np.int64((1 << spare) - 1), np.int64(1 << (spare - 1))

    def run(a: Any, b: Any, c: Any) -> Any:
        total = np.multiply(a, b, dtype=np.float64)
        total = total + c
        ties = (total.view(np.int64) & below) == tie
        if ties.any():
            total = _untied(ties, a, b, c)
        return (_rounded(total, spare) if dtype == _BFLOAT16 else total).astype(dtype)

    return run


def _rounded(total: Any, spare: int) -> Any:
    """Round to the nearest, and ties to even, which ``ml_dtypes`` does by way of float32."""
    bits = total.view(np.int64)
    bits = bits + ((1 << (spare - 1)) - 1) + (bits >> spare & 1)
    return (bits >> spare << spare).view(np.float64)


def _untied(ties: Any, a: Any, b: Any, c: Any) -> Any:
    """Sums in float64, of which those that only look like ties are moved off them."""
    product = np.multiply(a, b, dtype=np.float64)
    total = product + c
    lost = _lost(total, product, np.asarray(c, np.float64))
    return np.where(ties & (lost != 0), np.nextafter(total, np.copysign(np.inf, lost)), total)


def _in_float64(a: Any, b: Any, c: Any) -> Any:
    product = a * b
    total = product + c
    lost = _lost(total, product, c) + _lost_of_product(product, a, b)
    return np.where(np.isfinite(lost), total + lost, total)


def _lost(total: Any, a: Any, b: Any) -> Any:
    """What a sum lost by rounding (Knuth's TwoSum)."""
    back = total - a
    return (a - (total - back)) + (b - back)


def _lost_of_product(product: Any, a: Any, b: Any) -> Any:
    """What a product lost by rounding (Dekker's)."""
    (x, low_x), (y, low_y) = _split(a), _split(b)
    return ((x * y - product) + x * low_y + low_x * y) + low_x * low_y


def _split(a: Any) -> tuple[Any, Any]:
    wide = a * _SPLITTER
    high = wide - (wide - a)
    return high, a - high
