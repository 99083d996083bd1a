"""Tell that arrays, or a function, are those of a ready operator, and at what shape."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tvm import tirx

from ...errors import LayoutExtError
from .functions import bare, same_function
from .operator import Operator, Shape, find_operator, known_operators

#: Extents by which an argument tells which dimension it has where; the later ones are counts of
#: what the former share.
PROBES = (6007, 5003, 4001, 3001, 2003, 1009, 503)
#: An argument may be so much larger than a dimension, as where its border is cut off.
BORDER = 16


class DimPlace(NamedTuple):
    """Where an operator's inputs tell one of its dimensions, and by how much they are larger."""

    input: int
    axis: int
    border: int


@lru_cache(maxsize=256)
def probe(operator: Operator, dtype: str) -> tuple[tuple[Any, ...], int, tuple[DimPlace, ...]]:
    """An operator's tensors at :data:`PROBES`, how many are inputs, and where each dimension is."""
    primes = PROBES[: len(operator.dims)]
    tensors = tuple(operator.compute(primes, dtype))
    inputs = [one for one in tensors if not getattr(one.op, "input_tensors", ())]
    places = []
    for prime in primes:
        found = [
            DimPlace(at, axis, extent - prime)
            for at, one in enumerate(inputs)
            for axis, extent in enumerate(_extents(one))
            if 0 <= extent - prime < BORDER
        ]
        places.append(min(found, key=lambda place: place.border))
    return tensors, len(inputs), tuple(places)


def shape_of(operator: Operator, dtype: str, given: Sequence[Sequence[int]]) -> Shape | None:
    """The shape at which an operator takes inputs of some extents; None if it takes none such."""
    tensors, count, places = probe(operator, dtype)
    if [len(one) for one in given] != [len(one.shape) for one in tensors[:count]]:
        return None
    shape = tuple(given[at][axis] - border for at, axis, border in places)
    if not all(n > 0 for n in shape):
        return None
    wanted = map(_extents, operator.compute(shape, dtype)[:count])
    return shape if list(map(list, given)) == list(wanted) else None


def recognise(func: tirx.PrimFunc, name: str) -> tuple[Operator, Shape, str] | None:
    """Find the shape and type at which an operator computes what a function does."""
    if name not in known_operators():
        return None
    operator = find_operator(name)
    types = [str(getattr(param, "dtype", "")) for param in func.params]
    wanted = None
    for dtype in operator.dtypes if operator.dims else ():
        try:
            tensors, count, _ = probe(operator, dtype)
            if [str(one.dtype) for one in tensors] != types:
                continue
            shape = shape_of(operator, dtype, list(map(_extents, func.params[:count])))
            if shape is None:
                continue
            wanted = wanted or bare(func)
            function = operator.unscheduled(operator.check_shape(shape), dtype)["main"]
        except (LayoutExtError, RuntimeError, ValueError):
            continue
        if same_function(bare(function), wanted):
            return operator, shape, dtype
    return None


def _extents(argument: Any) -> list[int]:
    """Constant extents of an argument; 0 stands for one that is not."""
    shape = getattr(argument, "shape", ())
    return [int(n) if isinstance(n, int | tirx.IntImm) else 0 for n in shape]
