"""``a * b + c`` rounded once, as a GPU's fused multiply-add does it.

Float64 holds the products of narrower types exactly. Sums of float16 are exact as well; others are
rounded to 53 digits and then to their own, so that of random float32 one in half a billion is off
by one place. Results below the least normal float32 are kept, where fast math has zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

Ternary = Callable[[Any, Any, Any], Any]

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
#: Types whose products a GPU joins with sums.
TYPES = (*map(np.dtype, ("float64", "float32", "float16")), _BFLOAT16)
#: Bits of a float64 below the last place of a bfloat16.
_SPARE = 45
#: Splits the digits of a float64 in halves whose products are exact.
_SPLITTER = np.float64((1 << 27) + 1)


def fused(dtype: np.dtype[Any]) -> Ternary:
    """Return the function of three NumPy values of a type."""
    if dtype == np.float64:
        return _in_float64
    narrow = _to_bfloat16 if dtype == _BFLOAT16 else lambda total: total.astype(dtype)

    def run(a: Any, b: Any, c: Any) -> Any:
        total = np.multiply(a, b, dtype=np.float64)
        is_own = total.ndim and total.shape == c.shape
        return narrow(np.add(total, c, out=total if is_own else None))

    return run


def _to_bfloat16(total: Any) -> Any:
    """Round to the nearest, and ties to even, which ``ml_dtypes`` does by way of float32."""
    bits = np.asarray(total).view(np.int64)
    bits = bits + ((1 << (_SPARE - 1)) - 1) + (bits >> _SPARE & 1)
    return (bits >> _SPARE << _SPARE).view(np.float64).astype(_BFLOAT16)


def _in_float64(a: Any, b: Any, c: Any) -> Any:
    """Add what product and sum lost by rounding; next to a tie it may be off by one place."""
    product = a * b
    total = product + c
    lost = _lost(total, product, c) + _lost_of_product(product, a, b)
    return np.where(np.isfinite(lost), total + lost, total)


def _lost(total: Any, a: Any, b: Any) -> Any:
    """What a sum lost by rounding (Knuth's TwoSum)."""
    back = total - a
    return (a - (total - back)) + (b - back)


def _lost_of_product(product: Any, a: Any, b: Any) -> Any:
    """What a product lost by rounding (Dekker's TwoProduct)."""
    (x, low_x), (y, low_y) = _split(a), _split(b)
    return ((x * y - product) + x * low_y + low_x * y) + low_x * low_y


def _split(a: Any) -> tuple[Any, Any]:
    wide = a * _SPLITTER
    high = wide - (wide - a)
    return high, a - high
