"""Device functions that take words of 32 bits for their bytes or bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def _wide(low: Any, high: Any) -> Any:
    """Two words as one number."""
    upper = np.asarray(high).astype(np.uint64) << np.uint64(32)
    return upper | np.asarray(low).astype(np.uint64)


def _permuted_bytes(low: Any, high: Any, names: Any) -> Any:
    """Bytes of two words, each named by 4 bits, of which the highest is for signs, and 0 here."""
    both, named = _wide(low, high), np.asarray(names).astype(np.uint64)
    result = np.zeros_like(both)
    for place in range(4):
        byte = named >> np.uint64(4 * place) & np.uint64(7)
        result |= (both >> byte * np.uint64(8) & np.uint64(0xFF)) << np.uint64(8 * place)
    return result


def _shifted_left(low: Any, high: Any, bits: Any) -> Any:
    """The upper of two words, shifted left by up to 32 bits."""
    distance = np.minimum(np.asarray(bits).astype(np.uint64), np.uint64(32))
    return _wide(low, high) << distance >> np.uint64(32)


WORD_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "__byte_perm": _permuted_bytes,
    "__funnelshift_lc": _shifted_left,
}
