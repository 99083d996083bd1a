"""Products of the same rows by constants, as Q, K and V of attention, become one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir.expr import GenericConst

from ...ir.queries import are_equal, is_number
from ...ir.replace_calls import Make, with_calls_replaced
from ...target import has_warpgroups_around
from ..bindings import Bindings
from ..relax_values import (
    NARROW_FLOATS,
    VIEWS,
    array_of,
    axes_of,
    dims_of,
    extents_of,
    has_shape,
    name_of,
    tensors_of,
)

_SUMS = "float32"


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.MergeProducts")
class MergeProducts:
    """Multiply rows once by the weights of several products whose results are taken for heads.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        if not has_warpgroups_around():
            return mod
        funcs = {
            gv: Bindings.of(func)
            for gv, func in mod.functions_items()
            if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr)
        }
        reads = Counter(
            one.__chandle__() for reader in funcs.values() for one in _constants(reader)
        )
        found = {gv: [*_found(reader, reads)] for gv, reader in funcs.items()}
        return with_calls_replaced(mod, found) if any(found.values()) else mod


def _constants(reader: Bindings) -> Iterator[GenericConst]:
    """Constants that are read, each as often."""
    for value in reader.bound.values():
        parts = tensors_of(value, reader.call) if isinstance(value, relax.Call) else [value]
        yield from (one for one in parts if isinstance(one, GenericConst))


@dataclass(frozen=True)
class _Heads:
    """A product by a constant, and what gives its columns to heads.

    ``result`` is the product rounded, and perhaps with a bias; ``views`` are variables that give
    it the shape of heads of ``length`` columns.
    """

    x: Any
    weight: Any
    bias: Any
    result: Any
    views: tuple[Any, ...]

    @property
    def length(self) -> int:
        return int(self.views[0].ty.shape.values[-1])

    @property
    def columns(self) -> int:
        return int(self.result.ty.shape.values[-1])


def _found(reader: Bindings, reads: Counter[Any]) -> Iterator[tuple[relax.Call, Make]]:
    groups: dict[Any, list[_Heads]] = {}
    for var in reader.order:
        one = _heads(reader, var, reads)
        if one is not None:
            groups.setdefault((one.x, one.length), []).append(one)
    for group in groups.values():
        if len(group) > 1:
            merged = _Merged(reader, group)
            for at, one in enumerate(group):
                for view in one.views:
                    yield reader.bound[view], partial(merged.heads, at, view)


def _heads(reader: Bindings, var: Any, reads: Counter[Any]) -> _Heads | None:
    call = reader.call(var)
    if name_of(call) != "matmul" or not _is_constant(reader, call.args[1], reads):
        return None
    x, weight = call.args
    if not isinstance(x, relax.Var) or len(dims_of(weight) or []) != 2:
        return None
    last = _only(reader, var)
    if name_of(reader.call(last)) != "astype" or str(last.ty.dtype) not in NARROW_FLOATS:
        return None
    bias = None
    after = reader.call(_only(reader, last))
    if name_of(after) == "add":
        (bias,) = (one for one in after.args if not one.same_as(last))
        last = _only(reader, last)
    if bias is not None and dims_of(bias) != dims_of(weight)[1:]:
        return None
    if bias is not None and array_of(bias, reader.call) is None:
        return None
    views = tuple(reader.users.get(last, ()))
    if not views or not all(_is_of_heads(reader, last, one) for one in views):
        return None
    if len({int(one.ty.shape.values[-1]) for one in views}) > 1:
        return None
    return _Heads(x, weight, bias, last, views)


def _only(reader: Bindings, var: Any) -> Any:
    """The only reader of a variable, or None."""
    users = reader.users.get(var, [])
    return users[0] if len(users) == 1 else None


def _is_constant(reader: Bindings, value: Any, reads: Counter[Any]) -> bool:
    """Whether a value is made of a constant that nobody else reads."""
    while isinstance(value, relax.Var):
        call = reader.call(value)
        if name_of(call) not in ("permute_dims", "astype") or _only(reader, value) is None:
            return False
        value = call.args[0]
    return isinstance(value, GenericConst) and reads[value.__chandle__()] == 1


def _is_of_heads(reader: Bindings, value: Any, view: Any) -> bool:
    call = reader.call(view)
    if name_of(call) != "reshape":
        return False
    old, new = ([one for one in extents_of(v) or () if not is_number(one, 1)] for v in (value, view))
    return len(new) >= len(old) and are_equal(old[:-1], new[: len(old) - 1])


@dataclass
class _Merged:
    reader: Bindings
    group: list[_Heads]
    whole: Any = None

    def heads(self, at: int, view: Any, inside: Any) -> relax.Expr:
        if self.whole is None:
            self.whole = self._product(inside)
        length = self.group[0].length
        first = sum(one.columns for one in self.group[:at]) // length
        last = first + self.group[at].columns // length
        axis = len(self.whole.ty.shape.values) - 2
        part = relax.op.strided_slice(self.whole, [axis], [first], [last])
        rows = extents_of(self.whole)[:-2]
        if has_shape(view, [*rows, last - first, length]):
            return part
        return relax.op.reshape(inside.builder_.emit(part), extents_of(view))

    def _product(self, inside: Any) -> Any:
        emit = inside.builder_.emit
        x = inside.visit_expr(self.group[0].x)
        kind = str(self.group[0].result.ty.dtype)
        weights = [array_of(one.weight, self.reader.call) for one in self.group]
        turned = relax.const(np.ascontiguousarray(np.concatenate(weights, 1).T), kind)
        weight = emit(relax.op.permute_dims(turned, [1, 0]))
        out = emit(relax.op.astype(emit(relax.op.matmul(x, weight, out_dtype=_SUMS)), kind))
        if any(one.bias is not None for one in self.group):
            biases = [
                np.zeros(one.columns, kind) if one.bias is None
                else array_of(one.bias, self.reader.call)
                for one in self.group
            ]
            out = emit(relax.op.add(out, relax.const(np.concatenate(biases), kind)))
        *rows, n = extents_of(out)
        length = self.group[0].length
        return emit(relax.op.reshape(out, [*rows, int(n) // length, length]))
