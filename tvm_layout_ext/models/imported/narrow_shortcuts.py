"""``NarrowShortcuts``: what is rounded for a product is rounded for the shortcut around it, too."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..relax_values import ELEMENTWISE, name_of, uses_of

_NARROW, _WIDE = ("float16", "bfloat16"), "float32"


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.NarrowShortcuts")
class NarrowShortcuts:
    """Store values of ``float32`` once, in the 16 bits that a convolution or product reads.

    ``ToMixedPrecision`` keeps what follows a batch norm in ``float32``: the block's result is
    stored in 32 bits for the shortcut, and once more, rounded, for the next convolution. PyTorch's
    autocast has it in 16 bits alone. This pass rounds the shortcut as well, and widens it again
    where it is added: half the bytes, a kernel less a block, and an error of half a unit of 16 bits
    a shortcut more. Only values that are read element by element otherwise are rounded.

    Run it behind ``ToMixedPrecision``; :func:`.relax_pipeline` does not, for it changes results.

    Examples
    --------
    >>> mod = relax.transform.ToMixedPrecision()(mod)  # doctest: +SKIP
    >>> mod = tlx.NarrowShortcuts()(mod)  # doctest: +SKIP
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        one = _Narrow(mod)
        for gv, func in mod.functions_items():
            if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr):
                one.read(func)
                one.builder_.update_func(gv, one.visit_expr(func))
        return one.builder_.get()


@mutator
class _Narrow(PyExprMutator):
    """Emits the rounded value behind each one that is rounded, and reads it in its place."""

    def read(self, func: relax.Function) -> None:
        """Find what is rounded: values, and the types that they are rounded to."""
        users: dict[Any, list[Any]] = defaultdict(list)
        for block in func.body.blocks:
            for one in block.bindings:
                for var in uses_of(one.value):
                    users[var].append(one.value)
        for var in uses_of(func.body.body):
            users[var].append(None)
        bound = {one.var for block in func.body.blocks for one in block.bindings}
        self.types = {
            var: dtype for var in bound if (dtype := _rounded(var, users[var])) is not None
        }
        self.narrow: dict[Any, Any] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        super().visit_var_binding_(binding)
        dtype = self.types.get(binding.var)
        if dtype is not None:
            value = self.visit_expr(binding.var)
            self.narrow[binding.var] = self.builder_.emit(relax.op.astype(value, dtype))

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not any(one in self.narrow for one in call.args if isinstance(one, relax.Var)):
            return super().visit_call_(call)
        if _type_to(call) is not None:
            return self.narrow[call.args[0]]
        given = [
            self.builder_.emit(relax.op.astype(self.narrow[one], _WIDE))
            if isinstance(one, relax.Var) and one in self.narrow
            else self.visit_expr(one)
            for one in call.args
        ]
        return relax.Call(call.op, given, call.attrs, call.ty_args)


def _type_to(call: Any) -> str | None:
    """The narrow type to which a call rounds, or None."""
    dtype = str(call.attrs.dtype) if name_of(call) == "astype" else ""
    return dtype if dtype in _NARROW else None


def _rounded(var: Any, users: list[Any]) -> str | None:
    """The type to which all readers of a value may have it rounded, as one of them has; or None."""
    if getattr(var.ty, "dtype", "") != _WIDE or None in users:
        return None
    types = {dtype for one in users if (dtype := _type_to(one)) is not None}
    others = [name_of(one) for one in users if _type_to(one) is None]
    if len(types) != 1 or not others or not all(one in ELEMENTWISE for one in others):
        return None
    return types.pop()
