"""The numbers that tf32 has: those of ``float32`` with 10 of their 23 bits of mantissa."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Sign, exponent and the 10 upper bits of the mantissa, which tensor cores take of a number.
KEPT_BITS = 0xFFFFE000
#: Half of the last of these bits, and the largest number that they make.
_HALF, _LARGEST = np.uint32(0x1000), np.uint32(0x7F7FE000)


def rounded_to_tf32(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array of the nearest numbers that tf32 has; halves away from zero, the largest finite.

    Examples
    --------
    >>> float(rounded_to_tf32(np.float32([1 + 2**-11]))[0]) == 1 + 2**-10
    True
    """
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    nearest = ((bits + _HALF) & np.uint32(KEPT_BITS)).view(np.float32)
    largest = _LARGEST.view(np.float32)
    return np.where(np.isfinite(array), np.clip(nearest, -largest, largest), array)
