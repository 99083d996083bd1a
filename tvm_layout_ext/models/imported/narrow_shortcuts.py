"""``NarrowShortcuts``: what is rounded for a product is rounded for the shortcut around it, too."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...checks import takes_module
from ..relax_values import ELEMENTWISE, NARROW_FLOATS, VIEWS, name_of, uses_of

_WIDE = "float32"
_MOVES = (*VIEWS, "permute_dims", "broadcast_to")


@takes_module
@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.NarrowShortcuts")
class NarrowShortcuts:
    """Store values of ``float32`` once, in the 16 bits that a convolution or product reads.

    ``ToMixedPrecision`` keeps norms, and what follows them, in ``float32``: the block's result is
    stored in 32 bits for the shortcut, and once more, rounded, for the next convolution. PyTorch's
    autocast has it in 16 bits alone. This pass rounds the shortcut as well, and widens it again
    where it is added: half the bytes, a kernel less a block, and an error of half a unit of 16 bits
    a shortcut more. Only values that are read element by element otherwise are rounded. What moves
    elements between a value and its rounding, as a permutation does, moves the rounded ones.

    Run it behind ``ToMixedPrecision``; :func:`.relax_pipeline` does not, for it changes results.

    Examples
    --------
    >>> mod = relax.transform.ToMixedPrecision()(mod)  # doctest: +SKIP
    >>> mod = tlx.NarrowShortcuts()(mod)  # doctest: +SKIP
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        one = _RoundedOnce(mod)
        for gv, func in mod.functions_items():
            if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr):
                one.read(func)
                one.builder_.update_func(gv, one.visit_expr(func))
        return one.builder_.get()


@mutator
class _RoundedOnce(PyExprMutator):
    """Emits the rounded value behind each one that is rounded, and reads it in its place."""

    def read(self, func: relax.Function) -> None:
        """Find what is rounded: values, and the types that they are rounded to."""
        users: dict[Any, list[Any]] = defaultdict(list)
        bindings = [one for block in func.body.blocks for one in block.bindings]
        for one in bindings:
            for var in uses_of(one.value):
                users[var].append(one)
        for var in uses_of(func.body.body):
            users[var].append(None)
        self.types: dict[Any, str] = {}
        self.moved: dict[Any, str] = {}
        for one in reversed(bindings):
            dtype, is_alone = self._rounded(one.var, users[one.var])
            if dtype is not None and is_alone and name_of(one.value) in _MOVES:
                self.moved[one.var] = dtype
            elif dtype is not None and not is_alone:
                self.types[one.var] = dtype
        self.narrow: dict[Any, Any] = {}

    def _rounded(self, var: Any, users: list[Any]) -> tuple[str | None, bool]:
        """The type to which all readers of a value may have it rounded, and whether all do so."""
        if getattr(var.ty, "dtype", "") != _WIDE or None in users:
            return None, False
        found = [self.moved.get(one.var) or _type_to(one.value) for one in users]
        types = {dtype for dtype in found if dtype is not None}
        others = [one for one, dtype in zip(users, found, strict=True) if dtype is None]
        if len(types) != 1 or not all(name_of(one.value) in ELEMENTWISE for one in others):
            return None, False
        return types.pop(), not others

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        var, call = binding.var, binding.value
        if var in self.moved and call.args[0] in self.narrow:
            given = [self.narrow[call.args[0]], *call.args[1:]]
            moved = relax.Call(call.op, given, call.attrs, call.ty_args)
            self.narrow[var] = self.builder_.emit(moved)
            return
        super().visit_var_binding_(binding)
        if (dtype := self.types.get(var)) is not None:
            value = self.visit_expr(var)
            self.narrow[var] = self.builder_.emit(relax.op.astype(value, dtype))

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
    return dtype if dtype in NARROW_FLOATS else None
