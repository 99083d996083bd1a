"""Write the nests of a graph back into the function that they were read from."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from ...ir.annotations import FRAGMENT
from ...ir.queries import is_among
from ...ir.rebuild import accessed, block_with, sequence, whole_region, without_annotations
from .graph import Graph, Op


class _NestWriter:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        left = [value.buffer for value in graph.values]
        self.gone = [buffer for buffer in graph.buffers if not is_among(buffer, left)]
        #: By the statements as they were, the nests that now stand there.
        self.places: dict[int, list[Op]] = {one.__chandle__(): [] for one in graph.origins}
        for op in graph.ops:
            self.places[op.origin.__chandle__()].append(op)

    def body(self, body: Any) -> Any:
        rules = [
            (tirx.SeqStmt, self._sequence),
            (SBlock, self._block),
            *((kind, self._nest) for kind in (tirx.For, SBlockRealize, tirx.BufferStore)),
        ]
        return tvm_ffi.structural_mutate(body, rules)

    def _nest(self, stmt: Any, mutator: Any) -> Any:
        ops = self.places.get(stmt.__chandle__())
        if ops is None:
            return mutator.default_mutate(stmt)
        return sequence([self._annotated(op) for op in ops] or [tirx.Evaluate(0)])

    def _sequence(self, stmt: Any, mutator: Any) -> Any:
        listed: list[Any] = []
        for child in mutator.default_mutate(stmt):
            inner = list(child) if isinstance(child, tirx.SeqStmt) else [child]
            listed += [one for one in inner if not _is_nothing(one)]
        return sequence(listed or [tirx.Evaluate(0)])

    def _annotated(self, op: Op) -> Any:
        """Give the first nest that writes a fragment its layout."""
        value = op.target
        is_first = value is not None and self.graph.writers(value)[0] is op
        text = [value.name, value.text] if value is not None and is_first else []

        def note(block: Any) -> Any:
            block = without_annotations(block, FRAGMENT)
            if not text or not isinstance(block.body, tirx.BufferStore):
                return block
            return block_with(
                block, annotations={**dict(block.annotations.items()), FRAGMENT: text}
            )

        return tvm_ffi.structural_map(op.stmt, [(SBlock, note)], order="post")

    def _block(self, block: Any, mutator: Any) -> Any:
        """Allocate what is new and not what is gone, and bring the regions up to date."""
        before = block
        block = without_annotations(mutator.default_mutate(block), FRAGMENT)
        kept = [b for b in before.alloc_buffers if not is_among(b, self.gone)]
        placed = [(v.buffer, v.home) for v in self.graph.values]
        new = [
            b for b, home in placed if not b.same_as(home) and is_among(home, before.alloc_buffers)
        ]
        if tvm_ffi.structural_equal(block.body, before.body):
            return block
        own = [*kept, *new]
        reads, writes = accessed(block.body)
        return block_with(
            block,
            alloc_buffers=own,
            reads=self._regions(block.reads, reads, own),
            writes=self._regions(block.writes, writes, own),
        )

    def _regions(self, listed: Any, accessed: list[Any], own: list[Any]) -> list[Any]:
        """What a block touches: as it was where it still is, whole where it was not."""
        known = [region.source for region in listed]
        new = [b for b in accessed if b.scope() != "global" and not is_among(b, [*known, *own])]
        kept = [region for region in listed if not is_among(region.source, self.gone)]
        return kept + [whole_region(buffer) for buffer in new]


def _is_nothing(stmt: Any) -> bool:
    return isinstance(stmt, tirx.Evaluate) and isinstance(stmt.value, tirx.IntImm)


def write_graph(func: tirx.PrimFunc, graph: Graph) -> tirx.PrimFunc:
    """Put the nests of a graph in the place of those that were read."""
    body = _NestWriter(graph).body(func.body)
    return func.with_body(body).without_attr(FRAGMENT)
