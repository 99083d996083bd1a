"""Products that share a factor and a tile: a thread has the sums of all of them at once.

As in a gated MLP, where ``silu(x @ w1) * (x @ w3)`` takes the same row and column of two products.
The other factor's tile has a part for each member, one behind the other. Where it is B, a row of
sums has those of one member behind those of the other; where it is A, each has rows of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import sym, tirx

from ...errors import ScheduleError
from ...ir.queries import loads_in, size_of, substitute, uses


@dataclass(frozen=True)
class Members:
    """So many products, numbered by a variable of the factor that each has of its own."""

    variable: Any
    count: int
    side: str  #: ``a`` or ``b``

    def values(self, number: int) -> dict[Any, Any]:
        """The value of the variable for one of them."""
        return {self.variable: tirx.IntImm("int32", number)}


@dataclass(frozen=True)
class MemberRows:
    """Rows of a tile in shared memory, and the rows of a member's factor that go there."""

    at: int
    start: int
    rows: int
    values: dict[Any, Any]
    map: str  #: Name of the tensor map


def are_read(value: Any, sums: Any) -> bool:
    """Whether a value depends on the sums of more products of a batch than one."""
    first, *others = (one.indices[0] for one in loads_in(value) if one.source.same_as(sums))
    return any(not tvm_ffi.structural_equal(one, first) for one in others)


def numbered(name: str, value: Any, sums: Any, count: int) -> Any:
    """A value that reads sums of members by their numbers.

    Raises ScheduleError if it reads others, or none of a member.
    """
    found = set()

    def load(node: Any) -> Any:
        if not node.source.same_as(sums):
            return node
        number, *place = node.indices
        known = sym.Analyzer().simplify(number)
        found.add(int(known) if isinstance(known, tirx.IntImm) else -1)
        return tirx.BufferLoad(sums, [known, *place])

    value = tvm_ffi.structural_map(value, [(tvm.ir.TensorLoad, load)], order="post")
    if found != set(range(count)):
        raise ScheduleError(
            f"Block {name} reads products {sorted(found)} of a batch of {count}; all of them, each "
            "by a constant, are legal."
        )
    return value


def member_side(name: str, variable: Any, a: Any, b: Any) -> str:
    """Which factor members have of their own; ScheduleError if it is not one of two."""
    found = [
        side
        for side, one in (("a", a), ("b", b))
        if one.others or any(uses(index, variable) for index in one.source.indices)
    ]
    if len(found) != 1:
        raise ScheduleError(
            f"{name} has products inside of a tile that share {2 - len(found)} factors; those that "
            "share one are legal."
        )
    return found[0]


def values_of(copy: Any, number: Any, loop: Any) -> list[Any]:
    """What a copy reads: one value, or where members have buffers of their own one for each.

    ``number`` is the first of the indices that it fills, ``loop`` that over members, if any.
    """
    value, indices = copy.body.value, copy.body.indices
    if loop is None or len(indices) < 3 or not loop.loop_var.same_as(number):
        return [value]
    numbers = (tirx.IntImm(indices[0].ty, i) for i in range(int(loop.extent)))
    simple = sym.Analyzer().simplify
    found = [simple(substitute(value, {indices[0]: one})) for one in numbers]
    first, *others = ([one.source for one in loads_in(each)] for each in found)
    same = (len(one) == len(first) and all(map(tirx.Var.same_as, one, first)) for one in others)
    return [value] if all(same) else found


def same_place(one: Any, other: Any) -> bool:
    """Whether two loads read the same element of buffers of one shape."""
    first, second = (list(map(size_of, load.source.shape)) for load in (one, other))
    places = zip(one.indices, other.indices, strict=False)
    return first == second and all(tvm_ffi.structural_equal(a, b) for a, b in places)
