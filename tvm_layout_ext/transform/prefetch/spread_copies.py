"""Share unrolled copies out over several steps."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ...ir.queries import substitute
from ...ir.rebuild import loop_with, sequence
from ..pipeline.expand import renewed


def shares(copies: list[Any], count: int) -> list[list[Any]]:
    """Spread unrolled copies over so many steps, in their order: what each step does.

    Calls behind the copies go to the last step; where one stands among them, the first does all.
    """
    sizes = [_units(stmt) for stmt in copies]
    if any(size == 0 and any(sizes[i:]) for i, size in enumerate(sizes)):
        return [list(copies), *([] for _ in range(count - 1))]
    units = sum(sizes)
    found: list[list[Any]] = []
    for step in range(count):
        low, high = units * step // count, units * (step + 1) // count
        share, at = [], 0
        for stmt in copies:
            size = _units(stmt)
            share += _slice(stmt, max(0, low - at), min(size, high - at))
            at += size
            if size == 0 and step == count - 1:
                share.append(stmt)
        found.append(share)
    return found


def _units(stmt: Any) -> int:
    """Copies of a statement that can stand alone; none of one that ends a group."""
    if isinstance(stmt, tirx.SeqStmt):
        return sum(map(_units, stmt.seq))
    if isinstance(stmt, tirx.IfThenElse) and stmt.else_case is None:
        return _units(stmt.then_case)
    if isinstance(stmt, tirx.AttrStmt):
        return _units(stmt.body)
    if _is_unit(stmt):
        return _units(stmt.body)
    if isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.UNROLLED:
        return int(stmt.extent)
    return 0 if isinstance(stmt, tirx.Evaluate) else 1


def _slice(stmt: Any, low: int, high: int) -> list[Any]:
    if low >= high:
        return []
    if isinstance(stmt, tirx.SeqStmt):
        found, at = [], 0
        for child in stmt.seq:
            size = _units(child)
            found += _slice(child, max(0, low - at), min(size, high - at))
            at += size
        return found
    if isinstance(stmt, tirx.IfThenElse) and stmt.else_case is None:
        body = sequence(_slice(stmt.then_case, low, high))
        return [tirx.IfThenElse(stmt.condition, body, None)]
    if isinstance(stmt, tirx.AttrStmt):
        body = sequence(_slice(stmt.body, low, high))
        return [tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, body)]
    if _is_unit(stmt):
        return [renewed(loop_with(stmt, body=sequence(_slice(stmt.body, low, high))))]
    if isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.UNROLLED:
        body = substitute(stmt.body, {stmt.loop_var: stmt.loop_var + low})
        return [renewed(loop_with(stmt, extent=tirx.const(high - low, "int32"), body=body))]
    return [stmt]


def _is_unit(stmt: Any) -> bool:
    """Whether a statement is a plain loop of one iteration."""
    plain = (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED)
    return (
        isinstance(stmt, tirx.For)
        and stmt.kind in plain
        and isinstance(stmt.extent, tirx.IntImm)
        and int(stmt.extent) == 1
    )
