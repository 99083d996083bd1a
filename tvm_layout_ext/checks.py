"""Checks of plain arguments that every public entry makes in the same words."""

from __future__ import annotations

import operator
import os
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from .errors import LayoutExtError, ScheduleError


def whole(value: Any) -> int | None:
    """Return the value of anything that is an integer: int, NumPy's, an IntImm; else None."""
    if isinstance(value, tirx.IntImm):
        return int(value)
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def is_one_of(value: Any, legal: Container[Any]) -> bool:
    """Whether a value is one of some words or numbers; an array, compared to one, is no answer."""
    return isinstance(value, str | int) and value in legal


def is_function(value: Any) -> bool:
    """Whether a value can be called, and is no expression or tensor of TVM's, which can be, too."""
    return callable(value) and not isinstance(value, tvm_ffi.Object)


def path_of(what: str, value: Any, error: type[LayoutExtError]) -> Path:
    """Return a path; raise ``error``, which names ``what``, where it is none."""
    if not isinstance(value, str | os.PathLike) or not _may_name_a_file(os.fspath(value)):
        raise error(f"{what} is a path, not {value!r}.")
    return Path(value)


def _may_name_a_file(path: Any) -> bool:
    """Whether a system takes a path, and a log can name it: UTF-8, no NUL, names of 255 bytes."""
    return (
        isinstance(path, str)
        and "\0" not in path
        and path.encode(errors="ignore").decode() == path
        and all(len(name.encode()) <= 255 for name in path.split(os.sep))
    )


def takes_module(cls: Any) -> Any:
    """Let a pass say in one sentence that it was called with something else than a module."""
    run = cls.__call__

    def called(self: Any, mod: Any) -> Any:
        if not isinstance(mod, tvm.IRModule):
            raise ScheduleError(f"{cls.__name__} takes an IRModule, not a {type(mod).__name__}.")
        return run(self, mod)

    cls.__call__ = called
    return cls


def whole_number(
    what: str, value: Any, least: int, error: type[LayoutExtError], most: int | None = None
) -> int:
    """Return ``value`` as an int within bounds; raise ``error``, which names ``what``."""
    number = whole(value)
    if number is None:
        raise error(f"{what} must be a whole number, not {value!r}.")
    if number < least:
        raise error(f"{what} must be at least {least}, not {number}.")
    if most is not None and number > most:
        raise error(f"{what} must be at most {most}, not {number}.")
    return number


def positive_numbers(
    what: str, values: Any, count: int, error: type[LayoutExtError]
) -> tuple[int, ...]:
    """Return so many ints above zero; raise ``error``, which names ``what``."""
    found = [whole(one) for one in values] if isinstance(values, Sequence) else []
    numbers = tuple(number for number in found if number is not None and 0 < number < 1 << 31)
    if len(found) != count or len(numbers) != count:
        raise error(f"{what} must be {count} positive whole numbers, not {values!r}.")
    return numbers
