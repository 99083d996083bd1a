"""Arithmetic of ``torch.export`` in Relax: operands meet in the type that torch computes in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import relax, tirx

from ..relax_values import FLOATS, NARROW_FLOATS

Converter = Callable[[Any], Any]
_COMPARISONS = {
    "eq": relax.op.equal,
    "ne": relax.op.not_equal,
    "lt": relax.op.less,
    "le": relax.op.less_equal,
    "gt": relax.op.greater,
    "ge": relax.op.greater_equal,
}
#: Operators of two operands, and what they are of truth values, if not themselves.
_BINARY: dict[str, tuple[Any, Any]] = {
    "add": (relax.op.add, relax.op.logical_or),
    "sub": (relax.op.subtract, relax.op.subtract),
    "mul": (relax.op.multiply, relax.op.logical_and),
    "div": (relax.op.divide, relax.op.divide),
    "maximum": (relax.op.maximum, relax.op.logical_or),
    "minimum": (relax.op.minimum, relax.op.logical_and),
}
_FORMS = ("Tensor", "Scalar", "default")
#: What torch adds or multiplies up in 64 bits, of whole numbers and truth values, and in 32, of
#: floats of 16; sums of these are widened later, where they are one kernel with what follows.
_SUMS = ("sum.default", "sum.dim_IntList")
_SCANS = ("cumsum.default", "prod.default", "cumprod.default")
_CLAMPS = ("clamp.default", "clamp_min.default", "clamp_max.default", "clamp.Tensor")
_POWERS = ("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")


@contextmanager
def standing_for(env: dict[Any, Any], values: Mapping[Any, Any]) -> Iterator[None]:
    """Let other values stand for nodes while one is converted."""
    kept = {one: env[one] for one in values}
    env.update(values)
    try:
        yield
    finally:
        env.update(kept)


class Arithmetic:
    """Conversions of nodes, by values and the builder of an importer."""

    def __init__(self, importer: Any, stock: Mapping[str, Converter]) -> None:
        self._importer, self._stock = importer, stock

    def converters(self) -> dict[str, Converter]:
        """Conversions by the operators' names in a graph."""
        found: dict[str, Converter] = {}
        for form in _FORMS:
            for name in _BINARY:
                found[f"{name}.{form}"] = partial(self._binary, *_BINARY[name])
            for name, op in _COMPARISONS.items():
                found[f"{name}.{form}"] = partial(self._comparison, op)
        found = {name: one for name, one in found.items() if name in self._stock}
        for name in (*_SUMS, *_SCANS):
            found[name] = partial(self._added_up, self._stock[name], name in _SCANS)
        for name in (one for one in _CLAMPS if one in self._stock):
            found[name] = partial(self._clamped, self._stock[name])
        for name in (one for one in _POWERS if one in self._stock):
            found[name] = partial(self._power, self._stock[name])
        more = {"amax": relax.op.max, "amin": relax.op.min}
        found |= {f"{name}.default": partial(self._extreme, op) for name, op in more.items()}
        found["max.dim"] = partial(self._farthest, relax.op.max)
        found["min.dim"] = partial(self._farthest, relax.op.min)
        found |= {f"any.{form}": self._any for form in ("default", "dim", "dims")}
        return found | {
            "reciprocal.default": self._reciprocal,
            "cat.default": self._joined,
            "where.self": self._chosen,
            "div.Tensor_mode": self._rounded_quotient,
            "elu.default": self._elu,
            "topk.default": self._first,
        }

    def _emit(self, value: Any) -> Any:
        return self._importer.block_builder.emit(value)

    def _type_of(self, node: Any) -> str:
        """TVM's name of the type that torch has for a node."""
        return str(self._importer._convert_data_type(node.meta["val"].dtype))

    def _operand(self, one: Any, dtype: str) -> Any:
        """A value of a type: that of a node, which may be a symbolic size, or a number."""
        value = self._importer.env[one] if isinstance(one, fx.Node) else one
        if isinstance(getattr(value, "ty", None), relax.TensorType):
            same = str(value.ty.dtype) == dtype
            return value if same else self._emit(relax.op.astype(value, dtype))
        if isinstance(value, (bool, int, float)):
            if "int" in dtype:  # As a bound that no number of the type reaches.
                limits = np.iinfo(dtype)
                value = min(max(value, limits.min), limits.max)
            return relax.const(value, dtype)
        return tirx.Cast(dtype, value)

    def _binary(self, op: Any, of_truth_values: Any, node: Any) -> Any:
        own = self._type_of(node)
        if op is relax.op.add and "int" in own and node.args[1] == 0:
            return self._operand(node.args[0], own)
        first, second = (self._operand(one, own) for one in node.args[:2])
        if (alpha := node.kwargs.get("alpha", 1)) != 1:
            second = self._emit(relax.op.multiply(second, self._operand(alpha, own)))
        return self._emit((of_truth_values if own == "bool" else op)(first, second))

    def _comparison(self, op: Any, node: Any) -> Any:
        """Compare in the type of both operands; LLVM and CUDA have none of truth values."""
        values = [one.meta["val"] if isinstance(one, fx.Node) else one for one in node.args[:2]]
        dtype = str(self._importer._convert_data_type(torch.result_type(*values)))
        dtype = "int8" if dtype == "bool" else dtype
        return self._emit(op(*(self._operand(one, dtype) for one in node.args[:2])))

    def _reciprocal(self, node: Any) -> Any:
        own = self._type_of(node)
        return self._emit(relax.op.divide(*(self._operand(x, own) for x in (1, node.args[0]))))

    def _chosen(self, node: Any) -> Any:
        condition, *others = node.args
        own, env = self._type_of(node), self._importer.env
        return self._emit(relax.op.where(env[condition], *(self._operand(x, own) for x in others)))

    def _added_up(self, convert: Converter, is_scan: bool, node: Any) -> Any:
        """Convert a sum; TVM 0.27 gives of truth values whether there is any."""
        own = self._type_of(node)
        wide = "float32" if is_scan and own in NARROW_FLOATS else own
        if own in FLOATS and wide == own:
            return convert(node)
        given = {node.args[0]: self._operand(node.args[0], wide)}
        with standing_for(self._importer.env, given):
            return convert(node)

    def _clamped(self, convert: Converter, node: Any) -> Any:
        """Whole numbers within bounds; TVM 0.27 casts the infinite one of a bound that is not."""
        own = self._type_of(node)
        bounds = [*node.args[1:], None, None][:2]
        if str(node.target).endswith("clamp_max.default"):
            bounds = [None, bounds[0]]
        least, most = node.kwargs.get("min", bounds[0]), node.kwargs.get("max", bounds[1])
        if own in FLOATS and not any(isinstance(one, fx.Node) for one in (least, most)):
            return convert(node)
        found = self._operand(node.args[0], own)
        for bound, within in ((least, relax.op.maximum), (most, relax.op.minimum)):
            if bound is not None:
                found = self._emit(within(found, self._operand(bound, own)))
        return found

    def _power(self, convert: Converter, node: Any) -> Any:
        """A power, of whole numbers in ``float64``: TVM 0.27 has those of floats."""
        own = self._type_of(node)
        tensors = [one for one in node.args[:2] if isinstance(one, fx.Node)]
        if own in FLOATS and all(self._type_of(one) == own for one in tensors):
            return convert(node)
        wide = own if own in FLOATS else "float64"
        found = self._emit(relax.op.power(*(self._operand(one, wide) for one in node.args[:2])))
        return found if own == wide else self._emit(relax.op.round(found))

    def _extreme(self, op: Any, node: Any) -> Any:
        return self._along(op, self._importer.env[node.args[0]], node)

    def _farthest(self, op: Any, node: Any) -> Any:
        """The largest or least elements of a dim; TVM sorts for places, which few ask for."""
        data = self._importer.env[node.args[0]]
        if all(one.args[1:] == (0,) for one in node.users):
            return (self._along(op, data, node),)
        if op is relax.op.max:
            return self._stock["max.dim"](node)
        dim, keeps = [*node.args[1:], False][:2]
        both = self._emit(relax.op.topk(data, 1, dim, "both", largest=False, dtype="int64"))
        parts = [self._emit(both[at]) for at in range(2)]
        return tuple(parts if keeps else [self._emit(relax.op.squeeze(x, [dim])) for x in parts])

    def _first(self, node: Any) -> Any:
        """The largest or least elements, in order, which torch need not give them in."""
        data, count, *how = node.args
        dim, is_largest = [*how, *(-1, True)[len(how) :]][:2]
        data, count = (self._importer.env.get(x, x) for x in (data, count))
        found = relax.op.topk(data, count, dim, "both", bool(is_largest), "int64")
        return self._emit(found)

    def _along(self, op: Any, value: Any, node: Any) -> Any:
        """Reduce a value along the dims that a node names, or all where it names none."""
        dims, keeps = [*node.args[1:], None, None][:2]
        return self._emit(op(value, None if dims == [] else dims, keepdims=bool(keeps)))

    def _any(self, node: Any) -> Any:
        """Whether any element is not zero, of all or along dims; TVM 0.27 takes the highest."""
        held = self._emit(relax.op.astype(self._importer.env[node.args[0]], "bool"))
        as_bytes = self._emit(relax.op.astype(held, "int8"))
        return self._emit(relax.op.astype(self._along(relax.op.max, as_bytes, node), "bool"))

    def _joined(self, node: Any) -> Any:
        """Parts side by side, in one type, without those of no element, which have no kernel."""

        def has_elements(part: Any) -> bool:
            sizes = part.meta["val"].shape
            return not any(isinstance(size, int) and size == 0 for size in sizes)

        own = self._type_of(node)
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        parts = [*filter(has_elements, node.args[0])] or node.args[0][:1]
        alike = [self._operand(one, own) for one in parts]
        return alike[0] if len(alike) == 1 else self._emit(relax.op.concat(alike, dim))

    def _rounded_quotient(self, node: Any) -> Any:
        """A quotient rounded down or towards zero, of floats in ``float32``; TVM has integers'."""
        mode, own = node.kwargs.get("rounding_mode"), self._type_of(node)
        wide = "float32" if own in FLOATS else own
        given = [self._operand(one, wide) for one in node.args[:2]]
        whole = "int" in wide
        if whole and mode == "floor":
            return self._emit(relax.op.floor_divide(*given))
        found = self._emit(relax.op.divide(*given))
        if whole or mode is None:
            return found
        return self._emit((relax.op.floor if mode == "floor" else relax.op.trunc)(found))

    def _elu(self, node: Any) -> Any:
        """ELU, CELU and SELU, of 16 bits in ``float32``; TVM 0.27 leaves out all but ``alpha``."""
        alpha, scale, inner = [*node.args[1:], 1.0, 1.0, 1.0][:3]
        own = self._type_of(node)
        wide = "float32" if own in FLOATS else own
        x = self._operand(node.args[0], wide)

        def times(value: Any, factor: float) -> Any:
            known = relax.const(float(factor), wide)
            return value if factor == 1 else self._emit(relax.op.multiply(value, known))

        power = self._emit(relax.op.exp(times(x, inner)))
        below = self._emit(relax.op.subtract(power, relax.const(1.0, wide)))
        is_above = self._emit(relax.op.greater(x, relax.const(0.0, wide)))
        return self._emit(relax.op.where(is_above, times(x, scale), times(below, scale * alpha)))
