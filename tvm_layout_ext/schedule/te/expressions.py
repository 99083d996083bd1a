"""TVM's functions that make tensors, axes and expressions, with errors of one sentence."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable
from typing import Any

from ...errors import LayoutExtError, ScheduleError
from ...text import shortened


def told(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of TVM's ``te``, so that what it refuses is a ScheduleError of one sentence.

    None, at which some of these end the process, is refused where there is no default. An error
    within a function of the user's, e.g. the one that ``te.compute`` calls, stays as it is: its
    traceback shows the line.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        _refuse_none(name, signature.bind(*args, **kwargs))
        try:
            return function(*args, **kwargs)
        except LayoutExtError:
            raise
        except Exception as error:
            if _is_in_code_of(error, (*args, *kwargs.values())):
                raise
            values = [shortened(repr(value)) for value in args]
            values += [f"{key}={shortened(repr(value))}" for key, value in kwargs.items()]
            said = shortened(str(error).strip().split("\n")[0].rstrip(". "), 200)
            raise ScheduleError(
                f"te.{name} cannot take ({', '.join(values)}): TVM says {said!r}."
            ) from error

    return wrapped


def _refuse_none(name: str, given: inspect.BoundArguments) -> None:
    for parameter in given.signature.parameters.values():
        value = given.arguments.get(parameter.name, inspect.Parameter.empty)
        values = value if isinstance(value, tuple) else [value]
        if parameter.default is parameter.empty and any(one is None for one in values):
            raise ScheduleError(f"te.{name} needs a value of {parameter.name}, not None.")


def _is_in_code_of(error: Exception, given: tuple[Any, ...]) -> bool:
    codes = [code for value in given if (code := getattr(value, "__code__", None))]
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))
