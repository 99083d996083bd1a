"""Rules that remove a conversion; each returns what it did, or nothing."""

from __future__ import annotations

from functools import reduce
from math import prod
from typing import Any

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from ...ir.queries import distinct, is_among, is_global, loads_in, substitute, variables
from ...ir.rebuild import whole_region
from ...layout import LinearLayout, Movement, movement
from ...layout.conversion.per_thread import per_thread
from ...layout.f2 import Columns
from ..fragments.elementwise import picked, registers_held
from ..fragments.nest import FragmentTile, read_nest
from .graph import Graph, Op, Value, buffer_swapped, copied, memory_loads

Dims = tuple[int | None, ...]


def moves_data(src: LinearLayout, dst: LinearLayout) -> bool:
    """Whether a conversion does more than rename registers."""
    return movement(src, dst) not in (Movement.NONE, Movement.REGISTERS)


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


class Conversion:
    """A nest that copies a fragment to another, which in layout ``wanted`` would move nothing."""

    def __init__(self, op: Op) -> None:
        copy = copied(op)
        assert copy is not None  # checked by whoever reads it
        self.op = op
        self.source, self.target, self.dims = copy
        self.is_plain = copy.is_plain
        wanted = source_layout(self.target.layout, self.dims, self.source)
        assert wanted is not None  # the dims are a permutation
        self.wanted: LinearLayout = wanted

    @property
    def moves(self) -> bool:
        """Whether it does more than rename registers."""
        return moves_data(self.source.layout, self.wanted)


# Folding


def drop_same(graph: Graph, one: Conversion) -> str:
    """A copy in the same layout: its readers read what it copies."""
    same = one.is_plain and one.wanted == one.source.layout
    if not (same and graph.definition(one.source) and graph.definition(one.target)):
        return ""
    graph.replace_uses(one.target, one.source)
    return f"readers take {one.source.name}, which has the same layout"


def fold_chain(graph: Graph, one: Conversion) -> str:
    """A conversion of a conversion: it converts what the first one does."""
    first = graph.definition(one.source)
    inner = None if first is None or copied(first) is None else Conversion(first)
    if inner is None or not inner.is_plain or graph.definition(inner.source) is None:
        return ""
    graph.swap(one.op, one.source, inner.source)
    return f"converts {inner.source.name} straight, not by way of {one.source.name}"


def drop_repeated(graph: Graph, one: Conversion) -> str:
    """The same conversion once more: its readers read the first one's result."""
    if graph.definition(one.source) is None or graph.definition(one.target) is None:
        return ""
    for other in map(Conversion, graph.copies()):
        same = other.source is one.source and other.dims == one.dims
        same = same and other.target.layout == one.target.layout
        known = graph.definition(other.target) is other.op and graph.dominates(other.op, one.op)
        if same and known and other.op is not one.op:
            graph.replace_uses(one.target, other.target)
            return f"readers take {other.target.name}, the same conversion of {one.source.name}"
    return ""


def fold_into_store(graph: Graph, one: Conversion) -> str:
    """A conversion that is stored in shared memory: its source is, for memory takes any layout."""
    made = graph.definition(one.source)
    if not one.is_plain or made is None or graph.definition(one.target) is None:
        return ""
    stores = [op for op in graph.users(one.target) if _is_shared_store(op)]
    stores = [op for op in stores if graph.dominates(made, op)]
    for op in stores:
        graph.swap(op, one.target, one.source)
    names = ", ".join(sorted({str(op.nest.store.buffer.name) for op in stores}))
    return f"{names} takes {one.source.name} as it lies, without a conversion" if stores else ""


def _is_shared_store(op: Op) -> bool:
    """Whether a nest stores elements of one fragment to shared memory."""
    is_read = op.tile is not None and len(op.reads) == 1 and op.reads[0][1] is not None
    return is_read and str(op.nest.store.buffer.scope()).startswith("shared")


# Computing in another layout


def move_up(graph: Graph, one: Conversion) -> str:
    """Convert what the source is made of, where that is less, and compute it as it is wanted."""
    made = graph.definition(one.source)
    if made is None or one.wanted == one.source.layout:
        return ""
    wanted = _operands(graph, made, one.wanted)
    if wanted is None:
        return ""
    before = one.source.bytes * one.moves
    after = sum(_bytes(graph, value, layout) for value, layout in wanted.items())
    if after >= before and (wanted or len(graph.users(one.source)) > 1):
        return ""
    new = graph.new_value(one.source, one.wanted)
    operands = {value: graph.new_value(value, layout) for value, layout in wanted.items()}
    graph.insert(_rebuilt(made, new, operands), made)
    for old, converted in operands.items():
        graph.insert(_copy_op(old, converted, made), made)
    if one.is_plain and graph.definition(one.target) is not None:
        graph.replace_uses(one.target, new)
    else:
        graph.swap(one.op, one.source, new)
    return (
        f"recomputes {one.source.name} in its layout: {after:,} bytes are converted in the place "
        f"of {before:,}"
    )


