"""``WeightsApart``: large constants are given to ``main``, so that modules may share them."""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from .memory_apart import MAIN

#: Bytes of the least constant that becomes a parameter, each of which costs a call 90 ns.
_LEAST = 1 << 16
#: Types that torch's tensors have, too.
_TYPES = ("float32", "float16", "bfloat16", "int8", "uint8", "int32", "uint32", "int64")


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.WeightsApart")
class WeightsApart:
    """Make the large constants that ``main`` gives to functions of TIR its last parameters.

    TVM's virtual machine has a copy of all constants for each module, also where another one, as
    that of a prompt beside that of a token, has the same.

    Attributes
    ----------
    weights : list of tvm.runtime.Tensor
        What was constant, in the order of the parameters.
    """

    def __init__(self) -> None:
        self.weights: list[Any] = []

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite a module whose memory is planned."""
        main, given = mod[MAIN], _Given()
        body = given.visit_expr(main.body)
        self.weights = [*given.params]
        mod = tvm.IRModule(dict(mod.functions.items()), attrs=mod.attrs)
        params = [*main.params, *given.params.values()]
        mod[MAIN] = relax.Function(params, body, main.ret_ty, main.is_pure, main.attrs)
        return mod


@mutator
class _Given(PyExprMutator):
    """Puts parameters for constants."""

    def __init__(self) -> None:
        super().__init__()
        self.params = dict[Any, relax.Var]()

    def visit_call_(self, call: Any) -> Any:
        if not isinstance(call.op, tvm.ir.GlobalVar):
            return super().visit_call_(call)
        args = [self._param(one) if _is_large(one) else one for one in call.args]
        return relax.Call(call.op, args, call.attrs, call.ty_args)

    def _param(self, constant: Any) -> relax.Var:
        if constant.value not in self.params:
            # Without a shape, which each call would compare: 60 ns instead of 120.
            kind = relax.TensorType(dtype=constant.ty.dtype, ndim=constant.ty.ndim)
            self.params[constant.value] = relax.Var(f"weight{len(self.params)}", kind)
        return self.params[constant.value]


def _is_large(value: Any) -> bool:
    if not isinstance(value, GenericConst):
        return False
    dtype = str(value.value.dtype)
    return dtype in _TYPES and prod(value.value.shape) * tvm.DataType(dtype).itemsize >= _LEAST
