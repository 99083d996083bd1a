"""Compute a value in another layout, back to what is there already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from ...ir.queries import distinct, loads_in, substitute
from ...ir.rebuild import whole_region
from ...layout import LinearLayout
from ...layout.conversion.per_thread import per_thread
from ...layout.f2 import Columns
from ..fragments.elementwise import picked, registers_held
from ..fragments.nest import FragmentNest, FragmentTile, read_nest
from .cost import is_expensive_load, recompute_cost
from .graph import Graph, Op, Value, buffer_swapped, copied

Dims = tuple[int | None, ...]


def source_layout(layout: LinearLayout, dims: Dims, source: Value) -> LinearLayout | None:
    """Lay a fragment out so that each thread holds what its elements of a result are made of.

    ``dims`` names the dim of the result that each index is. None if the result lacks elements.
    """
    sizes = list(layout.out_sizes.values())
    named = [d for d in dims if d is not None]
    wanted = tuple(1 if d is None else sizes[d] for d in dims)
    if wanted != source.shape or len(set(named)) != len(named):
        return None
    bases = picked(layout, dims)
    projected = LinearLayout.from_bases(bases, source.layout.out_sizes)
    copies = Columns(projected.flat_basis("register")).free
    bases["register"] = [v for i, v in enumerate(bases["register"]) if not copies >> i & 1]
    return LinearLayout.from_bases(bases, source.layout.out_sizes)


def holds(source: Value, dims: Dims, layout: LinearLayout) -> bool:
    """Whether each thread already holds what its elements of a result are made of."""
    return registers_held(per_thread(layout), dims, per_thread(source.layout)) is not None


@dataclass
class Slice:
    """What must be computed to have a value in another layout."""

    #: The values, each with the layout that it is wanted in.
    layouts: dict[Value, LinearLayout] = field(default_factory=dict)
    #: Those of them that are there already.
    ready: dict[Value, Value] = field(default_factory=dict)
    #: Pairs of a result and an operand of which it needs the new one.
    moved: set[tuple[Value, Value]] = field(default_factory=set)
    #: Those whose operands were not looked at.
    stops: list[Value] = field(default_factory=list)
    #: Why there is no such slice, or nothing.
    problem: str = ""

    def ordered(self, graph: Graph) -> list[tuple[Value, Op]]:
        """List what is to be computed, operands first."""
        found = [(v, op) for v in self.layouts if (op := graph.definition(v)) is not None]
        return sorted(found, key=lambda pair: graph.ops.index(pair[1]))

    def add(self, other: Slice) -> bool:
        """Take over another slice; False if they want a value in two layouts."""
        if any(self.layouts.get(v, layout) != layout for v, layout in other.layouts.items()):
            return False
        self.layouts |= other.layouts
        self.ready |= other.ready
        self.moved |= other.moved
        return True

    def cost(self, graph: Graph, convert: Op) -> int:
        """Cost of computing all of it, what is needed as it was besides."""
        computed = {v: op for v, op in self.ordered(graph) if v not in self.ready}
        inside = [convert, *computed.values()]
        kept = [v for v in computed if any(user not in inside for user in graph.users(v))]
        for value in kept:
            operands = [read for read, _ in computed[value].reads]
            kept += [o for o in operands if o in computed and o not in kept]
        return sum(
            recompute_cost(op, self.layouts[v], kept=v in kept)
            for v, op in computed.items()
            if copied(op) is None
        )


def backward_slice(
    graph: Graph,
    value: Value,
    layout: LinearLayout,
    convert: Op,
    stop: Callable[[Op], bool] | None = None,
) -> Slice:
    """What must be computed to have a value in another layout, up to operands of ``stop`` nests."""
    found = Slice()
    wanted = [(value, layout)]
    while wanted and not found.problem:
        one, own = wanted.pop()
        if one in found.layouts:
            if found.layouts[one] != own:
                found.problem = f"{one.name} would be needed in two layouts"
            continue
        op = graph.definition(one)
        if op is None:
            found.problem = f"{one.name} is not made by one nest that could be repeated"
            continue
        found.layouts[one] = own
        if stop is not None and stop(op):
            found.stops.append(one)
        elif (other := _there(graph, one, own, convert)) is not None:
            found.ready[one] = other
        elif is_expensive_load(op):
            found.problem = f"{one.name} is loaded from global memory by all threads"
        else:
            wanted += _operands(found, op, own)
    return found


def _there(graph: Graph, value: Value, layout: LinearLayout, convert: Op) -> Value | None:
    """A copy of a value in this layout that is made straight behind it."""
    definition = graph.definition(value)
    assert definition is not None
    for op in graph.copies():
        copy, made = copied(op), op.result
        if op is convert or copy is None or copy.source is not value or not copy.is_plain:
            continue
        straight = op.scope == definition.scope and not _between(graph, definition, op)
        if straight and made.layout == layout and graph.definition(made) is op:
            return made
    return None


def _between(graph: Graph, first: Op, last: Op) -> bool:
    """Whether anything that reads a fragment stands between two nests."""
    inside = graph.ops[graph.ops.index(first) + 1 : graph.ops.index(last)]
    return any(copied(op) is None for op in inside)


def _operands(found: Slice, op: Op, layout: LinearLayout) -> list[tuple[Value, LinearLayout]]:
    """The operands of a nest that it cannot use as they are, with the layouts that it could."""
    wanted = []
    for operand, dims in op.reads:
        assert dims is not None  # op is a definition
        if holds(operand, dims, layout):
            continue
        own = source_layout(layout, dims, operand)
        if own is None or sum(read is operand for read, _ in op.reads) > 1:
            found.problem = f"{op.name} does not read {operand.name} element by element"
            break
        found.moved.add((op.result, operand))
        wanted.append((operand, own))
    return wanted


# Making nests


def clone(graph: Graph, found: Slice, done: dict[Value, Value]) -> dict[Value, Value]:
    """Compute what a slice lists, each nest behind the one that it repeats; the new values."""
    made = {**found.ready, **done}
    for value, op in found.ordered(graph):
        if value not in made:
            made[value] = _passed_through(graph, found, op, made) or _computed(
                graph, found, op, made
            )
    return made


def _passed_through(graph: Graph, found: Slice, op: Op, made: dict[Value, Value]) -> Value | None:
    """What a copy copies, if that is in the wanted layout by now."""
    copy, value = copied(op), op.result
    if copy is None or not copy.is_plain:
        return None
    moved = (value, copy.source) in found.moved
    source = made[copy.source] if moved else copy.source
    known = source.layout == found.layouts[value] and graph.definition(source) is not None
    return source if known else None


def _computed(graph: Graph, found: Slice, op: Op, made: dict[Value, Value]) -> Value:
    value = op.result
    new = graph.new_value(value, found.layouts[value], str(value.buffer.dtype))
    operands = {o: made[o] for result, o in found.moved if result is value}
    graph.insert(rebuilt(op, new, operands), op)
    return new


def rebuilt(op: Op, target: Value, operands: dict[Value, Value]) -> Op:
    """Write a nest that stores a fragment anew, for another fragment and with other operands."""
    tile = op.walk
    value = op.value
    for old, new in operands.items():
        value = buffer_swapped(value, old.buffer, new.buffer)
    reads = [(operands.get(read, read), dims) for read, dims in op.reads]
    return _written(op, target, tile.coordinates, value, tile.predicates, reads)


def copy_op(source: Value, target: Value, near: Op) -> Op:
    """Write a nest that copies a fragment to another one of its shape, to stand near a third."""
    kind = near.walk.coordinates[0].ty
    coordinates = [tirx.Var(f"c{d}", kind) for d in range(len(source.shape))]
    value = tirx.BufferLoad(source.buffer, coordinates)
    dims: Dims = tuple(range(len(source.shape)))
    return _written(near, target, coordinates, value, [], [(source, dims)])


def _written(
    near: Op, target: Value, coordinates: list[Any], value: Any, predicates: list[Any], reads: Any
) -> Op:
    stmt, nest = _nest(target.buffer, coordinates, value, predicates)
    store = tirx.BufferStore(target.buffer, value, coordinates)
    tile = FragmentTile(near.walk.fragment, coordinates, [], store, list(predicates))
    return Op(near.origin, near.scope, stmt, nest, tile, target, reads)


def _nest(
    target: Any, coordinates: list[Any], value: Any, predicates: list[Any]
) -> tuple[Any, FragmentNest]:
    """Loops over all of a buffer, and the same taken apart."""
    loops = [tirx.Var(f"i{d}", var.ty) for d, var in enumerate(coordinates)]
    at = dict(zip(coordinates, loops, strict=True))
    store = tirx.BufferStore(target, substitute(value, at), loops)
    loaded = distinct(load.source for load in loads_in(value))
    reads, writes = [whole_region(buffer) for buffer in loaded], [whole_region(target)]
    block = SBlock([], reads, writes, str(target.name), store, None, [], [], {})
    conditions = [substitute(predicate, at) for predicate in predicates]
    stmt: Any = SBlockRealize([], reduce(tirx.And, conditions) if conditions else True, block)
    for var, size in reversed(list(zip(loops, target.shape, strict=True))):
        stmt = tirx.For(var, 0, size, tirx.ForKind.SERIAL, stmt)
    nest = read_nest(stmt)
    assert nest is not None  # as it has just been written
    return stmt, nest
