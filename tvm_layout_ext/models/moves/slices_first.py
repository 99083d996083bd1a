"""What is computed of rows that nobody reads is not computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.queries import size_of
from ..bindings import Bindings
from ..known_values import scalar_of
from ..relax_values import (
    ELEMENTWISE,
    VIEWS,
    axes_of,
    cleaned,
    extents_of,
    name_of,
    slices_of,
)

#: A part pays for its copy where it is at most one of so many of a dim.
_FEWEST_PARTS = 2


@dataclass(frozen=True)
class _Places:
    """Places of a dim."""

    axis: int
    begin: int
    end: int


#: By a variable the part that is computed, and those of operands; None is all of one.
_Parts: TypeAlias = dict[Any, tuple[_Places, list["_Places | None"]]]


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.SlicesFirst")
class SlicesFirst:
    """Take a slice of few rows before what is computed of each row by itself.

    A classifier reads one token of a transformer's last layer, and an LSTM's the last step: its
    products, norms and sums with shortcuts are of that token alone then, and only keys and values
    are of all. So 7 of the 12 parts of a ViT's last layer become a hundredth of what they were.

    Where readers of a value want different rows, or one wants all of them, it is computed whole.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        changed = False
        for gv, func in mod.functions_items():
            if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr):
                parts = _parts_of(func)
                if parts:
                    one = _Sliced(mod, parts)
                    one.builder_.update_func(gv, one.visit_expr(func))
                    mod, changed = one.builder_.get(), True
        return cleaned(mod) if changed else mod


def _parts_of(func: relax.Function) -> _Parts:
    """The part of each value that is wanted of it, where that is all that is to be computed.

    And the parts of operands that make it.
    """
    values = Bindings.of(func)
    found: _Parts = {}
    for var in reversed(values.order):
        wanted = {
            None if user is None else _wanted(values, found, user, var)
            for user in values.users.get(var, [None])
        }
        part = wanted.pop() if len(wanted) == 1 else None
        if part is None or not isinstance(var, relax.DataflowVar):
            continue
        operands = _before(values.bound[var], part)
        if operands is not None:
            found[var] = part, operands
    return found


def _wanted(values: Bindings, found: _Parts, user: Any, var: Any) -> _Places | None:
    """The part of a value that makes what is wanted of one that is computed from it."""
    call = values.bound[user]
    own = _slice(call, values.bound.get)
    if own is not None:
        return own if call.args[0].same_as(var) else None
    if user not in found:
        return None
    _, operands = found[user]
    wanted = {one for arg, one in zip(call.args, operands, strict=True) if arg.same_as(var)}
    return wanted.pop() if len(wanted) == 1 else None


def _slice(call: Any, binding: Callable[[Any], Any]) -> _Places | None:
    """The few places of one dim that a slice keeps, or a ``take`` of a known place."""
    name = name_of(call)
    shape = _extents(call.args[0]) if name in ("strided_slice", "take") else None
    if shape is None:
        return None
    if name == "take":
        is_one = getattr(call.args[1].ty, "ndim", None) == 0
        place = scalar_of(call.args[1], binding) if is_one else None
        if place is None or call.attrs.axis is None:
            return None
        axis, begin = int(call.attrs.axis) % len(shape), int(place)
        end = begin + 1
        if not isinstance(shape[axis], int):
            return None
    else:
        numbers = slices_of(call)
        if (
            numbers is None
            or any(len(one) != 1 for one in numbers)
            or numbers[3:] not in ([], [[1]])
        ):
            return None
        axis, begin, end = (one[0] for one in numbers[:3])
        axis %= len(shape)
        if not isinstance(shape[axis], int):
            return None
        begin, end = (at + shape[axis] if at < 0 else min(at, shape[axis]) for at in (begin, end))
    if not 0 <= begin < end <= shape[axis] or (end - begin) * _FEWEST_PARTS > shape[axis]:
        return None
    return _Places(axis, begin, end)


def _before(call: Any, part: _Places) -> list[_Places | None] | None:
    """The parts of operands of which a call makes a part of its result; None where it does not."""
    rule = _RULES.get(name_of(call))
    if rule is None:
        return None
    tensors = [one for one in (call, *call.args) if isinstance(one.ty, relax.TensorType)]
    if any(_extents(one) is None for one in tensors):
        return None
    return rule(call, _extents(call) or [], part)


def _extents(value: Any) -> list[Any] | None:
    """Extents of a tensor, numbers where they are known."""
    found = extents_of(value)
    return None if found is None else [size_of(one) for one in found]


def _of_elements(call: Any, shape: list[Any], part: _Places) -> list[_Places | None] | None:
    """Each operand at the same places, unless it is repeated along the dim."""
    return [_aligned(one, len(shape), part) for one in call.args]


def _aligned(operand: Any, rank: int, part: _Places) -> _Places | None:
    own = _extents(operand) or [] if isinstance(operand.ty, relax.TensorType) else []
    axis = part.axis - (rank - len(own))
    if axis < 0 or not own or (isinstance(own[axis], int) and own[axis] == 1):
        return None
    return _Places(axis, part.begin, part.end)


