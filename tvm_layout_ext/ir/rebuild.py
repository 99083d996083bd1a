"""Statements made of others: copies with some fields changed, which TVM does not offer; regions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from .queries import blocks_in, distinct, is_among, loads_in, nodes_in

_BLOCK_FIELDS = (
    "iter_vars",
    "reads",
    "writes",
    "name_hint",
    "body",
    "init",
    "alloc_buffers",
    "match_buffers",
    "annotations",
)
_LOOP_FIELDS = (
    "loop_var",
    "min",
    "extent",
    "kind",
    "body",
    "thread_binding",
    "annotations",
    "step",
)


def block_with(block: SBlock, **changes: Any) -> SBlock:
    """Copy a block with other values in the named fields."""
    return SBlock(*(changes.get(name, getattr(block, name)) for name in _BLOCK_FIELDS))


def realize_with(realize: SBlockRealize, block: SBlock) -> SBlockRealize:
    """Copy a block's realisation for another block."""
    return SBlockRealize(realize.iter_values, realize.predicate, block)


def loop_with(loop: tirx.For, **changes: Any) -> tirx.For:
    """Copy a loop with other values in the named fields."""
    return tirx.For(*(changes.get(name, getattr(loop, name)) for name in _LOOP_FIELDS))


def call_with(call: Any, arguments: Sequence[Any]) -> Any:
    """Copy a call with other arguments."""
    return tvm.ir.Call(call.op, list(arguments), call.attrs, call.ty_args, call.span, call.ty)


def without_annotations(node: Any, *keys: str) -> Any:
    """Copy a block or a loop without some annotations; itself if it has none of them."""
    kept = {key: value for key, value in node.annotations.items() if key not in keys}
    if len(kept) == len(node.annotations):
        return node
    changed = block_with if isinstance(node, SBlock) else loop_with
    return changed(node, annotations=kept)


def stripped(body: Any, *keys: str) -> Any:
    """Take some annotations off all blocks of a statement."""
    rule = (SBlock, lambda block: without_annotations(block, *keys))
    return tvm_ffi.structural_map(body, [rule], order="post")


def accessed(body: Any) -> tuple[list[Any], list[Any]]:
    """Buffers that a statement loads and stores, each once, those that it allocates left out."""
    made = [buffer for block in blocks_in(body) for buffer in block.alloc_buffers]
    sides = (
        [load.source for load in loads_in(body)],
        [store.buffer for store in nodes_in(body, tirx.BufferStore)],
    )
    reads, writes = ([b for b in distinct(side) if not is_among(b, made)] for side in sides)
    return reads, writes


def whole_region(buffer: Any) -> Any:
    """All of a buffer, as a region that a block reads or writes."""
    return tirx.BufferRegion(buffer, [tvm.ir.Range(0, extent) for extent in buffer.shape])


def with_accesses(node: Any, change: Callable[[Any, Any], tuple[Any, Sequence[Any]] | None]) -> Any:
    """Let loads and stores access what ``change`` gives for buffer and indices; None leaves one."""
    return tvm_ffi.structural_map(node, access_rules(change), order="post")


def access_rules(
    change: Callable[[Any, Any], tuple[Any, Sequence[Any]] | None],
) -> list[tuple[type, Callable[[Any], Any]]]:
    """Rules of a rewrite of loads and stores, as :func:`with_accesses` has them."""

    def load(one: Any) -> Any:
        at = change(one.source, one.indices)
        return one if at is None else tirx.BufferLoad(*at)

    def store(one: Any) -> Any:
        at = change(one.buffer, one.indices)
        return one if at is None else tirx.BufferStore(at[0], one.value, at[1])

    return [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store)]


def sequence(statements: Iterable[Any]) -> Any:
    """One statement that does some, one after the other."""
    listed = list(statements)
    return listed[0] if len(listed) == 1 else tirx.SeqStmt(listed)


def on_threads(block: SBlock, axes: Iterable[tuple[Any, Any, str]], notes: Any = None) -> Any:
    """Run a block without iterators by threads: variables, extents and tags of axes, inner first.

    ``notes`` are annotations of the outermost loop.
    """
    stmt: Any = SBlockRealize([], tirx.const(True, "bool"), block)
    for var, extent, tag in axes:
        axis = tirx.IterVar(None, tirx.Var("", "int32"), tirx.IterVar.ThreadIndex, tag)
        stmt = tirx.For(var, 0, extent, tirx.ForKind.THREAD_BINDING, stmt, axis, {})
    return loop_with(stmt, annotations=notes) if notes else stmt


def unrolled(extent: int, body: Callable[[Any], Any]) -> Any:
    """Unroll a loop around what a function makes of its variable."""
    return _looped(extent, body, tirx.ForKind.UNROLLED, "i")


def vectorized(extent: int, body: Callable[[Any], Any]) -> Any:
    """Vectorize such a loop."""
    return _looped(extent, body, tirx.ForKind.VECTORIZED, "v")


def _looped(extent: int, body: Callable[[Any], Any], kind: Any, name: str) -> Any:
    var = tirx.Var(name, "int32")
    return tirx.For(var, 0, extent, kind, body(var))
