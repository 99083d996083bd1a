"""The small part of TVM's classic ``ir_builder`` that tensor intrinsics are written with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import is_prim_expr

from ...errors import ScheduleError


def create() -> IRBuilder:
    """Create an empty builder, as ``tvm.tir.ir_builder.create()`` did."""
    return IRBuilder()


class IRBuilder:
    """Collects statements in order; :meth:`get` gives them as one."""

    def __init__(self) -> None:
        self._statements: list[tirx.Stmt] = []
        self._scopes: list[tuple[int, Callable[[tirx.Stmt], tirx.Stmt]]] = []

    def emit(self, stmt: Any) -> None:
        """Append a statement, or a call for its side effect."""
        if isinstance(stmt, tirx.Stmt):
            self._statements.append(stmt)
        elif is_prim_expr(stmt):
            self._statements.append(tirx.Evaluate(stmt))
        else:
            raise ScheduleError(
                f"emit takes a statement or an expression, not a {type(stmt).__name__}."
            )

    def scope_attr(self, node: Any, attr_key: str, value: Any) -> None:
        """Put everything emitted from here on under an attribute."""
        self._scopes.append(
            (len(self._statements), lambda body: tirx.AttrStmt(node, attr_key, value, body))
        )

    def get(self) -> tirx.Stmt:
        """All statements as one."""
        statements = list(self._statements)
        for start, wrap in reversed(self._scopes):
            statements[start:] = [wrap(_sequence(statements[start:]))]
        return _sequence(statements)


def _sequence(statements: list[tirx.Stmt]) -> tirx.Stmt:
    if not statements:
        return tirx.Evaluate(tirx.const(0, "int32"))
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)
