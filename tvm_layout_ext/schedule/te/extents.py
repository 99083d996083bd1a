"""Extents of split and fused axes, and root axes as expressions in the leaf axes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tvm import tirx
from tvm.tirx import IterVar

from .axes import AxisMap
from .records import Fuse, Move, Reorder, Split

__all__ = ["leaf_extents", "root_values"]


def _ceildiv(number: Any, by: Any) -> Any:
    if isinstance(number, int) and isinstance(by, int):
        return -(-number // by)
    return tirx.ceildiv(number, by)


def _plain(extent: Any) -> Any:
    return int(extent) if isinstance(extent, tirx.IntImm) else extent


def leaf_extents(root: Iterable[IterVar], moves: Iterable[Move]) -> AxisMap[Any]:
    """Extent of every axis that the moves make out of root axes with known domains."""
    extents: AxisMap[Any] = AxisMap()
    for axis in root:
        extents[axis] = _plain(axis.dom.extent)
    for move in moves:
        if isinstance(move, Split):
            whole, given = extents[move.parent], _plain(move.factor or move.nparts)
            other = _ceildiv(whole, given)
            extents[move.inner] = given if move.nparts is None else other
            extents[move.outer] = other if move.nparts is None else given
        elif isinstance(move, Fuse):
            product: Any = 1
            for axis in move.axes:
                product = product * extents[axis]
            extents[move.fused] = product
    return extents


def root_values(
    root: Iterable[IterVar], moves: Iterable[Move], extents: AxisMap[Any]
) -> AxisMap[Any]:
    """Value of every axis in the leaf variables: ``i`` is ``i.outer * factor + i.inner``."""
    values: AxisMap[Any] = AxisMap()
    for move in reversed([move for move in moves if not isinstance(move, Reorder)]):
        if isinstance(move, Split):
            outer, inner = (_value(values, axis) for axis in (move.outer, move.inner))
            values[move.parent] = outer * extents[move.inner] + inner
        elif isinstance(move, Fuse):
            rest = _value(values, move.fused)
            for axis in reversed(move.axes):
                values[axis] = tirx.floormod(rest, extents[axis])
                rest = tirx.floordiv(rest, extents[axis])
    for axis in root:
        values[axis] = _value(values, axis)
    return values


def _value(values: AxisMap[Any], axis: IterVar) -> Any:
    found = values.get(axis)
    return axis.var if found is None else found
