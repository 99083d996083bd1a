"""Other expressions in the places of calls, in the Relax functions of a module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

#: Makes what stands for a call. It emits to the builder of the mutator that it is given, adds
#: functions there, and has operands that stay visited by it.
Make = Callable[[Any], relax.Expr]


def with_calls_replaced(
    mod: tvm.IRModule, made: Mapping[Any, Iterable[tuple[relax.Call, Make]]]
) -> tvm.IRModule:
    """A module with other expressions for calls of some functions, without what nobody reads."""
    one = _Replace(mod)
    for gv, calls in made.items():
        if not isinstance(mod[gv], relax.Function):
            continue  # A function of TIR calls none.
        one.makes = {call.__chandle__(): make for call, make in calls}
        one.builder_.update_func(gv, one.visit_expr(mod[gv]))
    return relax.transform.DeadCodeElimination()(one.builder_.get())


@mutator
class _Replace(PyExprMutator):
    """Puts what is made into the places of calls."""

    #: By the calls whose places these are.
    makes: dict[Any, Make]

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        make = self.makes.get(call.__chandle__())
        return super().visit_call_(call) if make is None else make(self)