def _along(axes_of_call: Callable[[Any], Any]) -> Callable[..., list[_Places | None] | None]:
    """Of what is computed along other dims, which are kept: norms and softmax."""

    def rule(call: Any, shape: list[Any], part: _Places) -> list[_Places | None] | None:
        if part.axis in [int(axis) % len(shape) for axis in axes_of_call(call.attrs)]:
            return None
        return [part, *[None] * (len(call.args) - 1)]

    return rule


def _of_sums(call: Any, shape: list[Any], part: _Places) -> list[_Places | None] | None:
    rank, axes = int(call.args[0].ty.ndim), call.attrs.axis
    if axes is None:
        return None
    added = {int(axis) % rank for axis in axes}
    kept = [at for at in range(rank) if call.attrs.keepdims or at not in added]
    axis = kept[part.axis]
    return None if axis in added else [_Places(axis, part.begin, part.end)]


def _of_product(call: Any, shape: list[Any], part: _Places) -> list[_Places | None] | None:
    a, b = call.args
    if a.ty.ndim < 2 or b.ty.ndim < 2 or part.axis == len(shape) - 1:
        return None
    rows = part.axis == len(shape) - 2
    return [_aligned(a, len(shape), part), None if rows else _aligned(b, len(shape), part)]


def _of_permutation(call: Any, shape: list[Any], part: _Places) -> list[_Places | None] | None:
    return [_Places(axes_of(call)[part.axis], part.begin, part.end)]


def _of_view(call: Any, shape: list[Any], part: _Places) -> list[_Places | None] | None:
    """Of a dim that the source has, too, with as many elements before it."""
    source, equal = _extents(call.args[0]) or [], tvm.sym.Analyzer().can_prove_equal
    for axis, extent in enumerate(source):
        is_dim = isinstance(extent, int) and extent == shape[part.axis]
        if is_dim and equal(prod(source[:axis]), prod(shape[: part.axis])):
            rest = [None] * (len(call.args) - 1)
            return [_Places(axis, part.begin, part.end), *rest]
    return None


def _of_attention(call: Any, shape: list[Any], part: _Places) -> list[_Places | None] | None:
    """Of rows of queries, which no mask by places counts; keys and values are those of all."""
    if part.axis != 1 or (call.attrs.causal_mask, call.attrs.window_size) != (None, None):
        return None
    bias = [_aligned(one, 4, _Places(2, part.begin, part.end)) for one in call.args[3:]]
    return [part, None, None, *bias]


#: How operators make a part of their results.
_RULES: dict[str, Callable[[Any, list[Any], _Places], list[_Places | None] | None]] = {
    **dict.fromkeys(ELEMENTWISE, _of_elements),
    **dict.fromkeys(VIEWS, _of_view),
    **dict.fromkeys(("nn.softmax", "nn.log_softmax"), _along(lambda attrs: [attrs.axis])),
    **dict.fromkeys(("nn.layer_norm", "nn.rms_norm"), _along(lambda attrs: attrs.axes)),
    **dict.fromkeys(("sum", "mean", "max", "min", "variance"), _of_sums),
    **dict.fromkeys(("nn.attention", "nn.attention_bias"), _of_attention),
    "matmul": _of_product,
    "permute_dims": _of_permutation,
}


@mutator
class _Sliced(PyExprMutator):
    """Computes the parts alone, of which slices then are the whole."""

    def __init__(self, mod: tvm.IRModule, parts: _Parts) -> None:
        super().__init__(mod)
        self.parts = parts
        #: Values of which parts alone are computed, by the variables that they had.
        self.made: dict[Any, Any] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if binding.var not in self.parts:
            super().visit_var_binding_(binding)
            return
        call, (part, operands) = binding.value, self.parts[binding.var]
        given = [self._given(*pair) for pair in zip(call.args, operands, strict=True)]
        if name_of(call) in VIEWS:
            shape = _extents(call) or []
            shape[part.axis] = part.end - part.begin
            value = relax.op.reshape(given[0], shape)
        else:
            value = relax.Call(call.op, given, call.attrs, call.ty_args)
        self.made[binding.var] = self.builder_.emit(value)

    def _given(self, operand: Any, part: _Places | None) -> relax.Expr:
        """An operand, or the part of it."""
        if isinstance(operand, relax.Var) and operand in self.made:
            return self.made[operand]
        value = self.visit_expr(operand)
        if part is None:
            return value
        where = [part.axis], [part.begin], [part.end]
        return self.builder_.emit(relax.op.strided_slice(value, *where))

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        source = call.args[0] if call.args else None
        if not isinstance(source, relax.Var) or source not in self.made:
            return super().visit_call_(call)
        # A slice: whoever computes of a part has been made of parts.
        made = self.made[source]
        return relax.op.squeeze(made, [int(call.attrs.axis)]) if name_of(call) == "take" else made
