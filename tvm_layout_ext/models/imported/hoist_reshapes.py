"""Reshapes behind products, and what is computed from these element by element, go before them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.queries import are_equal, is_number
from ..relax_values import (
    ELEMENTWISE,
    NARROW_FLOATS,
    bound_in_reach,
    cleaned,
    extents_of,
    has_shape,
    name_of,
    source_of,
    uses_of,
)


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.HoistReshapes")
class HoistReshapes:
    """Take reshapes before products by matrices and elementwise operators where it joins them.

    ``run_decompositions`` writes a linear as a reshape of its rows to one dim, a product, and a
    reshape back, which keeps the product from what follows it. A reshape of a product's rows is one
    of its operand; one of what is computed from another reshape is none. What is reshaped, then
    rounded, is rounded before: a norm writes 16 bits, and all products that read it share them.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        mod = cleaned(mod)  # Names that nobody reads are no users.
        for ends in ("astype", "matmul", "reshape"):
            mod = _hoisted(mod, ends)
        return mod


def _hoisted(mod: tvm.IRModule, ends: str) -> tvm.IRModule:
    one = _Hoist(mod)
    one.ends = ends
    for gv, func in mod.functions_items():
        if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr):
            one.read(func)
            one.builder_.update_func(gv, one.visit_expr(func))
    return cleaned(one.builder_.get()) if one.changed else mod


@dataclass(frozen=True)
class _Reshaped:
    """A value that is read with another shape."""

    value: relax.Expr
    shape: tuple[Any, ...]


@dataclass(frozen=True)
class _Path:
    """A call that is done with another shape; its operands stay as they are where they are None."""

    call: relax.Call
    operands: tuple[_Path | _Reshaped | None, ...]


@mutator
class _Hoist(PyExprMutator):
    """Hoists roundings over reshapes, or these up to products or to reshapes that they undo."""

    ends = "matmul"
    changed = False

    def read(self, func: relax.Function) -> None:
        """Find what the variables of a function are bound to, and how often each is used."""
        bindings = [one for block in func.body.blocks for one in block.bindings]
        self.bound = {one.var: one.value for one in bindings}
        values = [*(one.value for one in bindings), func.body.body]
        self.users = Counter(var for value in values for var in uses_of(value))

    def _call(self, value: Any) -> Any:
        return bound_in_reach(value, self.bound.get)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if self.ends == "astype":
            return self._rounded(call)
        shape = extents_of(call) if name_of(call) == "reshape" else None
        path = None if shape is None else self._path(call.args[0], shape)
        if path is None:
            return super().visit_call_(call)
        self.changed = True
        return self._made(path)

    def _rounded(self, call: relax.Call) -> relax.Expr:
        """A rounding before the reshapes that it reads; these move no element."""
        value = call.args[0] if _is_rounding(call) else None
        value = source_of(value, ("reshape",), self._call)
        if value is None or value.same_as(call.args[0]):
            return super().visit_call_(call)
        self.changed = True
        again = relax.op.astype(self.visit_expr(value), call.attrs.dtype)
        return relax.op.reshape(self.builder_.emit(again), extents_of(call))

    def _path(self, value: Any, shape: Sequence[Any]) -> _Path | None:
        """How a value that is used once has a shape; None where nothing is gained."""
        call, own = self._call(value), extents_of(value)
        if call is None or own is None or self.users[value] > 1:
            return None
        if name_of(call) == "matmul" == self.ends:
            return self._product(call, own, shape)
        if name_of(call) not in ELEMENTWISE:
            return None
        wide = {at: one for at, one in enumerate(call.args) if has_shape(one, own)}
        if not all(at in wide or _is_kept(one, own, shape) for at, one in enumerate(call.args)):
            return None
        operands = [
            self._path(one, shape) or _Reshaped(one, tuple(shape)) if at in wide else None
            for at, one in enumerate(call.args)
        ]
        found = [operands[at] for at in wide]
        if self.ends == "matmul":
            gains = any(isinstance(one, _Path) for one in found)
        else:
            gains = all(isinstance(one, _Path) or self._is_undone(one) for one in found)
        return _Path(call, tuple(operands)) if gains else None

    def _product(self, call: Any, own: Sequence[Any], shape: Sequence[Any]) -> _Path | None:
        """The product of rows in more dims by a matrix."""
        rows, matrix = (extents_of(one) for one in call.args)
        if rows is None or matrix is None or len(matrix) != 2 or len(own) >= len(shape):
            return None
        if len(rows) < 2 or not are_equal(own[-1:], shape[-1:]):
            return None
        return _Path(call, (_Reshaped(call.args[0], (*shape[:-1], rows[-1])), None))

    def _is_undone(self, view: Any) -> bool:
        """Whether a view is what its value was before a reshape."""
        call = self._call(view.value)
        return name_of(call) == "reshape" and has_shape(call.args[0], view.shape)

    def _made(self, part: _Path | _Reshaped) -> relax.Expr:
        """A call with another shape, all before it emitted."""
        if isinstance(part, _Reshaped):
            if self._is_undone(part):
                return self.visit_expr(self._call(part.value).args[0])
            return relax.op.reshape(self.visit_expr(part.value), part.shape)
        given = [
            self.visit_expr(old) if new is None else self.builder_.emit(self._made(new))
            for old, new in zip(part.call.args, part.operands, strict=True)
        ]
        return relax.Call(part.call.op, given, part.call.attrs, part.call.ty_args)


def _is_rounding(call: relax.Call) -> bool:
    """Whether a call writes half the bytes that it reads."""
    if name_of(call) != "astype" or extents_of(call) is None:
        return False
    return str(call.attrs.dtype) in NARROW_FLOATS and str(call.args[0].ty.dtype) == "float32"


def _is_kept(value: Any, old: Sequence[Any], new: Sequence[Any]) -> bool:
    """Whether an operand is broadcast along the last dims alone that both shapes share."""
    if not isinstance(value.ty, relax.TensorType):
        return True
    own, same = extents_of(value), 0
    while same < min(len(old), len(new)) and are_equal([old[~same]], [new[~same]]):
        same += 1
    if own is None or len(own) > len(new):
        return False
    return all(is_number(extent, 1) for extent in own[: max(0, len(own) - same)])
