"""Compiles TIR expressions to :class:`.code.Code`."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
from tvm.ir.prim.expr import IntImm

from ...errors import NotModelled
from ..model.code import (
    FIXED,
    LAUNCH,
    UNIFORM,
    VARYING,
    Code,
    Run,
    constant,
    lift,
    mask_and,
)
from ..model.places import handle
from ..model.values import cast, either, is_float, is_float8, is_narrow, numpy_type
from .arithmetic import BINARY, COMPARISONS, binary

#: A slot, and what is kept in it.
Kept = tuple[int, Run]


class ExpressionCompiler:
    """Turns expressions into functions of (path, mask); subclasses do loads and calls."""

    def __init__(self) -> None:
        self.scope: dict[int, Code] = {}
        self.slots = 0
        self.caches = 0
        self._handlers: dict[str, Callable[[Any], Code]] = {
            "IntImm": self._constant,
            "FloatImm": self._constant,
            "Var": self._var,
            "Cast": self._cast,
            "And": lambda e: short_circuit(self.expr(e.a), self.branch(e.b), stop=False),
            "Or": lambda e: short_circuit(self.expr(e.a), self.branch(e.b), stop=True),
            "Not": lambda e: lift(np.logical_not, self.expr(e.a)),
            "BitwiseNot": lambda e: lift(np.invert, self.expr(e.a)),
            "Select": lambda e: self.choice(e.condition, e.true_value, e.false_value),
            "Let": self._let,
            "Ramp": self._ramp,
            "Broadcast": self._broadcast,
            "Shuffle": self._shuffle,
            "TensorLoad": self.load,
            "Call": self.call,
        }
        for name in BINARY:
            self._handlers[name] = self.arithmetic
        for name in COMPARISONS:
            self._handlers[name] = self._compare

    # What subclasses define.

    def load(self, expr: Any) -> Code:
        """Compile a buffer load."""
        raise NotModelled(f"A load of {expr.source.name} is not possible here.")

    def call(self, expr: Any) -> Code:
        """Compile a call."""
        raise NotModelled(f"The simulated GPU does not model {expr.op.name}.")

    def branch(self, expr: Any, how: Callable[[Any], Code] | None = None) -> Code:
        """Compile an operand that only some threads evaluate."""
        return (how or self.expr)(expr)

    def note_value(self, var: Any, value: Any) -> None:
        """Note what a variable is bound to."""

    # Bookkeeping.

    def expr(self, expr: Any) -> Code:
        """Compile an expression."""
        name = type(expr).__name__
        handler = self._handlers.get(name)
        if handler is None:
            raise NotModelled(f"The simulated GPU does not model {name} in {expr}.")
        return handler(expr)

    def new_slot(self) -> int:
        """Reserve a place for a value among a path's."""
        self.slots += 1
        return self.slots - 1

    def new_cache(self) -> int:
        """Reserve a place for a value that is computed once a batch."""
        self.caches += 1
        return self.caches - 1

    def cached(self, code: Code) -> Code:
        """Compute a value that is fixed for the batch only once."""
        if code.taint or code.rank not in (LAUNCH, FIXED):
            return code
        number, run = self.new_cache(), code.run

        def remembered(s: Any, m: Any) -> Any:
            cache = s.batch.cache
            value = cache[number]
            if value is None:
                value = cache[number] = run(s, None)
            return value

        return Code(remembered, code.rank, False, code.terms)

    def bind(self, var: Any, value: Any) -> list[Kept]:
        """Give a variable a value; return the slots that its statement fills."""
        self.scope[handle(var)], kept = self.kept(self.narrowed(value))
        return kept

    def kept(self, code: Code) -> tuple[Code, list[Kept]]:
        """Code of a value that is computed now: inlined where it costs nothing, else in a slot."""
        if not code.taint and code.rank in (LAUNCH, FIXED):
            return self.cached(code), []
        if not code.taint and (code.rank == UNIFORM or code.terms is not None):
            return code, []
        slot = self.new_slot()
        return Code(lambda s, m: s.slots[slot], code.rank, code.taint), [(slot, code.run)]

    # Leaves.

    def _constant(self, expr: Any) -> Code:
        dtype, _ = numpy_type(expr)
        return constant(
            cast(np.float64(expr.value), dtype) if is_float(dtype) else dtype.type(expr.value)
        )

    def _var(self, expr: Any) -> Code:
        found = self.scope.get(handle(expr))
        if found is None:
            raise NotModelled(f"Variable {expr.name} has no value here.")
        return found

    # Arithmetic.

    def operand(self, expr: Any) -> Code:
        """Compile an operand as C promotes it: a narrow integer computes as int."""
        return self._as(expr, np.dtype(np.int32))

    def narrowed(self, expr: Any) -> Code:
        """Compile a value that is kept in a variable or memory of its declared type."""
        return self._as(expr, numpy_type(expr)[0])

    def _as(self, expr: Any, narrow: Any) -> Code:
        """Compile an expression, as ``narrow`` if it is a narrow integer."""
        code = self.expr(expr)
        dtype, lanes = numpy_type(expr)
        if lanes == 1 and is_narrow(dtype):
            return lift(lambda x: np.asarray(x).astype(narrow), code)
        return code

    def arithmetic(self, expr: Any) -> Code:
        """Compile an operator."""
        dtype, lanes = numpy_type(expr)
        if dtype.kind in "iu" and lanes == 1 and type(expr).__name__ in ("Add", "Sub"):
            return self._sum(expr)
        if is_float8(dtype):
            raise NotModelled(
                f"CUDA has no {type(expr).__name__} of {dtype} values; cast them to float32 first."
            )
        right = expr.b.value if isinstance(expr.b, IntImm) else None
        codes = self.together(self.operand(expr.a), self.operand(expr.b))
        return lift(binary(type(expr).__name__, right), *codes)

    def together(self, *codes: Code) -> list[Code]:
        """Operands of one operation; those that change less often than its result are kept."""
        rank = reduce(or_, (code.rank for code in codes))
        return [code if rank in (code.rank, LAUNCH) else self.cached(code) for code in codes]

    def _terms(self, expr: Any, sign: int) -> list[tuple[int, Code]]:
        name = type(expr).__name__
        if name in ("Add", "Sub"):
            right = sign if name == "Add" else -sign
            return self._terms(expr.a, sign) + self._terms(expr.b, right)
        code = self.operand(expr)
        if code.terms is not None:
            return [(sign * inner, term) for inner, term in code.terms]
        return [(sign, code)]

    def _sum(self, expr: Any) -> Code:
        """Add up a sum with its fixed terms first, which are computed once; integers wrap."""
        terms = self._terms(expr, 1)
        fixed = [t for t in terms if t[1].rank in (LAUNCH, FIXED) and not t[1].taint]
        rest = [t for t in terms if not (t[1].rank in (LAUNCH, FIXED) and not t[1].taint)]
        parts = []
        if fixed:
            parts.append((1, self.cached(added(fixed))))
        parts.extend(sorted(rest, key=lambda term: term[1].rank))
        total = added(parts)
        splittable = all(code.rank != VARYING and not code.taint for _, code in parts)
        return Code(total.run, total.rank, total.taint, tuple(parts) if splittable else None)

    def _compare(self, expr: Any) -> Code:
        a, b = self.operand(expr.a), self.operand(expr.b)
        return lift(COMPARISONS[type(expr).__name__], a, b)

    def _cast(self, expr: Any) -> Code:
        dtype, _ = numpy_type(expr)
        inner = self.operand(expr.value)
        return lift(lambda x: cast(x, dtype), inner)

    # Logic.

    def choice(self, condition: Any, true: Any, false: Any) -> Code:
        """Compile C's ``? :``, which evaluates only the branch that a thread takes."""
        test = self.expr(condition)
        return choose(test, self.branch(true, self.operand), self.branch(false, self.operand))

    def _let(self, expr: Any) -> Code:
        kept = self.bind(expr.var, expr.value)
        self.note_value(expr.var, expr.value)
        body = self.expr(expr.body)
        if not kept:
            return body

        def run(s: Any, m: Any) -> Any:
            for slot, value in kept:
                s.slots[slot] = value(s, m)
            return body.run(s, m)

        return Code(run, body.rank | self.scope[handle(expr.var)].rank, body.taint)

    # Vectors.

    def _ramp(self, expr: Any) -> Code:
        steps = np.arange(int(expr.lanes.value))[:, None]
        dtype, _ = numpy_type(expr)
        return lift(
            lambda base, stride: base + stride * steps.astype(dtype),
            self.expr(expr.base),
            self.expr(expr.stride),
        )

    def _broadcast(self, expr: Any) -> Code:
        return lift(lambda x: np.asarray(x).reshape(1, -1), self.narrowed(expr.value))

    def _shuffle(self, expr: Any) -> Code:
        picks = [int(index.value) for index in expr.indices]
        widths = [numpy_type(vector)[1] for vector in expr.vectors]

        def pick(*vectors: Any) -> Any:
            rows: list[Any] = []
            for vector, width in zip(vectors, widths, strict=True):
                rows.extend(element(vector, i, width) for i in range(width))
            chosen = [rows[index] for index in picks]
            return chosen[0] if len(picks) == 1 else np.stack(np.broadcast_arrays(*chosen))

        pairs = [self.narrowed(vector).pair for vector in expr.vectors]

        def run(s: Any, m: Any) -> Any:
            values, codes = zip(*[pair(s, m) for pair in pairs], strict=True)
            if all(code is None for code in codes):
                return pick(*values), None
            return pick(*values), pick(*[np.int64(0) if c is None else c for c in codes])

        return Code(run, VARYING, True)


