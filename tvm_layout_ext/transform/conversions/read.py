"""Read the nests over register tiles from a function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import SBlockRealize

from ...errors import ScheduleError
from ...ir.queries import loads_in, nodes_in
from ..fragments.fragment import Fragment, Fragments
from ..fragments.nest import FragmentNest, FragmentTile, read_nest, tile_of
from .graph import Graph, Op, Value


class _GraphReader:
    def __init__(self, fragments: Fragments) -> None:
        self.fragments = fragments
        self.values = [Value(f.buffer, f.text, f.layout, None, f.buffer) for f in fragments]
        self.ops: list[Op] = []

    def value(self, fragment: Fragment) -> Value:
        return next(v for v in self.values if v.buffer.same_as(fragment.buffer))

    def read(self, stmt: Any, path: tuple[int, ...] = ()) -> None:
        nest = read_nest(stmt)
        if nest is not None:
            self.ops.append(self._op(stmt, nest, path))
            return
        for place, child in _children(stmt):
            self.read(child, path + place)

    def _op(self, stmt: Any, nest: FragmentNest, path: tuple[int, ...]) -> Op:
        written = self.fragments.of(nest.store.buffer)
        target = None if written is None else self.value(written)
        op = Op(stmt, path[:-1], stmt, nest, self._tile(nest), target)
        op.reads = self._reads(op)
        return op

    def _tile(self, nest: FragmentNest) -> FragmentTile | None:
        if not self.fragments.touched(nest.store):
            return None
        try:
            return tile_of(nest, self.fragments)
        except ScheduleError:
            return None  # LowerFragment refuses it with its reasons

    def _reads(self, op: Op) -> list[tuple[Value, tuple[int | None, ...] | None]]:
        """The fragments that are loaded; with dims only where the stored value loads them."""
        tile = op.tile
        if tile is None:
            loaded = self.fragments.loaded(op.stmt)
            return _distinct([(self.value(f), None) for f, _ in loaded])
        pairs: list[tuple[Value, tuple[int | None, ...] | None]] = []
        for fragment, load in self.fragments.loaded(tile.store.value):
            dims = tile.dims(load.indices)
            pairs.append((self.value(fragment), None if dims is None else tuple(dims)))
        for expr in [*tile.store.indices, *tile.predicates]:
            pairs += [(self.value(f), None) for f, _ in self.fragments.loaded(expr)]
        return _distinct(pairs)


def _distinct(pairs: list[Any]) -> list[Any]:
    found: list[Any] = []
    for value, dims in pairs:
        if not any(value is other and dims == own for other, own in found):
            found.append((value, dims))
    return found


def _children(stmt: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
    if isinstance(stmt, tirx.SeqStmt):
        yield from (((i,), child) for i, child in enumerate(stmt))
    elif isinstance(stmt, tirx.IfThenElse):
        branches = [stmt.then_case] + ([stmt.else_case] if stmt.else_case else [])
        yield from (((i, 0), branch) for i, branch in enumerate(branches))
    elif isinstance(stmt, SBlockRealize):
        yield (0,), stmt.block.body
    elif isinstance(stmt, (tirx.For, tirx.AttrStmt, tirx.While)):
        yield (0,), stmt.body


def _escaping(body: Any, ops: list[Op]) -> list[Any]:
    """Buffers that are touched outside of the nests, or through pointers."""
    taken = [arg for call in nodes_in(body, tvm.ir.Call) for arg in call.args]
    left = Counter(_touched(body))
    for op in ops:
        left.subtract(_touched(op.stmt))
    return [arg for arg in taken if isinstance(arg, tirx.Var)] + [k for k, n in left.items() if n]


def _touched(stmt: Any) -> Iterator[Any]:
    yield from (load.source for load in loads_in(stmt))
    yield from (store.buffer for store in nodes_in(stmt, tirx.BufferStore))


def read_graph(body: Any, fragments: Fragments) -> Graph:
    """Take a function's body apart."""
    reader = _GraphReader(fragments)
    reader.read(body)
    return Graph(reader.values, reader.ops, _escaping(body, reader.ops))
