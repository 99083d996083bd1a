"""What a program has, found by one walk that all passes share which ask about it in a row."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from .queries import nodes_in

_KINDS = (SBlock, SBlockRealize, tirx.For, tirx.AttrStmt, tirx.AllocBuffer, tirx.Select)


class Contents:
    """Nodes of a statement by kind, those that hold others last."""

    def __init__(self, stmt: Any) -> None:
        self.stmt = stmt
        self._nodes: dict[type, list[Any]] = {kind: [] for kind in _KINDS}
        for node in nodes_in(stmt, *_KINDS):
            self._nodes[type(node)].append(node)

    def nodes(self, kind: type) -> list[Any]:
        """List its blocks, their realisations, loops, attributes, allocations or ``Select``."""
        return self._nodes[kind]

    @cached_property
    def calls(self) -> frozenset[str]:
        """Names of the operators that it calls."""
        called = (call.op for call in nodes_in(self.stmt, tvm.ir.Call))
        distinct = {op.__chandle__(): op for op in called}.values()
        return frozenset(str(getattr(op, "name", "")) for op in distinct)

    @cached_property
    def annotations(self) -> frozenset[str]:
        """Keys of the annotations of its blocks and loops, and of its attributes."""
        holders = [*self.nodes(SBlock), *self.nodes(tirx.For)]
        keys = {str(key) for holder in holders for key in holder.annotations}
        return frozenset(keys | {str(one.attr_key) for one in self.nodes(tirx.AttrStmt)})


_last: Contents | None = None


def contents(stmt: Any) -> Contents:
    """What a statement has; the last one that was asked about is remembered.

    Statements do not change while somebody holds them, as this does.

    Examples
    --------
    >>> loop = tirx.For(tirx.Var("i", "int32"), 0, 4, tirx.ForKind.SERIAL, tirx.Evaluate(0))
    >>> len(contents(loop).nodes(tirx.For))
    1
    """
    global _last
    if _last is None or not _last.stmt.same_as(stmt):
        _last = Contents(stmt)
    return _last
