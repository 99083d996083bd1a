"""Checks of plain arguments that every public entry makes in the same words."""

from __future__ import annotations

import operator
from typing import Any

from tvm import tirx

from .errors import LayoutExtError


def whole(value: Any) -> int | None:
    """Return the value of anything that is an integer: int, NumPy's, an IntImm; else None."""
    if isinstance(value, tirx.IntImm):
        return int(value)
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        return None
    return operator.index(value)


def whole_number(what: str, value: Any, least: int, error: type[LayoutExtError]) -> int:
    """Return ``value`` as an int of at least ``least``; raise ``error``, which names ``what``."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise error(f"{what} must be a whole number, not {value!r}.") from None
    if number < least:
        raise error(f"{what} must be at least {least}, not {number}.")
    return number
