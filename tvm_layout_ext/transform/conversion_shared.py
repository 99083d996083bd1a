"""Rules for round trips of register tiles through shared memory that the program has itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ..layout import Movement, movement
from .conversion_graph import Graph, Op, Value, is_definition
from .conversion_slice import copy_op
from .fragment import FRAGMENT

__all__ = ["drop_copy_of_copy", "drop_round_trip"]


def drop_round_trip(graph: Graph, one: Op) -> str:
    """A tile that comes back from shared memory to the same warps: copied in registers instead."""
    shared = _loaded_whole(one)
    writer = None if shared is None else _only_writer(graph, shared)
    source = None if writer is None else _stored_whole(writer)
    if shared is None or writer is None or source is None or not writer.dominates(one):
        return ""
    target = one.result
    if graph.definition(source) is None or source.shape != target.shape:
        return ""
    if source.buffer.dtype != target.buffer.dtype:
        return ""
    if movement(source.layout, target.layout) in (Movement.SHARED, Movement.CLUSTER):
        return ""
    graph.insert(copy_op(source, target, one), one)
    graph.remove(one)
    _drop_if_unread(graph, shared, writer)
    return f"copies {source.name} without the way through {shared.name}"


def _loaded_whole(op: Op) -> Any | None:
    """The shared buffer that a nest copies to a fragment, element by element."""
    if not is_definition(op) or op.walk.predicates:
        return None
    load = op.value
    whole = isinstance(load, tvm.ir.TensorLoad) and _same(load.indices, op.walk.coordinates)
    if not whole or not load.source.scope().startswith("shared"):
        return None
    return load.source if _sizes(load.source) == list(op.result.shape) else None


def _stored_whole(op: Op) -> Value | None:
    """The fragment that a nest copies to memory, element by element."""
    tile = op.tile
    if tile is None or tile.loops or tile.predicates or len(op.reads) != 1:
        return None
    value, load = op.reads[0][0], tile.store.value
    whole = isinstance(load, tvm.ir.TensorLoad) and load.source.same_as(value.buffer)
    if not whole or not _same(load.indices, tile.store.indices):
        return None
    same = _same(load.indices, tile.coordinates) and _sizes(tile.store.buffer) == list(value.shape)
    return value if same else None


def drop_copy_of_copy(graph: Graph, one: Op) -> str:
    """A copy of a shared buffer to another one: who reads the second reads the first."""
    store = one.nest.store
    load, second = store.value, store.buffer
    if not isinstance(load, tvm.ir.TensorLoad) or not _same(load.indices, store.indices):
        return ""
    first = load.source
    if not _alike(first, second) or _only_writer(graph, second) is not one:
        return ""
    writer, readers = _only_writer(graph, first), graph.readers(second)
    if writer is None or not writer.dominates(one) or not all(map(one.dominates, readers)):
        return ""
    for reader in readers:
        graph.swap_buffer(reader, second, first)
    graph.remove(one)
    graph.dropped.append(second)
    return f"its readers read {first.name}, of which it is a copy"


def _alike(first: Any, second: Any) -> bool:
    plain = not first.ty.strides and not second.ty.strides
    is_shared = first.scope() == second.scope() and first.scope().startswith("shared")
    same = first.dtype == second.dtype and _sizes(first) == _sizes(second)
    return is_shared and plain and same and not first.same_as(second)


# What is known of shared buffers


def _only_writer(graph: Graph, buffer: Any) -> Op | None:
    """The one nest that stores a buffer, if it and nothing else asks for anything about it."""
    writers = [op for op in graph.ops if op.nest.store.buffer.same_as(buffer)]
    if len(writers) != 1 or graph.escapes(buffer):
        return None
    block = writers[0].nest.block
    asked = () if block is None else block.annotations
    return writers[0] if all(key == FRAGMENT for key in asked) else None


def _drop_if_unread(graph: Graph, buffer: Any, writer: Op) -> None:
    if not graph.readers(buffer):
        graph.remove(writer)
        graph.dropped.append(buffer)


def _same(first: Sequence[Any], second: Sequence[Any]) -> bool:
    equal = (tvm_ffi.structural_equal(a, b) for a, b in zip(first, second, strict=False))
    return len(first) == len(second) and all(equal)


def _sizes(buffer: Any) -> list[int | None]:
    return [int(n) if isinstance(n, tirx.IntImm) else None for n in buffer.shape]