def _bytes(graph: Graph, value: Value, layout: LinearLayout) -> int:
    """Bytes that must be converted to have a value in a layout: its own, or what it is made of."""
    whole = value.bytes * moves_data(value.layout, layout)
    made = graph.definition(value)
    wanted = None if made is None else _operands(graph, made, layout)
    if not whole or wanted is None:
        return whole
    return min(whole, sum(_bytes(graph, operand, own) for operand, own in wanted.items()))


def _operands(graph: Graph, op: Op, layout: LinearLayout) -> dict[Value, LinearLayout] | None:
    """Operands that a nest needs in other layouts for a result in this one.

    None if it cannot be computed so: it loads from global memory with all threads, needs an operand
    in two layouts, or others read its result, which would have to stay.
    """
    if is_expensive_load(op):
        return None
    found: dict[Value, LinearLayout] = {}
    for operand, dims in op.reads:
        assert dims is not None  # it is a definition
        if registers_held(per_thread(layout), dims, operand.own) is not None:
            continue
        own = source_layout(layout, dims, operand)
        # LowerFragment converts no dims of one element.
        if own is None or 1 in operand.shape or found.setdefault(operand, own) != own:
            return None
    return None if found and len(graph.users(op.result)) > 1 else found


def is_expensive_load(op: Op) -> bool:
    """Whether a nest loads at least one element a thread from global memory."""
    sizes = op.result.layout.in_sizes
    return any(
        is_global(load.source) and sizes["lane"] * sizes["warp"] <= _spread(op, load)
        for load in memory_loads(op)
    )


def _spread(op: Op, node: Any) -> int:
    """How many different elements an expression has over the tile: 1 if it is one number."""
    used = variables(node)
    pairs = zip(op.walk.coordinates, op.result.shape, strict=True)
    return prod(size for own, size in pairs if is_among(own, used))


def _rebuilt(op: Op, target: Value, operands: dict[Value, Value]) -> Op:
    """Write a nest anew, for another fragment and with other operands."""
    value = op.value
    for old, new in operands.items():
        value = buffer_swapped(value, old.buffer, new.buffer)
    reads = [(operands.get(read, read), dims) for read, dims in op.reads]
    return _written(op, target, op.walk.coordinates, value, op.walk.predicates, reads)


def _copy_op(source: Value, target: Value, near: Op) -> Op:
    """Write a nest that copies a fragment to another one of its shape, to stand near a third."""
    kind = near.walk.coordinates[0].ty
    coordinates = [tirx.Var(f"c{d}", kind) for d in range(len(source.shape))]
    value = tirx.BufferLoad(source.buffer, coordinates)
    dims: Dims = tuple(range(len(source.shape)))
    return _written(near, target, coordinates, value, [], [(source, dims)])


def _written(
    near: Op, target: Value, coordinates: list[Any], value: Any, predicates: list[Any], reads: Any
) -> Op:
    """Loops over all of a fragment, in the place of another nest."""
    buffer = target.buffer
    loops = [tirx.Var(f"i{d}", var.ty) for d, var in enumerate(coordinates)]
    at = dict(zip(coordinates, loops, strict=True))
    stored = tirx.BufferStore(buffer, substitute(value, at), loops)
    loaded = [whole_region(one) for one in distinct(load.source for load in loads_in(value))]
    block = SBlock([], loaded, [whole_region(buffer)], str(buffer.name), stored, None, [], [], {})
    conditions = [substitute(predicate, at) for predicate in predicates]
    stmt: Any = SBlockRealize([], reduce(tirx.And, conditions) if conditions else True, block)
    for var, size in reversed(list(zip(loops, buffer.shape, strict=True))):
        stmt = tirx.For(var, 0, size, tirx.ForKind.SERIAL, stmt)
    nest = read_nest(stmt)
    assert nest is not None  # as it has just been written
    store = tirx.BufferStore(buffer, value, coordinates)
    tile = FragmentTile(near.walk.fragment, coordinates, [], store, list(predicates))
    return Op(near.origin, near.scope, stmt, nest, tile, target, reads)
