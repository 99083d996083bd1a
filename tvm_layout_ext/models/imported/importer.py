"""TVM's importer of ``torch.export``, with the types that torch has, and state in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from ..relax_values import NARROW_FLOATS
from .rows_in_place import write_rows

Converter = Callable[[Any], Any]
#: What is added to a product, by operator; TVM 0.27 names ``float32`` as the product's type.
_ADDED = {"addmm.default": 0, "convolution.default": 2, "linear.default": 2}

#: What TVM 0.27 adds up in its operands' type, or has no types for.
_WIDENED = ("native_group_norm.default",)
#: What torch takes operands of several types of, as a tensor of 16 bits and a number of 32.
_PROMOTED = (
    *("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "maximum.default"),
    *("minimum.default", "clamp.Tensor", "where.self", "cat.default"),
)
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
        found: dict[str, Converter] = {
            name: partial(self._typed, one) for name, one in stock.items()
        }
        for name, at in _ADDED.items():
            found[name] = partial(self._typed, partial(self._alike, stock[name], "float32", at))
        for name in _WIDENED:
            found[name] = partial(self._typed, partial(self._alike, stock[name], "float32", None))
        for name in _PROMOTED:
            found[name] = partial(self._typed, partial(self._alike, stock[name], None, None))
        found["any.default"] = self._any
        found["index_put.default"] = partial(self._rows_in_place, stock["index_put.default"])
        return found

    def _typed(self, convert: Converter, node: Any) -> Any:
        """Convert a node; what comes in another type than torch's is cast."""
        found = convert(node)
        wanted = getattr(node.meta.get("val"), "dtype", None)
        if wanted is None or not isinstance(getattr(found, "ty", None), relax.TensorType):
            return found
        wanted = self._convert_data_type(wanted)
        if str(found.ty.dtype) == wanted:
            return found
        return self.block_builder.emit(relax.op.astype(found, wanted))

    def _any(self, node: Any) -> Any:
        """Whether any element of a tensor is not zero, which TVM 0.27 has along a dim alone."""
        held = self.block_builder.emit(relax.op.astype(self.env[node.args[0]], "bool"))
        as_bytes = self.block_builder.emit(relax.op.astype(held, "int8"))
        highest = self.block_builder.emit(relax.op.max(as_bytes))
        return self.block_builder.emit(relax.op.astype(highest, "bool"))

    def _alike(self, convert: Converter, dtype: str | None, at: int | None, node: Any) -> Any:
        """Convert a node whose floats are brought to one type before, by default its result's.

        Where ``at`` is given it is that operand alone.
        """
        given = node.all_input_nodes
        kept = {one: self.env[one] for one in given if at is None or one in node.args[at : at + 1]}
        wanted = dtype or self._convert_data_type(node.meta["val"].dtype)
        for one, value in kept.items():
            kind = str(getattr(getattr(value, "ty", None), "dtype", ""))
            if wanted in _FLOATS and kind in _FLOATS and kind != wanted:
                self.env[one] = self.block_builder.emit(relax.op.astype(value, wanted))
        try:
            return convert(node)
        finally:
            self.env.update(kept)

    def _rows_in_place(self, convert: Converter, node: Any) -> Any:
        """Write rows of what a buffer held before, which nothing else reads, or of a copy."""
        data, indices, values = node.args[:3]
        dims = [at for at, one in enumerate(indices) if one is not None]
        adds = len(node.args) > 3 and node.args[3]
        is_new = self.state.get(data.name) == node.name and len(data.users) == 1
        # TVM writes by an index for each dim.
        is_stock = len(dims) == len(data.meta["val"].shape) and not is_new
        if is_stock or adds or len(dims) != 1 or not _places_rows(indices[dims[0]]):
            return self._typed(convert, node)
        buffer, index, rows = (self.env[one] for one in (data, indices[dims[0]], values))
        self.writes_rows = True
        if is_new:
            self.in_place.add(node.name)
        shape = [*buffer.ty.shape.values]
        shape[dims[0]] = index.ty.shape.values[0]
        if [*map(str, rows.ty.shape.values)] != [*map(str, shape)]:
            rows = self.block_builder.emit(relax.op.broadcast_to(rows, shape))
        return write_rows(self.block_builder, buffer, index, rows, dims[0], is_new)


def _places_rows(index: Any) -> bool:
    """Whether an index has integers of one dim; those of bool or uint8 are masks."""
    value = index.meta["val"]
    return value.ndim == 1 and str(value.dtype).startswith("torch.int")
