"""TVM's functions that make tensors, axes and expressions, with errors of one sentence."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import te, tirx

from ...errors import LayoutExtError, ScheduleError
from ...text import shortened


def told(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of TVM's ``te``, so that what it refuses is a ScheduleError of one sentence.

    None, at which some of these end the process, is refused where there is no default, in lists,
    and as the result of a function of the user's, as ``te.compute`` calls. An error within such a
    function stays as it is: its traceback shows the line. A function that is made, as
    ``te.comm_reducer`` does, is wrapped alike.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # Python says which argument is missing.
        _refuse(name, given)
        try:
            made = function(
                *(_checked(name, value) for value in args),
                **{key: _checked(name, value) for key, value in kwargs.items()},
            )
        except LayoutExtError:
            raise
        except Exception as error:
            if _is_of_the_user(error):
                raise
            values = [shortened(repr(value)) for value in args]
            values += [f"{key}={shortened(repr(value))}" for key, value in kwargs.items()]
            said = shortened(str(error).strip().split("\n")[0].rstrip(". "), 200)
            raise ScheduleError(
                f"te.{name} cannot take ({', '.join(values)}): TVM says "
                f"{said or type(error).__name__!r}."
            ) from error
        return told(name, made) if isinstance(made, FunctionType) else made

    return wrapped


class _Node(type):
    """The class of what stands for a class of TVM's, of whose objects it says that they are its."""

    of: type

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.of)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return told(cls.__name__, cls.of)(*args, **kwargs)


def told_class(name: str, node: type) -> type:
    """As :func:`told` for a class of TVM's whose objects are made by calling it."""
    return _Node(name, (), {"of": node, "__doc__": node.__doc__})


class _Checked:
    """A function of the user's that may not return None; TVM reads its signature, or its code."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._name, self._function = name, function
        self.__signature__ = inspect.signature(function)
        self.__code__ = getattr(function, "__code__", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        made = self._function(*args, **kwargs)
        if _holds_none(made) or _loads_at_none(made):
            raise ScheduleError(
                f"{self!r}, which te.{self._name} calls, returns None or indexes by it."
            )
        return made

    def __repr__(self) -> str:
        return getattr(self, "__name__", None) or repr(self._function)


def _checked(name: str, value: Any) -> Any:
    is_function = isinstance(value, FunctionType | MethodType | functools.partial)
    return _Checked(name, value) if is_function else value


def _holds_none(value: Any) -> bool:
    if isinstance(value, te.TensorSlice):
        value = value.indices
    if isinstance(value, list | tuple | tvm.ir.Array):
        return any(map(_holds_none, value))
    return value is None


def _loads_at_none(expression: Any) -> bool:
    """Whether an index is None, as that of a new axis in NumPy."""
    found: list[bool] = []
    if isinstance(expression, tvm.ir.Expr):
        look = (tvm.ir.Call, lambda call: found.append(any(one is None for one in call.args)))
        tvm_ffi.structural_walk(expression, [look])
    return any(found)


def _refuse(name: str, given: inspect.BoundArguments) -> None:
    """Refuse arguments at which TVM ends the process, or never returns."""
    for parameter in given.signature.parameters.values():
        value = given.arguments.get(parameter.name, parameter.default)
        if value is not parameter.default and _holds_none(value):
            what = "a value" if value is None else "values without None"
            raise ScheduleError(f"te.{name} needs {what} of {parameter.name}, not {value!r}.")
        if parameter.name == "shape" and (wrong := [*_no_sizes(value)]):
            raise ScheduleError(f"te.{name} needs whole numbers as sizes, not {wrong[0]!r}.")
        if parameter.name == "dtype" and isinstance(value, str) and not value:
            raise ScheduleError(f"te.{name} needs a type of elements, such as float32, not ''.")


def _no_sizes(shape: Any) -> Iterator[Any]:
    """What is none in a shape, or in a list of shapes."""
    if isinstance(shape, list | tuple | tvm.ir.Array):
        for one in shape:
            yield from _no_sizes(one)
    elif isinstance(shape, te.Tensor | str | bytes | float | np.floating) or (
        isinstance(shape, int | np.integer | tirx.IntImm) and int(shape) < 0
    ):
        yield shape


def _is_of_the_user(error: Exception) -> bool:
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is _Checked.__call__.__code__ for frame, _ in frames)
