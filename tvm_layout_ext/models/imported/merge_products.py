"""Products of the same rows whose columns are heads, as Q, K and V of attention, become one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir.expr import GenericConst

from ...ir.queries import are_equal, is_number
from ...ir.replace_calls import Make, with_calls_replaced
from ...target import has_warpgroups_around
from ..attention.gather import has_kernel
from ..bindings import Bindings
from ..known_values import MOST_ELEMENTS, array_of
from ..relax_values import (
    ELEMENTWISE,
    NARROW_FLOATS,
    VIEWS,
    dims_of,
    extents_of,
    has_shape,
    name_of,
    tensors_of,
    uses_of,
)

_SUMS, _ROW_SUMS = "float32", ("mean", "sum", "max", "min")
#: Elements of 16 bits in the vectors by which heads are read.
_VECTOR = 8
_ATTENTION = ("nn.attention", "nn.attention_bias")
#: What an attention reads in place, and what is fused with what follows it.
_MOVES = (*VIEWS, "permute_dims", "strided_slice", "repeat", "broadcast_to")
#: What becomes one function with a slice before it, as sums of rows do.
_FUSED = (*_MOVES, *ELEMENTWISE, "concat")


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.MergeProducts")
class MergeProducts:
    """Multiply rows by the weights of several products at once, where heads are taken of each.

    One product has larger tiles, reads its rows once and is launched once. Weights, and biases if
    there are any, are joined by NumPy: they are constants that nobody else reads. Parameters stay
    two weights or three, as joining them would take time at each call. Heads are sliced where their
    readers read slices in place: an attention, a cache (``FuseWrites``), or what is computed
    element by element or along rows, as rotary embeddings and norms of heads. Merged is what stands
    between two attentions, so that keys of all layers of a decoder are not kept at once.

    TVM's ``CombineParallelMatmul`` joins parameters when they come, pairs that a gate needs, and
    sums of 32 bits, which are rounded and get their biases behind the slices.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        if not has_warpgroups_around():
            return mod
        funcs = {
            gv: func
            for gv, func in mod.functions_items()
            if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr)
        }
        readers = {gv: Bindings.of(func) for gv, func in funcs.items()}
        reads = Counter(one for reader in readers.values() for one in _constants(reader))
        found = {
            gv: [
                made
                for block in func.body.blocks
                for made in _Finder(readers[gv], reads).found(block.bindings)
            ]
            for gv, func in funcs.items()
        }
        return with_calls_replaced(mod, found) if any(found.values()) else mod


def _constants(reader: Bindings) -> Iterator[Any]:
    """Handles of constants, each as often as it is read."""
    for value in reader.bound.values():
        parts = tensors_of(value, reader.call) if isinstance(value, relax.Call) else [value]
        parts = [*value.fields] if isinstance(value, relax.Tuple) else parts
        yield from (one.__chandle__() for one in parts if isinstance(one, GenericConst))


@dataclass(frozen=True)
class _Heads:
    """A product by a constant whose columns are heads of ``length``.

    ``result`` is the product rounded, and perhaps with a bias; ``views`` are all that reads it, and
    have the heads as dims.
    """

    x: Any
    weight: Any
    bias: Any
    result: Any
    views: tuple[Any, ...]

    @property
    def length(self) -> int:
        """Columns of a head."""
        return int(_extents(self.views[0])[-1])

    @property
    def columns(self) -> int:
        """Columns of all heads."""
        return int(_extents(self.result)[-1])


def _extents(value: Any) -> Sequence[Any]:
    return extents_of(value) or ()


