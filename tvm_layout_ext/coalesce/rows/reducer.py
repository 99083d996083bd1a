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
from ...ir.queries import is_load_of, is_number, loads_in, substitute, variables

_PAIRS = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)


@dataclass(frozen=True)
class Reducer:
    """Several results that are combined together: start values, and ``combined`` of two names."""

    starts: tuple[Any, ...]
    combined: tuple[Any, ...]
    left: tuple[Any, ...]
    right: tuple[Any, ...]

    def combine(self, left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
        """Combine results with others, or with what an element adds to them."""
        both = zip((*self.left, *self.right), (*left, *right), strict=True)
        values = dict(both)
        return [substitute(value, values) for value in self.combined]


def read_reducer(name: str, stores: Sequence[Any], starts: Sequence[Any]) -> tuple[Reducer, Any]:
    """Read a reduction's combiner, and what each element adds.

    Raises
    ------
    ScheduleError
        If threads could not combine what they found.
    """
    parts = [_part(store) for store in stores]
    firsts = [next((s.value for s in starts if s.buffer.same_as(x.buffer)), None) for x in stores]
    if any(value is None for value in (*parts, *firsts)):
        raise _unknown(name)
    for store, first in zip(stores, firsts, strict=True):
        start_is_neutral = (
            is_zero(first) if isinstance(store.value, tirx.Add)
            else is_number(first, 1) or getattr(first, "value", 0) == 1
        )  # fmt: skip
        if isinstance(store.value, tirx.Add | tirx.Mul) and not start_is_neutral:
            raise ScheduleError(
                f"Block {name} starts {store.buffer.name} from {first}, from which each of several "
                "threads would start; start from 0 for a sum, and from 1 for a product."
            )
    left, right = (
        [tirx.Var(f"{side}{i}", s.buffer.dtype) for i, s in enumerate(stores)]
        for side in ("left", "right")
    )
    combined = [_combined(store.value, stores, parts, left, right) for store in stores]
    allowed = [*left, *right]
    for value in combined:
        foreign = [v for v in variables(value) if not any(v.same_as(one) for one in allowed)]
        if foreign or loads_in(value):
            raise _unknown(name)
    return Reducer(tuple(firsts), tuple(combined), tuple(left), tuple(right)), parts


def _unknown(name: str) -> ScheduleError:
    return ScheduleError(
        f"In the body of block {name} is no reducer by which threads could combine what they "
        "found; known are sums, products, minima, maxima, and Select of a result or an element."
    )


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
        if is_load_of(one, store.buffer) and not _reads(other, store.buffer):
            return other
    return None


def _reads(expr: Any, buffer: Any) -> bool:
    return any(is_load_of(load, buffer) for load in loads_in(expr))


def _combined(value: Any, stores: Any, parts: Any, left: Any, right: Any) -> Any:
    if isinstance(value, _PAIRS):
        own = next(i for i, s in enumerate(stores) if s.value.same_as(value))
        return type(value)(left[own], right[own])
    # Single variables go last, for they may occur in the others.
    order = sorted(range(len(parts)), key=lambda i: isinstance(parts[i], tirx.Var))
    for i in order:
        part, name = parts[i], right[i]
        swap = (type(part), lambda n, p=part, r=name: r if tvm_ffi.structural_equal(n, p) else n)
        value = tvm_ffi.structural_map(value, [swap], order="post")

    def result(load: Any) -> Any:
        for i, store in enumerate(stores):
            if is_load_of(load, store.buffer):
                return left[i]
        return load

    return tvm_ffi.structural_map(value, [(tvm.ir.TensorLoad, result)], order="post")
