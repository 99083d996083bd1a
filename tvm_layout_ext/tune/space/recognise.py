"""Tell that a function is a ready operator, and at what shape."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from tvm import tirx

from ...errors import LayoutExtError
from .functions import bare, same_function
from .operator import Operator, Shape, find_operator, known_operators

#: Extents that tell the dimensions of an operator apart in the shapes of its arguments, also where
#: an argument is a little larger than a dimension.
_PROBES = (1009, 2003, 3001, 4001, 5003, 6007, 7001)


def recognise(func: tirx.PrimFunc, name: str) -> tuple[Operator, Shape, str] | None:
    """Find the shape and type at which an operator computes what a function does."""
    if name not in known_operators():
        return None
    operator = find_operator(name)
    extents = [_extents(param) for param in func.params]
    types = [str(getattr(param, "dtype", "")) for param in func.params]
    wanted = None
    for dtype in operator.dtypes:
        places, its_types = _probe(name, dtype)
        if not places or its_types != tuple(types):
            continue
        try:
            shape = tuple(extents[argument][axis] for argument, axis in places)
            wanted = wanted or bare(func)
            function = operator.unscheduled(operator.check_shape(shape), dtype)["main"]
        except (LayoutExtError, IndexError, RuntimeError, ValueError):
            continue
        if same_function(bare(function), wanted):
            return operator, shape, dtype
    return None


@cache
def _probe(name: str, dtype: str) -> tuple[tuple[tuple[int, int], ...], tuple[str, ...]]:
    """Where each dimension appears among the arguments, and the arguments' types."""
    operator = find_operator(name)
    # Descending: of attention, heads of queries are no fewer than those of keys.
    primes = _PROBES[: len(operator.dims)][::-1]
    try:
        tensors = operator.compute(primes, dtype)
    except (LayoutExtError, RuntimeError, ValueError):
        return (), ()
    shapes = [_extents(tensor) for tensor in tensors]
    places = [_place(shapes, prime) for prime in primes]
    found = tuple(place for place in places if place is not None)
    whole = found if len(found) == len(primes) else ()
    return whole, tuple(str(tensor.dtype) for tensor in tensors)


def _place(shapes: Sequence[Sequence[int]], extent: int) -> tuple[int, int] | None:
    for argument, shape in enumerate(shapes):
        if extent in shape:
            return argument, list(shape).index(extent)
    return None


def _extents(argument: Any) -> list[int]:
    """Constant extents of an argument; 0 stands for one that is not."""
    shape = getattr(argument, "shape", ())
    return [int(n) if isinstance(n, int | tirx.IntImm) else 0 for n in shape]
