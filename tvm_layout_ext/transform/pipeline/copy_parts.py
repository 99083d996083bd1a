"""A copy of one thread from global to shared memory, taken apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from ...ir.conditions import choice_parts, conjuncts, is_zero
from ...ir.queries import depends_on, substitute


class UnfitError(Exception):
    """Why a copy cannot be asynchronous."""


@dataclass(frozen=True)
class ThreadCopy:
    """A store of one thread, maybe in a vector loop of variable ``lane``.

    Where a guard is false, nothing is stored; where a condition is false, zeros are.
    """

    store: Any
    load: Any
    guards: list[Any]
    conditions: list[Any]
    lane: Any
    lanes: int

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return int(self.load.source.dtype.bits) // 8

    @property
    def bytes(self) -> int:
        """Bytes in all."""
        return self.lanes * self.element_bytes

    def first(self, expr: Any) -> Any:
        """An expression of lane 0."""
        lane = self.lane
        return expr if lane is None else substitute(expr, {lane: tirx.IntImm(str(lane.ty), 0)})


def read_copy(stmt: Any) -> ThreadCopy:
    """Take a copy apart; UnfitError if it is no plain copy."""
    lane, lanes, guards, conditions = None, 1, [], []
    if isinstance(stmt, tirx.For):
        lane, lanes = stmt.loop_var, int(stmt.extent)
        stmt = stmt.body
    while isinstance(stmt, tirx.IfThenElse) and stmt.else_case is None:
        guards += conjuncts(stmt.condition)
        stmt = stmt.then_case
    if lane is not None and any(depends_on(guard, lane) for guard in guards):
        # Zeros in the lanes beyond would go where another thread stores.
        raise UnfitError("a guard cuts its vectors")
    if not isinstance(stmt, tirx.BufferStore):
        raise UnfitError("it does more than copy")
    value = stmt.value
    while (choice := choice_parts(value)) is not None:
        condition, value, other = choice
        if not is_zero(other):
            raise UnfitError(f"out of range it stores {other}, and cp.async only 0")
        conditions += conjuncts(condition)
    if not isinstance(value, tvm.ir.TensorLoad):
        raise UnfitError("it computes on the way")
    if lane is None and isinstance(stmt.indices[-1], tirx.Ramp):
        return _of_ramps(stmt, value, guards, conditions)
    return ThreadCopy(stmt, value, guards, conditions, lane, lanes)


def _of_ramps(store: Any, load: Any, guards: list[Any], conditions: list[Any]) -> ThreadCopy:
    """A copy that the program itself wrote as a vector."""
    to, start = store.indices[-1], load.indices[-1]
    if conditions or not isinstance(start, tirx.Ramp):
        raise UnfitError("its vector is not one run of elements")
    lane = tirx.Var("lane", to.base.ty)
    one_store = tirx.BufferStore(
        store.buffer,
        tirx.BufferLoad(load.source, [start.base + lane * start.stride]),
        [to.base + lane * to.stride],
    )
    return ThreadCopy(one_store, one_store.value, guards, conditions, lane, int(to.lanes))
