"""What products of ``float32`` multiply is rounded to tf32 where it is made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import tvm
from tvm import relax
from tvm.ir.expr import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.queries import is_number
from ..bindings import Bindings
from ..known_values import array_of
from ..relax_values import VIEWS, extents_of, name_of, rewritten, source_of
from ..tf32 import OPERATORS, rounded_array, to_tf32

#: Operators that give elements, or zeros, other places.
_MOVES = (*VIEWS, "permute_dims", "strided_slice", "broadcast_to", "repeat", "nn.pad")


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.RoundOperands")
class RoundOperands:
    """Round a value that tensor cores multiply as tf32 by the kernel that makes it.

    They cut off the 13 bits that tf32 has not: each product is too small, by up to 2**-9, and a
    ResNet-50's results by 2% (H200). Of what is rounded before, some are too large, and the error
    is cuDNN's, 0.06%. Constants are rounded while compiling. Whoever else reads such a value, as a
    shortcut, reads it rounded, too. Inputs and results of the module are left as they are.

    ``tf32`` are the kinds of products (:mod:`..tf32`).
    """

    def __init__(self, tf32: Iterable[str]) -> None:
        self.operators = frozenset(name for kind in tf32 for name in OPERATORS[kind])

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        if not self.operators:
            return mod
        made = rewritten(mod, partial(_Rounded, operators=self.operators))
        return relax.transform.DeadCodeElimination()(made)


@mutator
class _Rounded(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, operators: frozenset[str]) -> None:
        super().__init__(mod)
        self.operators = operators
        #: What products are made of, before it was moved.
        self.multiplied = {
            one
            for func in mod.functions.values()
            if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr)
            for one in self._found(Bindings.of(func))
        }

    def _found(self, reader: Bindings) -> Iterator[Any]:
        for call in reader.bound.values():
            for at, given in enumerate(call.args if self._multiplies(call) else ()):
                one = source_of(given, _MOVES, reader.call)
                is_made = isinstance(reader.call(one), relax.Call)
                if at == 0 and not is_made and name_of(reader.call(given)) not in VIEWS:
                    one = given  # Whoever moves an input, as to channels last, rounds it.
                if isinstance(one, relax.DataflowVar):
                    yield one

    def _multiplies(self, call: Any) -> bool:
        """Whether tensor cores multiply the operands of a call as tf32."""
        if not isinstance(call, relax.Call) or f"relax.{name_of(call)}" not in self.operators:
            return False
        if name_of(call) == "matmul" and is_number((extents_of(call.args[0]) or (0,))[-1], 1):
            return False  # Of one term nothing is added up: angles of places are exact.
        return all(str(one.ty.dtype) == "float32" for one in call.args)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if binding.var not in self.multiplied:
            super().visit_var_binding_(binding)
            return
        value = self.builder_.emit(self.visit_expr(binding.value))
        self.set_var_remap(binding.var, self.builder_.emit(to_tf32(value)))

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not self._multiplies(call):
            return call
        given = [self._constant(one) for one in call.args]
        return relax.Call(call.op, given, call.attrs, call.ty_args)

    def _constant(self, value: Any) -> Any:
        """A constant, perhaps moved, of rounded elements; another value as it is."""
        made = self.lookup_binding(value) if isinstance(value, relax.Var) else value
        if isinstance(made, GenericConst):
            array = array_of(made, self.lookup_binding)
            return made if array is None else relax.const(rounded_array(array), "float32")
        if name_of(made) not in _MOVES:
            return value
        inner = self._constant(made.args[0])
        if inner is made.args[0]:
            return value
        return self.builder_.emit(
            relax.Call(made.op, [inner, *made.args[1:]], made.attrs, made.ty_args)
        )
