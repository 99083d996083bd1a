"""The rule that moves a conversion to where less is converted."""

from __future__ import annotations

from ...layout import LinearLayout
from .cost import convert_cost, is_expensive_load
from .graph import Graph, Op
from .rules import Conversion, take
from .slice import Slice, backward_slice, clone, copy_op, holds, source_layout


def hoist_above_extension(graph: Graph, one: Conversion) -> str:
    """Convert the smaller tile from which a cast or a broadcast made the source."""
    if one.wanted == one.source.layout:
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
