"""Keep vectors whole where only the last one of a row reaches over its end."""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...analysis.assumptions import Assumptions, Prover, read_assumptions
from ...ir.conditions import conjuncts, selects_as_choices, step_of
from ...ir.contents import contents
from ...ir.ops import CHOICE
from ...ir.queries import depends_on, is_call_of, loads_in, nodes_in, substitute
from ...ir.rebuild import loop_with
from ..base import function_pass, has_call, mapped, vector_loops

#: Comparisons, and whether the left side being large makes them fail.
_FAILS_WHEN_LARGE = {tirx.LT: True, tirx.LE: True, tirx.GT: False, tirx.GE: False}


def worst_lane_condition(condition: Any, loop: Any, *, worst: bool = True) -> Any | None:
    """Condition of the lane that fails first, or last; None where that is no end of the vector."""
    var = loop.loop_var
    if not depends_on(condition, var):
        return condition
    large = _FAILS_WHEN_LARGE.get(type(condition))
    if large is None:
        return None
    step = step_of(condition.a - condition.b, var)
    if step is None:
        return None
    last = (step > 0) == (large == worst)
    lane = loop.extent - 1 if last else loop.extent * 0
    return tvm.sym.Analyzer().simplify(substitute(condition, {var: lane}))


def _is_aligned(loop: Any) -> bool:
    """Whether every access that the vector's variable moves starts at a multiple of its length."""
    lanes = int(loop.extent) if isinstance(loop.extent, tirx.IntImm) else 0
    prover, first = Prover(), {loop.loop_var: loop.extent * 0}
    accesses = nodes_in(loop.body, tvm.ir.TensorLoad, tirx.BufferStore)
    indices = (index for access in accesses for index in access.indices)
    moved = (index for index in indices if depends_on(index, loop.loop_var))
    return lanes > 0 and all(prover.is_multiple(substitute(one, first), lanes) for one in moved)


#: Comparisons that stay the same from a multiple of the lanes to the next, and for which step of
#: left minus right.
_STEADY = {tirx.LT: 1, tirx.GE: 1, tirx.LE: -1, tirx.GT: -1}


def hoist_uniform_conditions(loop: Any, assumptions: Assumptions) -> Any:
    """Take the vector's variable out of the comparisons that are the same in all lanes.

    TVM sees that ``x * 4 + v < 64`` is ``x < 16``, but not that ``4 <= x * 4 + v`` is ``1 <= x``.
    """
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(loop.extent, tirx.IntImm):
        return loop
    lanes, var = int(loop.extent), loop.loop_var
    analyzer, prover = tvm.sym.Analyzer(), Prover(assumptions.conditions)

    def steady(node: Any) -> Any:
        first = substitute(node.a - node.b, {var: loop.extent * 0})
        is_steady = step_of(node.a - node.b, var) == _STEADY[type(node)]
        if not is_steady or not prover.is_multiple(first, lanes):
            return node
        return analyzer.simplify(substitute(node, {var: loop.extent * 0}))

    body = tvm_ffi.structural_map(loop.body, [(kind, steady) for kind in _STEADY], order="post")
    return loop_with(loop, body=body)


def _guard(loop: Any) -> Any:
    branch = loop.body
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(branch, tirx.IfThenElse):
        return loop
    if branch.else_case is not None or not tvm.sym.Analyzer().can_prove(loop.min == 0):
        return loop
    if loads_in(branch.condition) and not depends_on(branch.condition, loop.loop_var):
        # TVM keeps such a vector whole; a tail would load what the condition needs once more.
        return loop
    worst = [worst_lane_condition(part, loop) for part in conjuncts(branch.condition)]
    if any(part is None for part in worst) or not _is_aligned(loop):
        return loop
    whole = loop_with(loop, body=branch.then_case)
    tail = _again(loop, "tail", tirx.ForKind.SERIAL, branch)
    return tirx.IfThenElse(reduce(tirx.And, worst), whole, tail)


