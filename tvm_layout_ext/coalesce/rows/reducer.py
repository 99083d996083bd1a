"""How the results of a reduction are combined, read off what its block does for one element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...errors import ScheduleError
from ...ir.conditions import is_zero
from ...ir.queries import is_among, is_load_of, loads_in, substitute, variables

_PAIRS = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)


@dataclass(frozen=True)
class Reducer:
    """Several results that are combined together: ``combined`` of those on the left and right."""

    starts: tuple[Any, ...]
    combined: tuple[Any, ...]
    left: tuple[Any, ...]
    right: tuple[Any, ...]

    def combine(self, left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
        """Combine results with others, or with what an element adds to them."""
        values = dict(zip((*self.left, *self.right), (*left, *right), strict=True))
        return [substitute(value, values) for value in self.combined]


def read_reducer(
    name: str, stores: Sequence[Any], starts: Sequence[Any]
) -> tuple[Reducer, list[Any]]:
    """Read a reduction's combiner, and what each element adds.

    Raises ScheduleError if threads could not combine what they found.
    """
    parts = [_part(store) for store in stores]
    firsts = [s.value for x in stores for s in starts if s.buffer.same_as(x.buffer)]
    left, right = (
        [tirx.Var(f"{side}{i}", s.buffer.dtype) for i, s in enumerate(stores)]
        for side in ("left", "right")
    )
    is_known = len(firsts) == len(stores) and all(part is not None for part in parts)
    combined = [_combined(s.value, stores, parts, left, right) for s in stores] if is_known else []
    names = [*left, *right]
    foreign = [v for x in combined for v in variables(x) if not is_among(v, names)]
    if not is_known or foreign:
        raise ScheduleError(
            f"In the body of block {name} is no reducer by which threads could combine what they "
            "found; known are sums, products, minima, maxima, and Select of a result or an element."
        )
    for store, first in zip(stores, firsts, strict=True):
        is_one = isinstance(first, tirx.IntImm | tirx.FloatImm) and first.value == 1
        neutral = {tirx.Add: is_zero(first), tirx.Mul: is_one}
        if not neutral.get(type(store.value), True):
            raise ScheduleError(
                f"Block {name} starts {store.buffer.name} from {first}, from which each of several "
                "threads would start; start from 0 for a sum, and from 1 for a product."
            )
    return Reducer(tuple(firsts), tuple(combined), tuple(left), tuple(right)), parts


def _part(store: Any) -> Any | None:
    """What an element adds to a result: the other operand than the result itself."""
    value = store.value
    if isinstance(value, tirx.Select):
        sides = value.true_value, value.false_value
    elif isinstance(value, _PAIRS):
        sides = value.a, value.b
    else:
        return None
    for one, other in (sides, sides[::-1]):
        reads_it = any(is_load_of(load, store.buffer) for load in loads_in(other))
        if is_load_of(one, store.buffer) and not reads_it:
            return other
    return None


def _combined(value: Any, stores: Any, parts: Any, left: Any, right: Any) -> Any:
    """Put names in the place of results and of what an element adds."""
    for store, one, other in zip(stores, left, right, strict=True):
        if isinstance(value, _PAIRS) and store.value.same_as(value):
            return type(value)(one, other)
    # Single variables go last, for they may occur in the others.
    for i in sorted(range(len(parts)), key=lambda i: isinstance(parts[i], tirx.Var)):
        part, name = parts[i], right[i]
        swap = (type(part), lambda n, p=part, r=name: r if tvm_ffi.structural_equal(n, p) else n)
        value = tvm_ffi.structural_map(value, [swap], order="post")

    def result(load: Any) -> Any:
        own = (
            one for store, one in zip(stores, left, strict=True) if is_load_of(load, store.buffer)
        )
        return next(own, load)

    return tvm_ffi.structural_map(value, [(tvm.ir.TensorLoad, result)], order="post")
