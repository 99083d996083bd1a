"""Make what a function assumes a check on the host."""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx

from ..._compat import assert_statement
from ...analysis.assumptions import head_statements, is_about_numbers, pointer_promise, promise_of
from ...ir import ops
from ...ir.conditions import conjuncts
from ...ir.rebuild import block_with, realize_with
from ..base import function_pass


def _checks(statement: Any, function: str) -> list[Any]:
    """Checks for one ``T.assume``; addresses are dropped, their readers have run."""
    made: list[Any] = []
    for part in conjuncts(promise_of(statement)):
        if is_about_numbers(part):
            text = f"{_sentence(part)}, as {function} assumes."
            made.append(assert_statement(part, text))
        elif pointer_promise(part) is None:
            made.append(tirx.Evaluate(tirx.call_intrin("bool", ops.ASSUME, part)))
    return made


def _sentence(condition: Any) -> str:
    left = condition.a
    is_multiple = isinstance(condition, tirx.EQ) and isinstance(left, tirx.FloorMod | tirx.Mod)
    if is_multiple and isinstance(condition.b, tirx.IntImm) and int(condition.b) == 0:
        return f"{left.a} must be a multiple of {left.b}"
    return f"{condition} must hold"


def _with_checks(body: Any, head: list[Any], function: str) -> Any:
    if isinstance(body, s_tir.SBlockRealize):
        inner = _with_checks(body.block.body, head, function)
        return realize_with(body, block_with(body.block, body=inner))
    statements: list[Any] = []
    for statement in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
        if any(statement.same_as(promise) for promise in head):
            statements += _checks(statement, function)
        else:
            statements.append(statement)
    if not statements:
        return tirx.Evaluate(tirx.IntImm("int32", 0))
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)


@function_pass()
def CheckAssumptions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that turns ``T.assume`` at the head of a function into ``assert``.

    ::

        T.assume(n % 16 == 0)     ->     assert n % 16 == 0, "n must be a multiple of 16, ..."

    A call that breaks the promise is refused on the host, before any kernel runs.

    Does not check: promises about base addresses, which TVM 0.27 cannot lower (they are removed);
    conditions on memory, and ``T.assume`` elsewhere (both stay as they are).
    """
    head = [s for s in head_statements(func.body) if isinstance(s, tirx.Evaluate)]
    if not head:
        return func
    name = str(func.attrs.get("global_symbol", None) or "the function")
    return func.with_body(_with_checks(func.body, head, name))
