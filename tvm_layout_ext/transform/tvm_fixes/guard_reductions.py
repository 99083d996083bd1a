"""Keep the guard of a result that threads reduce together.

TVM 0.27's LowerCrossThreadReduction stores the result under the block's guard only where that guard
names a reduction loop. A guard of the data axes alone is lost, and the last, partial block of
threads stores out of bounds.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlockRealize

from ..base import function_pass


def _variables(expr: Any) -> list[Any]:
    return list(tirx.analysis.undefined_vars(expr))


def _common(some: list[Any], others: list[Any]) -> bool:
    return any(a.same_as(b) for a in some for b in others)


def _thread_loops(func: tirx.PrimFunc) -> list[Any]:
    loops: list[Any] = []
    tvm_ffi.structural_walk(func.body, [(tirx.For, loops.append)])
    return [loop for loop in loops if loop.kind == tirx.ForKind.THREAD_BINDING]


def _guarded(realize: SBlockRealize, threads: list[Any]) -> SBlockRealize:
    """The realisation with the bound of its reducing thread in the guard, true as it is."""
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    summed = [
        variable
        for axis, value in pairs
        if axis.iter_type == tirx.IterVar.CommReduce
        for variable in _variables(value)
    ]
    used = _variables(realize.predicate)
    reducing = [loop for loop in threads if _common([loop.loop_var], summed)]
    if not reducing or not used or _common(used, summed):
        return realize
    bound = reducing[0].loop_var < reducing[0].extent
    return SBlockRealize(realize.iter_values, tirx.And(realize.predicate, bound), realize.block)


@function_pass("GuardReductions")
def _guard_reductions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    threads = _thread_loops(func)
    rules = [(SBlockRealize, lambda realize: _guarded(realize, threads))]
    return func.with_body(tvm_ffi.structural_map(func.body, rules, order="post"))


def GuardReductions() -> Any:
    """Create the pass that keeps the guard of a result which threads reduce together.

    The bound of the reducing thread, which always holds, makes the guard name one; StmtSimplify
    takes it out again::

        # before                              # after
        T.where(i_0 * 8 + i_1 < 33)           T.where(i_0 * 8 + i_1 < 33 and k_1 < 32)
    """
    return _guard_reductions
