"""What a function promises about its arguments: ``T.assume`` and ``assert`` at its head.

A promise about a number is a condition, ``n % 16 == 0`` or ``n >= 1``. One about a buffer says that
the address of its first element is a multiple of some bytes. Both are statements ``T.assume`` of
the function's body, so they live through schedules, traces, printing and parsing.

Only statements before the first that does any work count. They hold wherever the function runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ..ir import ops
from ..ir.conditions import conjuncts, is_zero, step_of
from ..ir.queries import depends_on, is_call_of, nodes_in, substitute
from .axis_info.values import power_of_two_in

_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)
_REMAINDERS = (tirx.FloorMod, tirx.Mod)


@dataclass(frozen=True)
class Assumptions:
    """Promises of a function."""

    conditions: tuple[Any, ...] = ()  #: What holds of the numbers, each a comparison
    #: Bytes that divide the address of a buffer's first element.
    alignments: tuple[tuple[Any, int], ...] = ()

    def alignment(self, buffer: Any) -> int:
        """Bytes promised to divide the address of a buffer's first element, 1 if none are."""
        return max((n for other, n in self.alignments if other.same_as(buffer)), default=1)


#: A function that promises nothing.
NO_ASSUMPTIONS = Assumptions()


def divisible(variable: Any, divisor: int) -> Any:
    """Write the condition that a number is a multiple of another."""
    return tirx.EQ(
        tirx.FloorMod(variable, tirx.IntImm(variable.ty, divisor)), tirx.IntImm(variable.ty, 0)
    )


def aligned(buffer: Any, divisor: int) -> Any:
    """Write the condition that a buffer's base address is a multiple of some bytes."""
    address = tirx.reinterpret("uint64", buffer.data)
    return divisible(address, divisor)


class Prover:
    """TVM's analyser, knowing some conditions, none on compound expressions, which might wrap."""

    def __init__(self, conditions: Sequence[Any] = ()) -> None:
        self.analyzer = tvm.sym.Analyzer()
        # A scope ends when Python drops it.
        self._scopes = [self.analyzer.constraint_scope(c) for c in conditions if _is_plain(c)]
        for scope in self._scopes:
            scope.__enter__()

    def is_multiple(self, value: Any, divisor: int) -> bool:
        """Whether a number is proven a multiple of another."""
        found = self.analyzer.modular_set(value)
        return gcd(int(found.coeff), int(found.base)) % divisor == 0

    def at_first(self, index: Any, lane: Any, lanes: int) -> Any:
        """An index whose quotients and remainders are of lane 0, where no vector crosses them."""

        def part(node: Any) -> Any:
            length = node.b
            whole = isinstance(length, tirx.IntImm) and int(length) % lanes == 0
            if not whole or not depends_on(node.a, lane) or step_of(node.a, lane) != 1:
                return node
            first = substitute(node.a, {lane: tirx.IntImm(str(lane.ty), 0)})
            if not self.is_multiple(first, lanes):
                return node
            found = type(node)(first, length)
            return found + lane if isinstance(node, tirx.FloorMod) else found

        rules = [(tirx.FloorDiv, part), (tirx.FloorMod, part)]
        return tvm_ffi.structural_map(index, rules, order="post")


def _is_plain(condition: Any) -> bool:
    return isinstance(condition, _COMPARISONS) and all(
        _is_atom(side.a if isinstance(side, _REMAINDERS) and _is_atom(side.b) else side)
        for side in (condition.a, condition.b)
    )


def _is_atom(expr: Any) -> bool:
    return isinstance(expr, tirx.Var | tirx.IntImm)


def read_assumptions(func: tirx.PrimFunc) -> Assumptions:
    """Collect the promises at the head of a function.

    Examples
    --------
    >>> from tvm.script import tirx as T
    >>> @T.prim_func(s_tir=True)
    ... def double(A: T.Buffer((64,), "float32"), n: T.int32):
    ...     T.assume(n % 16 == 0)
    ...     for i in range(n):
    ...         A[i] = A[i] * T.float32(2)
    >>> read_assumptions(double).conditions
    (n % 16 == 0,)
    """
    conditions: list[Any] = []
    alignments: list[tuple[Any, int]] = []
    for statement in head_statements(func.body):
        for part in conjuncts(promise_of(statement)):
            pointer = pointer_promise(part)
            if pointer is not None:
                alignments.append(pointer)
            elif is_about_numbers(part):
                conditions.append(part)
    return Assumptions(tuple(conditions), tuple(alignments))


def promise_of(statement: Any) -> Any | None:
    """Condition of a ``T.assume`` or ``assert``, None for another statement."""
    if isinstance(statement, tirx.AssertStmt):
        return statement.condition
    call: Any = statement.value if isinstance(statement, tirx.Evaluate) else None
    return call.args[0] if is_call_of(call, ops.ASSUME) else None


def head_statements(body: Any) -> Iterator[Any]:
    """List the promises of a function's body before the first statement that does any work."""
    if isinstance(body, s_tir.SBlockRealize):
        # Only the root block, which has no iterators, is the head of a function.
        body = body.block.body if not body.block.iter_vars else None
    for statement in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
        if isinstance(statement, tirx.SeqStmt | s_tir.SBlockRealize):
            yield from head_statements(statement)
            return
        if promise_of(statement) is not None:
            yield statement
        elif not _does_nothing(statement):
            return


def _does_nothing(statement: Any) -> bool:
    return type(statement).__name__ in ("DeclBuffer", "AllocBuffer", "Bind")


def pointer_promise(condition: Any) -> tuple[Any, int] | None:
    """Buffer and bytes of what :func:`aligned` wrote, None for another condition."""
    if not isinstance(condition, tirx.EQ) or not isinstance(condition.a, _REMAINDERS):
        return None
    address, divisor = condition.a.a, condition.a.b
    if not is_call_of(address, ops.REINTERPRET) or not isinstance(divisor, tirx.IntImm):
        return None
    pointer = address.args[0]
    if not is_call_of(pointer, ops.BUFFER_DATA) or not is_zero(condition.b):
        return None
    return pointer.args[0], power_of_two_in(int(divisor))


def is_about_numbers(condition: Any) -> bool:
    """Whether a condition compares numbers that a host knows: no memory, no addresses."""
    asks = nodes_in(condition, tvm.ir.TensorLoad, tvm.ir.Call)
    return isinstance(condition, _COMPARISONS) and not asks
