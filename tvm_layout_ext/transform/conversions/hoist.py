"""Rules that move a conversion to where less is converted; each returns what it did, or nothing."""

from __future__ import annotations

from ...layout import LinearLayout
from .cost import arithmetic, convert_cost, is_expensive_load
from .graph import Graph, Op, Value, copied, is_definition, memory_loads
from .rules import Conversion, feeds_dot, take
from .slice import Slice, backward_slice, clone, copy_op, holds, rebuilt, source_layout

__all__ = ["hoist_above_extension", "hoist_to_load", "sink_below_narrowing"]


def hoist_above_extension(graph: Graph, one: Conversion) -> str:
    """Convert the smaller tile from which a cast or a broadcast made the source."""
    if feeds_dot(one.target) or one.wanted == one.source.layout:
        return ""
    found = backward_slice(graph, one.source, one.wanted, one.op, _extends)
    if found.problem:
        return ""
    converted = _to_convert(graph, one, found)
    return _hoisted_above(graph, one, found, *converted[0]) if len(converted) == 1 else ""


def _extends(op: Op) -> bool:
    """Whether a nest makes more bytes of the one tile that it reads."""
    if op.target is None or len(op.reads) != 1:
        return False
    return op.reads[0][0].bytes < op.result.bytes and not is_expensive_load(op)


def _to_convert(graph: Graph, one: Conversion, found: Slice) -> list[tuple[Op, LinearLayout]]:
    """Extensions whose operand cannot be computed in the wanted layout, with that layout."""
    converted: list[tuple[Op, LinearLayout]] = []
    for value in found.stops:
        op = graph.definition(value)
        assert op is not None  # a slice has nothing else
        operand, dims = op.reads[0]
        assert dims is not None
        if holds(operand, dims, found.layouts[value]):
            continue
        layout = source_layout(found.layouts[value], dims, operand)
        if layout is None or 1 in operand.shape:
            return []  # LowerFragment converts no dims of one element
        found.moved.add((value, operand))
        rest = backward_slice(graph, operand, layout, one.op)
        if rest.problem or not found.add(rest):
            converted.append((op, layout))
    return converted


def _hoisted_above(
    graph: Graph, one: Conversion, found: Slice, extension: Op, layout: LinearLayout
) -> str:
    small = extension.reads[0][0]
    cost = found.cost(graph, one.op) + convert_cost(small.layout, layout, small.bits)
    if one.cost < cost or small in found.layouts:
        return ""
    new = graph.new_value(small, layout, str(small.buffer.dtype))
    made = clone(graph, found, {small: new})
    graph.insert(copy_op(small, new, extension), extension)
    take(graph, one, made[one.source])
    return (
        f"converts the {small.bytes:,} bytes of {small.name} in the place of the "
        f"{one.source.bytes:,} of {one.source.name}: cost {cost:,}, before {one.cost:,}"
    )


def hoist_to_load(graph: Graph, one: Conversion) -> str:
    """Convert the operand of a product right behind its load, which can then run ahead."""
    if not feeds_dot(one.target) or not one.moves:
        return ""
    found = backward_slice(graph, one.source, one.wanted, one.op, is_expensive_load)
    if found.problem or len(found.stops) != 1 or one.source in found.stops:
        return ""
    loaded = found.stops[0]
    if 1 in loaded.shape:
        return ""
    load = graph.definition(loaded)
    assert load is not None  # a slice has nothing else
    new = graph.new_value(loaded, found.layouts[loaded], str(loaded.buffer.dtype))
    made = clone(graph, found, {loaded: new})
    graph.insert(copy_op(loaded, new, load), load)
    take(graph, one, made[one.source])
    return f"converts {loaded.name} behind its load, and computes {one.source.name} from that"


def sink_below_narrowing(graph: Graph, one: Conversion) -> str:
    """Convert the narrower result of what follows, a cast of sums say, not its operand."""
    if feeds_dot(one.target) or not one.moves or not one.is_plain:
        return ""
    chain = _chain(graph, one)
    if not chain:
        return ""
    last = chain[-1].result
    growth = _growth(one.source.layout, one.target.layout) - 1
    saved = 32 * (one.target.bytes - last.bytes)
    if saved < sum(arithmetic(op) for op in chain) * growth:
        return ""
    _sink(graph, one, chain)
    return (
        f"converts the {last.bytes:,} bytes of {last.name} in the place of the "
        f"{one.target.bytes:,} of {one.target.name}"
    )


def _growth(new: LinearLayout, old: LinearLayout) -> int:
    return max(1, new.in_sizes["register"] // old.in_sizes["register"])


def _chain(graph: Graph, one: Conversion) -> list[Op]:
    """Nests after a conversion, each the only reader of the one before, up to a narrower result."""
    value, chain = one.target, list[Op]()
    while graph.definition(value) is not None and len(users := graph.users(value)) == 1:
        op = users[0]
        chain.append(op)
        if not _is_step(op, value) or op.path[:-1] != one.op.path[:-1]:
            return []
        if op.result.bits < one.target.bits:
            return chain
        value = op.result
    return []


def _is_step(op: Op, value: Value) -> bool:
    if not is_definition(op) or memory_loads(op) or copied(op) is not None:
        return False
    is_alone = len(op.reads) == 1 and op.reads[0][1] == tuple(range(len(value.shape)))
    return is_alone and op.result.layout == value.layout


def _sink(graph: Graph, one: Conversion, chain: list[Op]) -> None:
    before, behind = one.source, one.op
    for op in chain:
        operand = op.reads[0][0]
        new = graph.new_value(op.result, one.source.layout, str(op.result.buffer.dtype))
        made = rebuilt(op, new, {operand: before})
        graph.insert(made, behind)
        before, behind = new, made
    last = chain[-1].result
    graph.insert(copy_op(before, last, chain[-1]), chain[-1])
    graph.remove(chain[-1])