def element(vector: Any, index: int, width: int) -> Any:
    """One element of a vector value, which may be stored once for all elements or all threads."""
    value = np.asarray(vector)
    if width == 1 or value.ndim == 0:
        return value
    row = value[index if value.shape[0] > 1 else 0] if value.ndim == 2 else value
    return row[0] if row.shape == (1,) else row


def added(terms: list[tuple[int, Code]]) -> Code:
    """Sum of signed terms."""
    sign, total = terms[0]
    if sign < 0:
        total = lift(np.negative, total)
    for sign, code in terms[1:]:
        total = lift(np.add if sign > 0 else np.subtract, total, code)
    return total


def short_circuit(a: Code, b: Code, stop: bool) -> Code:
    """Compile ``a && b`` (stop False) or ``a || b`` (stop True), ``b`` only where it matters.

    Poison in ``b`` does not matter to a thread that ``a`` decides.
    """
    join = np.logical_or if stop else np.logical_and
    if not a.taint and not b.taint and a.rank in (LAUNCH, FIXED) and b.rank in (LAUNCH, FIXED):
        return lift(join, a, b)
    left, right = a.pair, b.pair

    def run(s: Any, m: Any) -> Any:
        x, p = left(s, m)
        if np.ndim(x) == 0 and p is None:
            return (x, None) if bool(x) is stop else right(s, m)
        open_ = x == np.bool_(not stop)
        if p is not None:
            open_ = open_ & (p == 0)
        inner = mask_and(m, np.broadcast_to(open_, (s.batch.size,)) if open_.ndim < 2 else None)
        if open_.ndim == 2:
            inner = m
        elif not inner.any():
            return x, p
        y, q = right(s, inner)
        if q is not None:
            q = np.where(open_, q, 0)
        return join(x, y), either(p, q)

    taint = a.taint or b.taint
    code = Code(run, a.rank | b.rank, True)
    return code if taint else Code(lambda s, m: run(s, m)[0], a.rank | b.rank)


