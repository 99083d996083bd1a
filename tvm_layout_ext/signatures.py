"""Arguments held to their annotations, of functions that say nothing of them themselves."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from numbers import Integral
from typing import Any

import numpy as np

from .errors import LayoutExtError, ScheduleError

#: What may stand for a type.
_KINDS: dict[type, Any] = {int: Integral, bool: bool | np.bool_}


def typed(
    function: Callable[..., Any],
    *kinds: type,
    error: type[LayoutExtError] = ScheduleError,
) -> Callable[..., Any]:
    """Refuse arguments that are annotated as one of some kinds, and are none.

    What Python itself refuses is left to it.
    """
    known = {one.__name__: _KINDS.get(one, one) for one in kinds}
    signature = inspect.signature(function)
    wanted = {
        parameter.name: (name, known[name])
        for parameter in signature.parameters.values()
        if (name := str(parameter.annotation).partition("[")[0]) in known
    }

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return function(*args, **kwargs)
        for parameter, (name, kind) in wanted.items():
            if parameter in given and not isinstance(given[parameter], kind):
                raise error(
                    f"{parameter} of {function.__name__} is of type {name}, not "
                    f"{given[parameter]!r}."
                )
        return function(*args, **kwargs)

    return checked if wanted else function
