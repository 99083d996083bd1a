"""``MergeAlike``: what is computed twice is computed once; constants are not read for it."""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

#: Elements of the least constant that is like itself alone.
_LEAST = 1 << 16


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.MergeAlike")
class MergeAlike:
    """``EliminateCommonSubexpr``, which reads constants for it: two seconds for 2 GB of weights."""

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        functions, apart = dict(mod.functions.items()), dict[str, dict[Any, Any]]()
        for gv, func in mod.functions_items():
            if isinstance(func, relax.Function):
                functions[gv], apart[gv.name_hint] = _without_constants(func)
        found = tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
        passes = [relax.transform.BindParams(name, one) for name, one in apart.items() if one]
        merged = [relax.transform.EliminateCommonSubexpr(), *passes]
        result: tvm.IRModule = tvm.transform.Sequential(merged)(found)
        return result


def _without_constants(func: relax.Function) -> tuple[relax.Function, dict[Any, Any]]:
    """A function whose last parameters are its large constants, and what they hold."""
    one = _ConstantsApart()
    body = one.visit_expr(func.body)
    if not one.params:
        return func, {}
    params = [*func.params, *one.params.values()]
    given = relax.Function(params, body, func.ret_ty, func.is_pure, func.attrs)
    return given, {param: data for data, param in one.params.items()}


@mutator
class _ConstantsApart(PyExprMutator):
    """Puts parameters for large constants."""

    def __init__(self) -> None:
        super().__init__()
        self.params = dict[Any, relax.Var]()

    def visit_generic_const_(self, constant: Any) -> Any:
        data = constant.value
        if prod(data.shape) < _LEAST:
            return constant
        if data not in self.params:
            self.params[data] = relax.Var(f"constant{len(self.params)}", constant.ty)
        return self.params[data]
