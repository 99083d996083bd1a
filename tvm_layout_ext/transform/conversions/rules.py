"""Rules that remove a conversion; each returns what it did, or nothing."""

from __future__ import annotations

from ...layout import LinearLayout
from .cost import convert_cost, moves_data
from .graph import Graph, Op, Value, copied
from .slice import Slice, backward_slice, clone, source_layout


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
    def cost(self) -> int:
        """What it costs by Triton's test."""
        return convert_cost(self.source.layout, self.wanted, self.source.bits)

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


# Rematerialisation


def rematerialise(graph: Graph, one: Conversion) -> str:
    """Compute the source in the wanted layout, if that costs no more."""
    found, cost = _recomputation(graph, one)
    if found.problem or one.cost < cost:
        return ""
    made = clone(graph, found, {})
    names = ", ".join(sorted(value.name for value in found.layouts))
    text = f"recomputes {names} in its layout: cost {cost:,}, the conversion's is {one.cost:,}"
    take(graph, one, made[one.source])
    return text


def _recomputation(graph: Graph, one: Conversion) -> tuple[Slice, int]:
    """What computing the source in the wanted layout takes."""
    if one.wanted == one.source.layout:
        return Slice(problem="nothing moves"), 0
    found = backward_slice(graph, one.source, one.wanted, one.op)
    return found, 0 if found.problem else found.cost(graph, one.op)


def why_kept(graph: Graph, one: Conversion) -> str:
    """Say why a conversion is not recomputed, with the costs."""
    found, cost = _recomputation(graph, one)
    reason = found.problem or f"recomputing costs {cost:,}"
    return f"converts {one.source.name} at cost {one.cost:,}: {reason}"


def take(graph: Graph, one: Conversion, made: Value) -> None:
    """Let readers of a conversion's result read what has been computed in its place."""
    if one.is_plain and graph.definition(one.target) is not None:
        graph.replace_uses(one.target, made)
    else:
        graph.swap(one.op, one.source, made)
