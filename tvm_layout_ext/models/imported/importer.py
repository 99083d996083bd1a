"""TVM's importer of ``torch.export``, with the types that torch has, and state in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from tvm import relax, tirx
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from ..relax_values import NARROW_FLOATS, extents_of
from .places import indexed, place_of, put
from .rows_in_place import write_rows

Converter = Callable[[Any], Any]
#: What is added to a product, by operator; TVM 0.27 names ``float32`` as the product's type.
_ADDED = {"addmm.default": 0, "convolution.default": 2, "linear.default": 2}

#: What TVM 0.27 adds up in its operands' type, or has no types for.
_WIDENED = ("native_group_norm.default",)
#: What torch takes operands of several types of, as a tensor of 16 bits and a number of 32.
_PROMOTED = (
    *("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "pow.Tensor_Tensor"),
    *("maximum.default", "minimum.default", "where.self", "cat.default"),
    *("eq.Tensor", "ne.Tensor", "lt.Tensor", "le.Tensor", "gt.Tensor", "ge.Tensor"),
)
#: What torch adds or multiplies up in 64 bits, of whole numbers and truth values.
_COUNTS = (
    *("sum.default", "sum.dim_IntList", "cumsum.default", "prod.default", "cumprod.default"),
)
_CLAMPS = ("clamp.default", "clamp_min.default", "clamp_max.default", "clamp.Tensor")
_FLOATS = (*NARROW_FLOATS, "float32")


class Importer(ExportedProgramImporter):
    """Imports modules of 16 bits, whose products TVM 0.27 gives in ``float32``, and their state.

    ``state`` has the names of the nodes whose values are new ones of buffers, by buffers' nodes;
    ``in_place`` those that are written to the buffer itself. ``writes_rows`` tells whether any is.
    """

    def __init__(self, state: Mapping[str, str]) -> None:
        self.state, self.in_place, self.writes_rows = state, set[str](), False
        super().__init__()

    def create_convert_map(self) -> dict[str, Converter]:
        """Stock conversions, each followed by a cast to the type that torch has for its value."""
        stock = super().create_convert_map()
        stock["cat.default"] = partial(self._joined, stock["cat.default"])
        found: dict[str, Converter] = {
            name: partial(self._typed, one) for name, one in stock.items()
        }
        for name, at in _ADDED.items():
            found[name] = partial(self._typed, partial(self._alike, stock[name], "float32", at))
        for name in _WIDENED:
            found[name] = partial(self._typed, partial(self._alike, stock[name], "float32", None))
        for name in _PROMOTED:
            found[name] = partial(self._typed, partial(self._promoted, stock[name]))
        for name in _COUNTS:
            found[name] = partial(self._typed, partial(self._counted, stock[name]))
        for name in _CLAMPS:
            promoted = partial(self._promoted, stock[name])
            found[name] = partial(self._typed, partial(self._clamped, promoted))
        found["grid_sampler_2d.default"] = self._sampled
        found["any.default"] = self._any
        found["div.Tensor_mode"] = partial(self._typed, self._rounded_quotient)
        found["elu.default"] = partial(self._typed, self._elu)
        found["select.int"] = partial(self._typed, self._place)
        found["index.Tensor"] = partial(self._typed, self._indexed)
        found["index_put.default"] = self._rows_in_place
        return found

    def _typed(self, convert: Converter, node: Any) -> Any:
        """Convert a node; what comes in another type than torch's is cast."""
        found = convert(node)
        wanted = getattr(node.meta.get("val"), "dtype", None)
        if wanted is None or not isinstance(getattr(found, "ty", None), relax.TensorType):
            return found
        _refuse_another_shape(node, found)
        wanted = self._convert_data_type(wanted)
        if str(found.ty.dtype) == wanted:
            return found
        return self.block_builder.emit(relax.op.astype(found, wanted))

    def _any(self, node: Any) -> Any:
        """Whether any element is not zero, of all or along dims; TVM 0.27 takes the highest."""
        dims = node.args[1] if len(node.args) > 1 else None
        keeps = len(node.args) > 2 and node.args[2]
        held = self.block_builder.emit(relax.op.astype(self.env[node.args[0]], "bool"))
        as_bytes = self.block_builder.emit(relax.op.astype(held, "int8"))
        highest = self.block_builder.emit(relax.op.max(as_bytes, dims, keepdims=keeps))
        return self.block_builder.emit(relax.op.astype(highest, "bool"))

    def _counted(self, convert: Converter, node: Any) -> Any:
        """Convert a sum, of truth values as numbers; TVM 0.27 gives whether there is any."""
        own = self._convert_data_type(node.meta["val"].dtype)
        return self._in_type(convert, node.args[:1] if "int" in own else [], own, node)

    def _clamped(self, convert: Converter, node: Any) -> Any:
        """Whole numbers within bounds; TVM 0.27 casts the infinite one of a bound that is not."""
        own = self._convert_data_type(node.meta["val"].dtype)
        if "int" not in own:
            return convert(node)
        least, most = (*self.retrieve_args(node)[1:], None, None)[:2]
        if str(node.target).endswith("clamp_max.default"):
            least, most = None, least
        bounds = [node.kwargs.get("min", least), node.kwargs.get("max", most)]
        found = self.env[node.args[0]]
        for bound, within in zip(bounds, (relax.op.maximum, relax.op.minimum), strict=True):
            if bound is not None:
                known = self.env.get(bound, bound) if isinstance(bound, fx.Node) else bound
                as_value = known if isinstance(known, relax.Expr) else relax.const(known, own)
                found = self.block_builder.emit(within(found, as_value))
        return found

    def _sampled(self, node: Any) -> Any:
        """Pixels at places between them, which TVM has before rows and columns, torch behind."""
        image, grid, method, outside, corners = node.args
        if method == 2:
            raise ValueError("a bicubic grid_sample is not TVM's; use bilinear")
        places = self.block_builder.emit(relax.op.permute_dims(self.env[grid], [0, 3, 1, 2]))
        how = ("bilinear", "nearest")[method], "NCHW", ("zeros", "border", "reflection")[outside]
        sampled = relax.op.image.grid_sample(self.env[image], places, *how, corners)
        return self.block_builder.emit(sampled)

    def _elu(self, node: Any) -> Any:
        """ELU, CELU and SELU, of 16 bits in ``float32``; TVM 0.27 leaves out all but ``alpha``."""
        op, emit = relax.op, self.block_builder.emit
        alpha, scale, inner = [*node.args[1:], 1.0, 1.0, 1.0][:3]
        x = self.env[node.args[0]]
        wide = "float32" if str(x.ty.dtype) in _FLOATS else str(x.ty.dtype)
        x = emit(op.astype(x, wide))

        def times(value: Any, factor: float) -> Any:
            known = relax.const(float(factor), wide)
            return value if factor == 1 else emit(op.multiply(value, known))

        below = emit(op.subtract(emit(op.exp(times(x, inner))), relax.const(1.0, wide)))
        is_above = emit(op.greater(x, relax.const(0.0, wide)))
        return emit(op.where(is_above, times(x, scale), times(below, scale * alpha)))

    def _joined(self, convert: Converter, node: Any) -> Any:
        """Parts side by side, without those of no element, of which there is no kernel."""

        def has_elements(part: Any) -> bool:
            sizes = part.meta["val"].shape
            return not any(isinstance(size, int) and size == 0 for size in sizes)

        parts = [one for one in node.args[0] if has_elements(one)]
        if len(parts) == len(node.args[0]) or not parts:
            return convert(node)
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        given = [self.env[one] for one in parts]
        return given[0] if len(given) == 1 else self.block_builder.emit(relax.op.concat(given, dim))

    def _alike(self, convert: Converter, dtype: str, at: int | None, node: Any) -> Any:
        """Convert a node whose floats, or only operand ``at``, are brought to one type before."""
        given = node.all_input_nodes if at is None else node.args[at : at + 1]
        operands = [one for one in given if isinstance(one, fx.Node)]
        return self._in_type(convert, [*filter(self._is_float, operands)], dtype, node)

    def _promoted(self, convert: Converter, node: Any) -> Any:
        """Convert a node whose operands are brought to the type that torch computes in."""
        operands, result = node.all_input_nodes, node.meta["val"].dtype
        if str(node.target).startswith("aten.where"):
            operands = operands[1:]
        elif result is torch.bool and len(operands) == 2:
            result = torch.result_type(*(one.meta["val"] for one in operands))
        return self._in_type(convert, operands, self._convert_data_type(result), node)

    def _is_float(self, operand: Any) -> bool:
        return str(getattr(getattr(self.env[operand], "ty", None), "dtype", "")) in _FLOATS

    def _in_type(self, convert: Converter, operands: Sequence[Any], dtype: str, node: Any) -> Any:
        """Convert a node some of whose operands are cast before."""
        kept = {one: self.env[one] for one in operands}
        for one, value in kept.items():
            kind = str(getattr(getattr(value, "ty", None), "dtype", dtype))
            if kind != dtype:
                self.env[one] = self.block_builder.emit(relax.op.astype(value, dtype))
        try:
            return convert(node)
        finally:
            self.env.update(kept)

    def _rounded_quotient(self, node: Any) -> Any:
        """A quotient rounded down or towards zero, of floats in ``float32``; TVM has integers'."""
        mode, emit = node.kwargs.get("rounding_mode"), self.block_builder.emit
        own = self._convert_data_type(node.meta["val"].dtype)
        wide = "float32" if own in _FLOATS else own
        whole = "int" in wide
        given = [
            emit(relax.op.astype(one, wide))
            if isinstance(one, relax.Expr)
            else relax.const(one, wide)
            for one in self.retrieve_args(node)[:2]
        ]
        if whole and mode == "floor":
            return emit(relax.op.floor_divide(*given))
        found = emit(relax.op.divide(*given))
        if whole or mode is None:
            return found
        return emit((relax.op.floor if mode == "floor" else relax.op.trunc)(found))

    def _place(self, node: Any) -> Any:
        """An element of a dim, counted from either end."""
        data, dim, at = node.args
        if isinstance(at, int):
            return place_of(self.block_builder, self.env[data], dim, at)
        return self._select(node)

    def _indexed(self, node: Any) -> Any:
        """Elements by indices; None takes all of a dim."""
        data, indices = self.retrieve_args(node)
        return indexed(self.block_builder, data, indices)

    def _put(self, node: Any) -> Any:
        """A tensor with other values at indices."""
        data, indices, values, *adds = self.retrieve_args(node)
        return put(self.block_builder, data, indices, values, bool(adds and adds[0]))

    def _rows_in_place(self, node: Any) -> Any:
        """Write rows of what a buffer held before, which nothing else reads, or of a copy."""
        data, indices, values = node.args[:3]
        dims = [at for at, one in enumerate(indices) if one is not None]
        adds = len(node.args) > 3 and node.args[3]
        is_new = self.state.get(data.name) == node.name and len(data.users) == 1
        # TVM writes by an index for each dim.
        is_stock = len(dims) == len(data.meta["val"].shape) and not is_new
        if is_stock or adds or len(dims) != 1 or not _places_rows(indices[dims[0]]):
            return self._typed(self._put, node)
        buffer, index, rows = (self.env[one] for one in (data, indices[dims[0]], values))
        self.writes_rows = True
        if is_new:
            self.in_place.add(node.name)
        shape = [*buffer.ty.shape.values]
        shape[dims[0]] = index.ty.shape.values[0]
        if [*map(str, rows.ty.shape.values)] != [*map(str, shape)]:
            rows = self.block_builder.emit(relax.op.broadcast_to(rows, shape))
        return write_rows(self.block_builder, buffer, index, rows, dims[0], is_new)


def _refuse_another_shape(node: Any, found: Any) -> None:
    """Raise ValueError where TVM gives a node another shape than torch, so other values."""
    own, wanted = extents_of(found), node.meta["val"].shape
    if own is None:
        return
    pairs = zip(own, wanted, strict=False)
    known = [(int(a), b) for a, b in pairs if isinstance(a, tirx.IntImm) and isinstance(b, int)]
    if len(own) != len(wanted) or any(a != b for a, b in known):
        raise ValueError(
            f"TVM gives {node.target} a result of ({', '.join(map(str, own))}), torch one of"
            f" ({', '.join(map(str, wanted))})"
        )


def _places_rows(index: Any) -> bool:
    """Whether an index has integers of one dim; those of bool or uint8 are masks."""
    value = index.meta["val"]
    return value.ndim == 1 and str(value.dtype).startswith("torch.int")
