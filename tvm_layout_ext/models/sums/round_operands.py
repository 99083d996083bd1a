"""What products of ``float32`` multiply is rounded to tf32 where it is made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import tvm
from tvm import relax
from tvm.ir.expr import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...gpu.tf32 import rounded_to_tf32
from ...ir.queries import is_number
from ..bindings import Bindings
from ..known_values import array_of
from ..relax_values import VIEWS, extents_of, name_of, rewritten, source_of
from ..tf32 import OPERATORS, to_tf32

#: Operators that give elements, or zeros, other places.
_MOVES = (*VIEWS, "permute_dims", "strided_slice", "broadcast_to", "repeat", "nn.pad")
#: What reads images beside convolutions, and is as exact of rounded ones.
_SHARED = ("add", "concat", "nn.relu", "nn.max_pool2d", "nn.avg_pool2d", "image.resize2d")


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.RoundOperands")
class RoundOperands:
    """Round a value that tensor cores multiply as tf32 by the kernel that makes it.

    They cut off the 13 bits that tf32 has not: each product is too small, by up to 2**-9, and a
    ResNet-50's results by 2% (H200). Of what is rounded before, some are too large, and the error
    is cuDNN's, 0.06%. Constants are rounded while compiling.

    What others read, too, stays as it is, and a kernel more rounds a copy: in BERT, which adds what
    a product reads to its result, the error was fivefold without, and copies of 2,048 x 768 are 4%
    of a layer's time. Images are as large as all that a block computes: shortcuts, branches and
    pools read what is rounded for a convolution.

    Left as they are: inputs, products of one term, row or column, depthwise convolutions, and those
    of one result, which tensor cores do not multiply. Numbers above 3.4016e38 become infinite.

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
        #: Variables of which all readers see what is rounded, and those of which products alone do.
        self.rounded, self.copied = set[Any](), set[Any]()
        self.copies: dict[Any, Any] = {}
        #: Rounded constants, and what moves them, by the handles of what they were.
        self.constants: dict[Any, Any] = {}
        for func in mod.functions.values():
            if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr):
                self._find(Bindings.of(func))

    def _find(self, reader: Bindings) -> None:
        for call in reader.bound.values():
            for at, given in enumerate(call.args if self._multiplies(call) else ()):
                one = source_of(given, _MOVES, reader.call)
                is_made = isinstance(reader.call(one), relax.Call)
                if at == 0 and not is_made and name_of(reader.call(given)) not in VIEWS:
                    one = given  # Whoever moves an input, as to channels last, rounds it.
                shared = () if name_of(call) == "matmul" else _SHARED
                is_inside = isinstance(one, relax.DataflowVar)
                if is_inside and self._are_products(reader, one, shared):
                    self.rounded.add(one)
                elif is_inside or is_made:
                    self.copied.add(given)

    def _are_products(self, reader: Bindings, var: Any, others: Sequence[str]) -> bool:
        """Whether all that reads a value, perhaps moved, are products, or of these operators."""
        for user in reader.users.get(var, []):
            call = reader.call(user)
            if name_of(call) in _MOVES:
                if not self._are_products(reader, user, others):
                    return False
            elif name_of(call) not in others and not self._multiplies(call):
                return False
        return True

    def _multiplies(self, call: Any) -> bool:
        """Whether tensor cores multiply the operands of a call as tf32."""
        if not isinstance(call, relax.Call) or f"relax.{name_of(call)}" not in self.operators:
            return False
        if any(str(one.ty.dtype) != "float32" for one in call.args):
            return False
        return not (_is_thin if name_of(call) == "matmul" else _is_depthwise)(call)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if binding.var not in self.rounded:
            super().visit_var_binding_(binding)
        else:
            value = self.builder_.emit(self.visit_expr(binding.value))
            self.set_var_remap(binding.var, self.builder_.emit(to_tf32(value)))
        if binding.var in self.copied and binding.var not in self.rounded:
            value = self.visit_expr(binding.var)
            self.copies[binding.var] = self.builder_.emit(to_tf32(value))

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not self._multiplies(call):
            return super().visit_call_(call)
        given = [
            self.copies[one] if one in self.copies else self._constant(self.visit_expr(one))
            for one in call.args
        ]
        return relax.Call(call.op, given, call.attrs, call.ty_args)

    def _constant(self, value: Any) -> Any:
        """A constant, perhaps moved, of rounded elements; another value as it is."""
        made = self.lookup_binding(value) if isinstance(value, relax.Var) else value
        is_constant = isinstance(made, GenericConst)
        if not is_constant and name_of(made) not in _MOVES:
            return value
        if not is_constant and not isinstance(value, relax.DataflowVar):
            return self._moved(value, made)  # What is made of it here others may not read.
        key = made.__chandle__()
        if key not in self.constants:
            self.constants[key] = self._moved(value, made)
        return self.constants[key]

    def _moved(self, value: Any, made: Any) -> Any:
        if isinstance(made, GenericConst):
            array = array_of(made, self.lookup_binding)
            return made if array is None else relax.const(rounded_to_tf32(array), "float32")
        inner = self._constant(made.args[0])
        if inner is made.args[0]:
            return value
        return self.builder_.emit(
            relax.Call(made.op, [inner, *made.args[1:]], made.attrs, made.ty_args)
        )


def _is_thin(call: relax.Call) -> bool:
    """Whether a product has one row, column or term: of a term nothing is added up."""
    (*_, terms), right = (extents_of(one) or (0,) for one in call.args)
    rows = (extents_of(call.args[0]) or (0,))[:-1]
    own = rows if len(right) <= 2 else rows[-1:]  # Of matrices of their own batches count no rows.
    return is_number(terms, 1) or is_number(right[-1], 1) or all(is_number(n, 1) for n in own)


def _is_depthwise(call: relax.Call) -> bool:
    """Whether each channel of a convolution is summed alone, or there is one result."""
    attrs, weight = call.attrs, extents_of(call.args[1]) or ()
    sizes = dict(zip(str(attrs.kernel_layout), weight, strict=False))
    image = dict(zip(str(attrs.data_layout), extents_of(call.args[0]) or (), strict=False))
    window = [size for axis, size in sizes.items() if axis not in "OI"]
    is_one = is_number(image.get("C", 0), int(attrs.groups))  # A channel a group
    if int(attrs.groups) == 1:
        is_one = is_one and all(is_number(size, 1) for size in window)
    return is_one or is_number(sizes.get("O", 0), 1)
