"""Read a mapped block for counting: its vectors, its guard, its stores and their choices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from .._compat import CHOICE
from ..analysis.access import Access, Nest, find_realize
from ..analysis.conditions import compares_values, conjuncts, selects_as_choices
from ..analysis.evaluate import evaluate
from ..analysis.sectors import sample_warps
from ..analysis.tir import depends_on, loads_in, substitute
from .guard_vectors import steadied

__all__ = [
    "MOST_WARPS",
    "Part",
    "Store",
    "Vector",
    "has_choices",
    "is_branched",
    "is_plain",
    "is_several",
    "read_part",
]

#: Warps that are counted one by one; of more, so many are drawn.
MOST_WARPS = 2048


@dataclass(frozen=True)
class Vector:
    """The vectorized loop of a block, if it has one, and the values of the others for each lane.

    Attributes
    ----------
    var : Var or None
        Of that loop.
    lanes : int
        Elements of a vector, 1 without one.
    env : dict
        Values of the other loops: arrays of (warp, lane).
    active : array of bool
        Lanes that the launch has, of (warp, lane).
    """

    var: Any
    lanes: int
    env: dict[Any, np.ndarray]
    active: np.ndarray

    def cuts(self, condition: Any) -> bool:
        """Whether a condition may differ among the elements of a vector."""
        return self.var is not None and depends_on(condition, self.var)

    def holds(self, condition: Any) -> np.ndarray:
        """Where a condition holds: an array of (element of the vector, warp, lane).

        One on loaded values may hold anywhere.
        """
        try:
            return self._spread(self._evaluate(condition) != 0)
        except KeyError:
            return self._spread(np.ones((), bool))

    def offsets(self, access: Access) -> np.ndarray:
        """The element of each access, as an array of (element of the vector, warp, lane)."""
        return self._spread(self._evaluate(access.offset))

    def _evaluate(self, expr: Any) -> np.ndarray:
        own = {} if self.var is None else {self.var: np.arange(self.lanes)[:, None, None]}
        return evaluate(expr, {**self.env, **own})

    def _spread(self, values: np.ndarray) -> np.ndarray:
        return np.broadcast_to(values, (self.lanes, *self.active.shape))


@dataclass(frozen=True)
class Store:
    """One store of a block; of a reduction to several results, all of them.

    Attributes
    ----------
    accesses : tuple of (Access, PrimExpr)
        Its loads and the store, each with what it is done under.
    choices : tuple of PrimExpr
        What its choices ask.
    """

    accesses: tuple[tuple[Access, Any], ...]
    choices: tuple[Any, ...]


@dataclass(frozen=True)
class Part:
    """A block as it is counted.

    Attributes
    ----------
    nest : Nest
    vector : Vector
    guard : PrimExpr
        Where the block runs, in terms of the loops around it.
    stores : tuple of Store
    """

    nest: Nest
    vector: Vector
    guard: Any
    stores: tuple[Store, ...]

    @property
    def asks_values(self) -> bool:
        """Whether loaded values decide what is loaded or stored."""
        conditions = [self.guard, *(choice for store in self.stores for choice in store.choices)]
        conditions += [under for store in self.stores for _, under in store.accesses]
        body = selects_as_choices(self.nest.block.body)
        return compares_values(body) or any(map(loads_in, conditions))

    @property
    def is_cut(self) -> bool:
        """Whether some condition differs among the elements of a vector."""
        conditions = [self.guard, *(choice for store in self.stores for choice in store.choices)]
        return any(self.vector.cuts(one) for one in conditions)


def read_part(sch: Any, block: Any, nest: Nest) -> Part:
    """Read the guard of a block, and its stores, in terms of the loops around it.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
    block : SBlockRV
    nest : Nest
        The block as it was read: plain, with ``if`` and ``let``, or a reduction to several results.
    """
    loop = next((loop for loop in nest.loops if loop.kind == "vectorized"), None)
    env, lanes = sample_warps(nest.loops, MOST_WARPS)
    vector = Vector(loop and loop.var, (loop and loop.size) or 1, env, lanes >= 0)
    analyzer = tvm.sym.Analyzer()
    for one in nest.loops:
        if one.size is not None and one.size > 1:
            analyzer.bind(one.var, tvm.ir.Range.from_min_extent(0, one.extent))
    realize = find_realize(sch, nest.block, [sch.get(ref) for ref in sch.get_loops(block)])
    pairs = zip(nest.block.iter_vars, realize.iter_values, strict=True)
    values = {axis.var: value for axis, value in pairs}

    def clear(condition: Any) -> Any:
        parts = [analyzer.simplify(substitute(p, values)) for p in conjuncts(condition)]
        return reduce(tirx.And, (_steady(part, vector, nest) for part in parts))

    guard, body = clear(realize.predicate), selects_as_choices(nest.block.body)
    if not is_plain(nest):
        always = tirx.const(1, "bool")
        unders = ([clear(one) for one in access.own_conditions] for access in nest.accesses)
        pairs = zip(nest.accesses, unders, strict=True)
        every = tuple((access, reduce(tirx.And, under, always)) for access, under in pairs)
        return Part(nest, vector, guard, (Store(every, ()),))
    accesses = iter(nest.accesses)
    stores = []
    for stmt in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
        taken = [(next(accesses), under) for under in _conditions(stmt, clear)]
        stores.append(Store(tuple(taken), tuple(map(clear, _choices(stmt)))))
    return Part(nest, vector, guard, tuple(stores))


def _steady(condition: Any, vector: Vector, nest: Nest) -> Any:
    """Take the vector's variable out of a comparison that is the same in all lanes."""
    if vector.var is None:
        return condition
    extent = tirx.IntImm(vector.var.ty.dtype, vector.lanes)
    body = tirx.Evaluate(condition)
    loop = tirx.For(vector.var, extent * 0, extent, tirx.ForKind.VECTORIZED, body)
    return steadied(loop, nest.assumptions).body.value