def _choice_of(loop: Any) -> Any | None:
    """The one condition that differs among the lanes and by which they choose what they store."""
    calls = [one for one in nodes_in(loop.body.value, tvm.ir.Call) if is_call_of(one, CHOICE)]
    found = [one.args[0] for one in calls if depends_on(one.args[0], loop.loop_var)]
    same = (tvm_ffi.structural_equal(found[0], one) for one in found)
    return found[0] if found and all(same) else None


def _choose(loop: Any) -> Any:
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(loop.body, tirx.BufferStore):
        return loop
    condition = _choice_of(loop)
    if condition is None or not tvm.sym.Analyzer().can_prove(loop.min == 0):
        return loop
    parts = conjuncts(condition)
    worst = [worst_lane_condition(part, loop) for part in parts]
    best = [worst_lane_condition(part, loop, worst=False) for part in parts]
    if any(part is None for part in (*worst, *best)) or not _is_aligned(loop):
        return loop

    def taken(branch: int) -> Any:
        def chosen(call: Any) -> Any:
            is_choice = is_call_of(call, CHOICE)
            ours = is_choice and tvm_ffi.structural_equal(call.args[0], condition)
            return call.args[branch] if ours else call

        return tvm_ffi.structural_map(loop.body, [(tvm.ir.Call, chosen)], order="post")

    past = _again(loop, "past", loop.kind, taken(2))
    cut = _again(loop, "cut", tirx.ForKind.SERIAL, loop.body)
    rest = tirx.IfThenElse(reduce(tirx.And, best), cut, past)
    return tirx.IfThenElse(reduce(tirx.And, worst), loop_with(loop, body=taken(1)), rest)


def _apart(loop: Any) -> Any:
    """Give each store that chooses among lanes a vector: TVM does them one after the other."""
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(loop.body, tirx.SeqStmt):
        return loop
    stores = list(loop.body.seq)
    if not all(isinstance(store, tirx.BufferStore) for store in stores):
        return loop
    if not any(_choice_of(loop_with(loop, body=store)) is not None for store in stores):
        return loop
    return tirx.SeqStmt([_again(loop, str(i), loop.kind, one) for i, one in enumerate(stores)])


def _again(loop: Any, name: str, kind: Any, body: Any) -> Any:
    var = tirx.Var(f"{loop.loop_var.name}_{name}", loop.loop_var.ty)
    return tirx.For(var, loop.min, loop.extent, kind, substitute(body, {loop.loop_var: var}))


def _lazy(loop: Any) -> Any:
    """Load in a vector only what a ``Select`` by indices takes, as its scalar form does."""
    if loop.kind != tirx.ForKind.VECTORIZED:
        return loop
    return loop_with(loop, body=selects_as_choices(loop.body))


@function_pass()
def GuardVectors(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that gives a guarded vector loop a whole and a ragged form.

    TVM does a vectorized loop element by element wherever a condition differs between its lanes.
    The condition of the lane that fails first tells whether the vector is whole::

        # before                                  # after
        for v in T.vectorized(4):                 if i * 4 + 3 < 1001:
            if i * 4 + v < 1001:                      for v in T.vectorized(4):
                B[i * 4 + v] = A[i * 4 + v]               B[i * 4 + v] = A[i * 4 + v]
                                                  else:
                                                      for v in range(4):
                                                          if i * 4 + v < 1001: ...

    A choice of what is stored, the end of a pad inside a vector, has a third form for vectors past
    the end; several stores of one vector become a vector each. Conditions that are the same in all
    lanes lose the vector's variable, and so do quotients in indices.

    Leaves alone: vectors that do not start at multiples of their length, conditions that are not
    linear in the vector's variable or have an ``else``, choices by several different conditions.
    """
    if not vector_loops(func):
        return func
    if contents(func.body).nodes(tirx.Select):
        func = mapped(func, (tirx.For, _lazy))
    hoist = partial(hoist_uniform_conditions, assumptions=read_assumptions(func))
    for rule in (hoist, _guard):
        func = mapped(func, (tirx.For, rule))
    for rule in (_apart, _choose) if has_call(func, [CHOICE]) else ():
        func = mapped(func, (tirx.For, rule))
    return func