class _Finder:
    """Products of a function that may be merged; ``reads`` counts who reads a constant."""

    def __init__(self, reader: Bindings, reads: Counter[Any]) -> None:
        self.reader, self.reads = reader, reads
        self.places = {var: place for place, var in enumerate(reader.order)}
        self.kernels: dict[Any, bool] = {}

    def found(self, block: Iterable[Any]) -> Iterator[tuple[relax.Call, Make]]:
        """Views of a block's products that are merged, and what slices heads in their places."""
        groups: dict[Any, list[_Heads]] = {}
        attentions = 0
        for binding in block:
            attentions += name_of(binding.value) in _ATTENTION
            one = self._heads(binding.var)
            if one is not None and all(map(self._is_read_in_place, one.views)):
                groups.setdefault((one.x, one.length, attentions), []).append(one)
        for group in groups.values():
            merged = _Merged(self.reader, group)
            for at, one in enumerate(group if len(group) > 1 else ()):
                for view in one.views:
                    yield self.reader.bound[view], partial(merged.heads, at, view)

    def _heads(self, var: Any) -> _Heads | None:
        """The product that a value is, if its columns are heads."""
        call = self.reader.call(var)
        if name_of(call) != "matmul" or not self._is_own_constant(call.args[1]):
            return None
        last = self._only_reader(var)
        if name_of(self.reader.call(last)) != "astype" or not _is_rounded(call, var, last):
            return None
        bias, after = None, self._only_reader(last)
        if name_of(self.reader.call(after)) == "add":
            first, second = self.reader.call(after).args
            bias, last = second if first.same_as(last) else first, after
            if not self._is_bias(bias, call.args[1]):
                return None
        views = tuple(self.reader.users.get(last, ()))
        # What others read of a block of dataflow is not sliced there.
        within = isinstance(var, relax.DataflowVar) and isinstance(last, relax.DataflowVar)
        heads = views and all(_is_of_heads(self.reader.call(view), last) for view in views)
        if not within or not heads or len({int(_extents(one)[-1]) for one in views}) > 1:
            return None
        x, weight = call.args
        return _Heads(x, weight, bias, last, views)

    def _is_own_constant(self, value: Any) -> bool:
        """Whether a matrix is made of a constant that nobody else reads."""
        sizes = dims_of(value)
        if sizes is None or len(sizes) != 2 or prod(sizes) > MOST_ELEMENTS:
            return False
        while isinstance(value, relax.Var):
            call = self.reader.call(value)
            moves = name_of(call) in ("permute_dims", "astype")
            if not moves or self._only_reader(value) is None:
                return False
            value = call.args[0]
        return isinstance(value, GenericConst) and self.reads[value.__chandle__()] == 1

    def _is_bias(self, value: Any, weight: Any) -> bool:
        """Whether a value is known, and has a number for each column of a weight."""
        fits = has_shape(value, _extents(weight)[1:])
        return fits and array_of(value, self.reader.call) is not None

    def _only_reader(self, var: Any) -> Any:
        """The only variable that is made of one, or None."""
        users = self.reader.users.get(var, [])
        return users[0] if len(users) == 1 else None

    def _is_read_in_place(self, heads: Any) -> bool:
        """Whether what reads heads takes a slice in their place without a copy."""
        return self._is_attended(heads) or self._meets(heads)

    def _is_attended(self, value: Any) -> bool:
        """Whether attention alone reads a value, by way of what moves it."""
        users = self.reader.users.get(value, [])
        calls = [(user, self.reader.call(user)) for user in users]
        return bool(users) and all(
            self._is_attended(user) if name_of(call) in _MOVES else self._attends(call, value)
            for user, call in calls
        )

    def _attends(self, call: Any, value: Any) -> bool:
        """Whether a call is attention with a kernel, and reads heads, or writes them to a cache."""
        if name_of(call) == "call_tir_inplace":
            return bool(value.same_as(call.args[1].fields[-1]))
        if name_of(call) not in _ATTENTION or not any(map(value.same_as, call.args[:3])):
            return False
        key = (*(str(one.ty) for one in call.args), str(call.attrs))
        if key not in self.kernels:
            again = partial(_again, call)
            self.kernels[key] = has_kernel(again, call.args)
        return self.kernels[key]

    def _meets(self, value: Any) -> bool:
        """Whether all that is computed of a value meets in one, and becomes a function with it."""
        live, made, computes = {value}, set[Any](), False
        for var in self.reader.order[self.places[value] + 1 :]:
            call = self.reader.bound[var]
            if live.isdisjoint(uses_of(call)):
                continue
            if name_of(call) not in _FUSED and not _sums_rows(call):
                return False
            computes |= name_of(call) not in (*_MOVES, "astype")
            made.add(var)
            live = {one for one in (*live, var) if not self._is_made_of(one, made)}
            if live == {var} and computes:
                return True
        return False

    def _is_made_of(self, var: Any, made: set[Any]) -> bool:
        """Whether all that reads a variable has been made."""
        return made.issuperset(self.reader.users.get(var, [None]))


