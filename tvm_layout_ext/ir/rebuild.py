"""Statements made of others: copies with some fields changed, which TVM does not offer; regions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

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


def without_annotations(node: Any, *keys: str) -> Any:
    """Copy a block or a loop without some annotations; itself if it has none of them."""
    kept = {key: value for key, value in node.annotations.items() if key not in keys}
    if len(kept) == len(node.annotations):
        return node
    changed = block_with if isinstance(node, SBlock) else loop_with
    return changed(node, annotations=kept)


def whole_region(buffer: Any) -> Any:
    """All of a buffer, as a region that a block reads or writes."""
    return tirx.BufferRegion(buffer, [tvm.ir.Range(0, extent) for extent in buffer.shape])


def sequence(statements: Iterable[Any]) -> Any:
    """One statement that does some, one after the other."""
    listed = list(statements)
    return listed[0] if len(listed) == 1 else tirx.SeqStmt(listed)
