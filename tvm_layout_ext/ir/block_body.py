"""What a block's body accesses under which conditions, through ``if`` and ``let`` statements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from .conditions import selects_as_choices
from .ops import CHOICE
from .pointers import atomic_of
from .queries import are_equal, is_call_of, loads_in, nodes_in, substitute
from .walk import own_parts, statements_of, walk


@dataclass(frozen=True)
class BodyAccess:
    """One access of a body."""

    buffer: Any
    kind: str  #: ``load``, ``store`` or ``atomic``
    #: In the block's iterators, with the values of ``let`` in the place of their names.
    indices: tuple[Any, ...]
    #: Of the ``if`` statements around it, each of which must hold; of a load beside ``if`` and
    #: ``let`` statements also of the choices around it that ask indices alone.
    conditions: tuple[Any, ...] = ()

    def is_like(self, other: BodyAccess) -> bool:
        """Whether another access is of the same kind and element."""
        alike = self.kind == other.kind and self.buffer.same_as(other.buffer)
        return alike and are_equal(self.indices, other.indices)


def read_body(body: Any) -> Iterator[BodyAccess]:
    """Loads, stores and atomics of a body, in the order of the program."""
    plain = _is_stores(body)
    for stmt, context in walk(body if plain else selects_as_choices(body)):
        values: dict[Any, Any] = {}
        for var, value in context.lets:
            values[var] = substitute(value, values)
        conditions = tuple(substitute(one, values) for one in context.conditions)
        for part in own_parts(stmt):
            yield from _loads(part, values, conditions, plain)


def _is_stores(body: Any) -> bool:
    return all(isinstance(part, tirx.BufferStore) for part in statements_of(body))


def _loads(
    node: Any, values: Mapping[Any, Any], conditions: tuple[Any, ...], plain: bool
) -> list[BodyAccess]:
    """List what an expression, or a statement without others in it, accesses."""
    found: list[BodyAccess] = []
    updated = atomic_of(node)
    chosen = [] if plain else _choices_around(node, values)

    def note(buffer: Any, kind: str, indices: Sequence[Any], holds: Sequence[Any] = ()) -> None:
        at = tuple(substitute(index, values) for index in indices)
        found.append(BodyAccess(buffer, kind, at, (*conditions, *holds)))

    def load(one: Any) -> None:
        kind = "atomic" if updated is not None and one.same_as(updated) else "load"
        holds = [condition for other, condition in chosen if other.same_as(one)]
        note(one.source, kind, one.indices, holds)

    def store(one: Any) -> None:
        note(one.buffer, "store", one.indices)

    tvm_ffi.structural_walk(node, [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store)])
    return found


def _choices_around(node: Any, values: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    """Loads in choices by indices, each with what must hold for it."""
    found: list[tuple[Any, Any]] = []
    for condition, *sides in _choices(node):
        holds = substitute(condition, values)
        if not loads_in(holds):
            for side, known in zip(sides, (holds, tirx.Not(holds)), strict=True):
                found.extend((load, known) for load in loads_in(side))
    return found


def _choices(node: Any) -> list[Any]:
    return [call.args for call in nodes_in(node, tvm.ir.Call) if is_call_of(call, CHOICE)]


def without_lets(body: Any) -> Any:
    """Put the values of ``let`` statements in the place of their names, for reading only."""
    return _inlined(body, {})


def _inlined(stmt: Any, values: dict[Any, Any]) -> Any:
    """Rebuild a statement without names; ``values`` gets what it binds."""
    if isinstance(stmt, tirx.SeqStmt):
        parts: list[Any] = []
        for part in stmt.seq:
            if isinstance(part, tirx.Bind):
                values[part.var] = substitute(part.value, values)
            else:
                parts.append(_inlined(part, values))
        return parts[0] if len(parts) == 1 else tirx.SeqStmt(parts)
    if isinstance(stmt, tirx.IfThenElse):
        cases = [
            None if case is None else _inlined(case, dict(values))
            for case in (stmt.then_case, stmt.else_case)
        ]
        return tirx.IfThenElse(substitute(stmt.condition, values), *cases)
    return substitute(stmt, values)


def binds_truth(body: Any) -> bool:
    """Whether a body names a truth value, of which TVM 0.27 cannot make a vector."""
    return any(str(bind.var.ty) == "bool" for bind in nodes_in(body, tirx.Bind))


def choices_of_values(body: Any) -> list[Any]:
    """Conditions of choices in a body that is more than stores, in its iterators.

    Choices are ``if_then_else``, and ``Select`` of loads by indices alone: beside ``if`` and
    ``let`` statements TVM does vectors of them element by element.
    """
    if _is_stores(body):
        return []
    return [condition for condition, *_ in _choices(selects_as_choices(without_lets(body)))]


def is_mappable(body: Any) -> bool:
    """Whether a body is stores and atomics, with values named by ``let`` and choices by ``if``."""
    simple = (tirx.SeqStmt, tirx.IfThenElse, tirx.BufferStore, tirx.Bind)
    return all(isinstance(stmt, simple) or atomic_of(stmt) is not None for stmt, _ in walk(body))


def is_reduction_step(body: Any) -> bool:
    """Whether a body is stores, with values named by ``let``: a reduction to one result or more."""
    return all(isinstance(part, tirx.BufferStore | tirx.Bind) for part in statements_of(body))


def one_element(body: Any) -> bool:
    """Whether a body stores exactly one element whatever its conditions are, and the same one."""
    return _stored(without_lets(body)) is not None


def _stored(stmt: Any) -> Any | None:
    """The one store of a statement, or of each of its branches, without values of names."""
    if isinstance(stmt, tirx.BufferStore):
        return stmt
    if not isinstance(stmt, tirx.IfThenElse) or stmt.else_case is None:
        return None
    first, other = _stored(stmt.then_case), _stored(stmt.else_case)
    if first is None or other is None or not first.buffer.same_as(other.buffer):
        return None
    return first if are_equal(first.indices, other.indices) else None