def _again(call: relax.Call, *given: Any) -> relax.Call:
    return relax.Call(call.op, [*given], call.attrs)


def _is_rounded(call: relax.Call, product: Any, half: Any) -> bool:
    """Whether a product of 16 bits that is added up in 32 is rounded to its operands' type."""
    types = {str(one.ty.dtype) for one in (*call.args, half)}
    return len(types) == 1 and types <= set(NARROW_FLOATS) and str(product.ty.dtype) == _SUMS


def _sums_rows(call: Any) -> bool:
    """Whether a call gives each row of the last dim a number."""
    if name_of(call) not in _ROW_SUMS or not call.attrs.keepdims:
        return False
    axes = [int(axis) for axis in call.attrs.axis or ()]
    return axes in ([-1], [int(call.args[0].ty.ndim) - 1])


def _is_of_heads(call: Any, value: Any) -> bool:
    """Whether a call reshapes the columns of a value to heads of whole vectors."""
    if name_of(call) != "reshape" or not _extents(call) or is_number(_extents(value)[-1], 1):
        return False
    old, new = ([e for e in _extents(one) if not is_number(e, 1)] for one in (value, call))
    same = len(old) - 1
    return same < len(new) <= same + 2 and _is_whole(new[-1]) and are_equal(old[:-1], new[:same])


def _is_whole(length: Any) -> bool:
    return isinstance(length, tirx.IntImm) and int(length) % _VECTOR == 0


@dataclass
class _Merged:
    """Products that become one, and the heads of all, once they are emitted."""

    reader: Bindings
    group: list[_Heads]
    whole: Any = None

    def heads(self, at: int, view: Any, inside: Any) -> relax.Expr:
        """Those of a product, in the shape of a view of it."""
        if self.whole is None:
            self.whole = self._product(inside)
        *rows, _, length = _extents(self.whole)
        ends = [0, *accumulate(one.columns // one.length for one in self.group)]
        part = relax.op.strided_slice(self.whole, [len(rows)], [ends[at]], [ends[at + 1]])
        count = tirx.IntImm("int64", ends[at + 1] - ends[at])
        if has_shape(view, [*rows, count, length]):
            return part
        return relax.op.reshape(inside.builder_.emit(part), _extents(view))

    def _product(self, inside: Any) -> Any:
        """The product with all columns, each weight a row of the constant as linears have it."""
        first, emit, op = self.group[0], inside.builder_.emit, relax.op
        kind = str(first.result.ty.dtype)
        weights = np.concatenate([self._array(one.weight) for one in self.group], 1)
        weight = emit(op.permute_dims(relax.const(np.ascontiguousarray(weights.T), kind), [1, 0]))
        out = emit(op.matmul(inside.visit_expr(first.x), weight, out_dtype=_SUMS))
        out = emit(op.astype(out, kind))
        if any(one.bias is not None for one in self.group):
            out = emit(op.add(out, relax.const(np.concatenate([*self._biases(kind)]), kind)))
        *rows, columns = _extents(out)
        return emit(op.reshape(out, [*rows, int(columns) // first.length, first.length]))

    def _biases(self, kind: str) -> Iterator[np.ndarray[Any, Any]]:
        for one in self.group:
            none = one.bias is None
            yield np.zeros(one.columns, kind) if none else self._array(one.bias)

    def _array(self, value: Any) -> np.ndarray[Any, Any]:
        found = array_of(value, self.reader.call)
        assert found is not None
        return found