def _choices(stmt: Any) -> list[Any]:
    found: list[Any] = []

    def look(call: Any) -> None:
        if getattr(call.op, "name", "") == CHOICE:
            found.append(call.args[0])

    tvm_ffi.structural_walk(stmt, [(tvm.ir.Call, look)])
    return found


def has_choices(nest: Nest) -> bool:
    """Whether a block loads by choice, so that a tile of it may hold more than it loaded."""
    found = _choices(nest.block.body)
    # Of a staged block they load from the tile.
    tvm_ffi.structural_walk(nest.block.body, [(tirx.Select, found.append)])
    return bool(found)


def _conditions(stmt: Any, clear: Any) -> list[Any]:
    """What each load and store of a statement is done under, in the order of the accesses."""
    under: list[tuple[Any, Any]] = []

    def look(call: Any) -> None:
        if getattr(call.op, "name", "") == CHOICE:
            condition = clear(call.args[0])
            under.extend((load, condition) for load in loads_in(call.args[1]))
            under.extend((load, tirx.Not(condition)) for load in loads_in(call.args[2]))

    found: list[Any] = []
    tvm_ffi.structural_walk(stmt, [(tvm.ir.Call, look)])
    always = tirx.const(1, "bool")

    def load(node: Any) -> None:
        held = [condition for other, condition in under if other.same_as(node)]
        found.append(reduce(tirx.And, held, always))

    rules = [(tvm.ir.TensorLoad, load), (tirx.BufferStore, lambda _: found.append(always))]
    tvm_ffi.structural_walk(stmt, rules)
    return found


def is_plain(nest: Nest) -> bool:
    """Whether a body is stores, or an atomic, and each of its accesses is one of the nest's."""
    body = nest.block.body
    parts = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    kinds = tirx.BufferStore | tirx.Evaluate
    found = sum(len(_conditions(part, lambda condition: condition)) for part in parts)
    return all(isinstance(part, kinds) for part in parts) and found == len(nest.accesses)


def is_branched(nest: Nest) -> bool:
    """Whether a body has ``if`` or ``let`` statements, and no vector is cut by what they ask."""
    loops = nest.loops
    if any(loop.is_reduction for loop in loops) or is_plain(nest):
        return False
    lanes = [loop.var for loop in loops if loop.kind == "vectorized"]
    asked = [one for access in nest.accesses for one in access.conditions]
    return not any(depends_on(one, var) for one in asked for var in lanes)


def is_several(nest: Nest) -> bool:
    """Whether a block reduces to several results, each access an element in each iteration."""
    alone = not any(loop.kind == "vectorized" for loop in nest.loops)
    block = nest.block
    several = len(block.writes) > 1 and any(loop.is_reduction for loop in nest.loops)
    return several and alone and not nest.conditions and not _choices(block.body)
