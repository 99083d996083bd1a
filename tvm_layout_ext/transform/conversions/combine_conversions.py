"""Remove, hoist and recompute conversions between the layouts of register tiles."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from ... import decisions
from ..base import function_pass
from ..fragments.fragment import collect_fragments
from .graph import Graph, Value
from .read import read_graph
from .rules import (
    Conversion,
    drop_repeated,
    drop_same,
    fold_chain,
    fold_into_store,
    move_up,
)
from .write import write_graph

_NAME = "CombineLayoutConversions"
#: Rules for conversions, in the order of Triton's pass: what follows is tried on what is left.
_PHASES: tuple[tuple[Callable[[Graph, Conversion], str], ...], ...] = (
    (drop_same, fold_chain, drop_repeated, fold_into_store),
    (move_up,),
)


def _combine(graph: Graph) -> bool:
    """Apply the rules until none applies; whether one did."""
    changed = False
    while any(_on_conversions(graph, phase) for phase in _PHASES):
        graph.sweep()
        changed = True
    return changed


def _on_conversions(graph: Graph, rules: tuple[Callable[[Graph, Conversion], str], ...]) -> bool:
    """Apply the first rule that fits to the first conversion that it fits."""
    for one in map(Conversion, graph.copies()):
        for rule in rules:
            text = rule(graph, one)
            if text:
                decisions.note(_NAME, one.target.name, text)
                return True
    return False


def _without_block(graph: Graph) -> Value | None:
    """A fragment whose layout could not be noted again: no block of its own writes it first."""
    for value in graph.values:
        writers = graph.writers(value)
        if not writers or writers[0].nest.block is None:
            return value
    return None


@function_pass()
def CombineLayoutConversions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that removes, hoists and recomputes layout conversions.

    A conversion is a block that copies one register tile to another of a different layout. The
    rules are those of Triton's remove-layout-conversions pass, applied until none fits:

    * A conversion of a conversion converts what the first one does; one to the layout of its
      source, and the same one a second time, go away.
    * What is converted is computed in the wanted layout instead, if fewer bytes of what it is made
      of need a conversion: none of constants and of loads from shared memory, half of a cast to a
      type twice as wide, a row of a broadcast. Loads of a whole tile from global memory are never
      repeated.
    * A tile that is converted to be stored in shared memory is stored unconverted.

    Does not handle, and leaves alone: fragments that are written more than once or in a branch;
    blocks with other annotations, with loops that walk over no tile, or with calls that have
    effects; dims of one element.
    """
    fragments = collect_fragments(func)
    if not list(fragments):
        return func
    graph = read_graph(func.body, fragments)
    odd = _without_block(graph)
    if odd is not None:
        decisions.note(_NAME, odd.name, "no block writes it first, so no conversion is changed")
        return func
    return write_graph(func, graph) if _combine(graph) else func
