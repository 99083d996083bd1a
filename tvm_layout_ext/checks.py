"""Checks of plain arguments that every public entry makes in the same words."""

from __future__ import annotations

import operator
from typing import Any

from .errors import LayoutExtError

__all__ = ["whole_number"]


def whole_number(what: str, value: Any, least: int, error: type[LayoutExtError]) -> int:
    """Return a value as an int, NumPy's integers included.

    Parameters
    ----------
    what : str
        What the number is, for the message.
    value : object
        What the user gave.
    least : int
        Smallest legal value.
    error : type
        Raised, in one sentence, if the value is no whole number or too small.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise error(f"{what} must be a whole number, not {value!r}.") from None
    if number < least:
        raise error(f"{what} must be at least {least}, not {number}.")
    return number