def choose(condition: Code, true: Code, false: Code) -> Code:
    """Compile ``condition ? true : false``.

    The result of a poisoned condition is poison; such a thread evaluates neither branch.
    """
    rank = condition.rank | true.rank | false.rank
    taint = condition.taint or true.taint or false.taint
    test, yes, no = condition.pair, true.pair, false.pair

    def run(s: Any, m: Any) -> Any:
        c, p = test(s, m)
        if np.ndim(c) == 0 and p is None:
            return yes(s, m) if c else no(s, m)
        if np.ndim(c) == 2:
            return _blend(c, p, yes(s, m), no(s, m))
        where_true, where_false = mask_and(m, c), mask_and(m, ~c)
        if p is not None:
            where_true, where_false = where_true & (p == 0), where_false & (p == 0)
        if p is None and not where_false.any():
            return yes(s, m)
        if p is None and not where_true.any():
            return no(s, m)
        return _blend(c, p, yes(s, where_true), no(s, where_false))

    return Code(run, rank, True) if taint else Code(lambda s, m: run(s, m)[0], rank)


def _blend(c: Any, p: Any, yes: tuple[Any, Any], no: tuple[Any, Any]) -> tuple[Any, Any]:
    (x, q), (y, r) = yes, no
    value = np.where(c, x, y)
    if q is None and r is None:
        return value, p
    chosen = np.where(c, 0 if q is None else q, 0 if r is None else r)
    return value, either(p, chosen)
