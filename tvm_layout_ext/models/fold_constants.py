"""What is computed of constants is computed by NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir.expr import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from .known_values import array_of
from .relax_values import VIEWS, bound_to, dims_of, name_of, rewritten, tensors_of

#: Operators of which NumPy gives the bits that TVM's own code gives.
_ARITHMETIC = ("add", "subtract", "multiply", "divide", "sqrt", "negative")
_MOVES = (
    *(*VIEWS, "permute_dims", "concat", "flip", "nn.pad", "full", "broadcast_to", "take"),
    *("strided_slice", "slice_scatter"),
)
#: Elements that are repeated at most, as of places; TVM's ``FoldConstant`` repeats more of them.
_MOST_REPEATED = 1 << 20
_COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
#: Those of whole numbers and truth values.
_OF_WHOLE = (
    *("add", "subtract", "multiply", *_COMPARISONS),
    *("logical_and", "logical_or", "logical_not", "where", "arange"),
)
_FLOATS = ("float16", "bfloat16", "float32", "float64")


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.FoldConstants")
class FoldConstants:
    """Put constants in the place of what is computed of constants.

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
        name = name_of(call)
        if name not in (*_ARITHMETIC, *_MOVES, *_OF_WHOLE, "astype", "rsqrt"):
            return call
        given = tensors_of(call, self.lookup_binding)
        known = [bound_to(one, self.lookup_binding) for one in given]
        self.builder_.normalize(call)
        if not all(isinstance(one, GenericConst) for one in known):
            return call
        if not _has_its_bits(name, [*map(_type_of, known)], _type_of(call)):
            return call
        with np.errstate(all="ignore"):  # What becomes infinite does so here as there.
            if name == "broadcast_to" and prod(dims_of(call) or [0]) > _MOST_REPEATED:
                found = None
            else:
                found = array_of(call, self.lookup_binding)
        return call if found is None else relax.const(found, _type_of(call))


def _has_its_bits(name: str, given: Sequence[str], made: str) -> bool:
    """Whether NumPy computes an operator of these types to this one as TVM does."""
    if name in ("take", "where"):
        # Numbers are chosen, and none is computed.
        return made == given[0 if name == "take" else -1]
    if name in _COMPARISONS:
        # NaN is not equal to itself, as in torch; TVM's code for the CPU says that it is.
        return True
    floats = [one in _FLOATS for one in (*given, made)]
    if name == "rsqrt":
        # Of 16 bits TVM rounds once, NumPy twice.
        return made == "float32"
    if name in (*_MOVES, "astype"):
        # What a float is as a whole number that does not hold it is the machine's own.
        return all(floats) or not any(floats) or (made == "float32" and not floats[0])
    if all(floats):
        return name in _ARITHMETIC
    if made == "bool" and name in _ARITHMETIC:
        return False
    return name in _OF_WHOLE and not any(floats)


def _type_of(value: relax.Expr) -> str:
    return str(value.ty.dtype)
