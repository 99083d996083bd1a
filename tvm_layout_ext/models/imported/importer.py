"""TVM's importer of ``torch.export``, with the types that torch has, and state in place."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import tvm
from torch import fx
from tvm import relax, tirx
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from ..relax_values import NARROW_FLOATS, extents_of
from .arithmetic import Arithmetic, Converter, standing_for
from .known import Known
from .masks import masked_scatter
from .places import indexed, place_of, put
from .rows_in_place import write_rows
from .shapes import Shapes
from .sizes import Sizes, is_symbolic

#: What is added to a product, by operator; TVM 0.27 names ``float32`` as the product's type.
_ADDED = {"addmm.default": 0, "convolution.default": 2, "linear.default": 2}

#: Dims of images that have a depth, with batch and channels.
_IN_THREE_DIMS = 5
#: What TVM 0.27 adds up in its operands' type, or has no types for.
_WIDENED = ("native_group_norm.default", "linalg_vector_norm.default")


class Importer(ExportedProgramImporter):
    """Imports modules of 16 bits, whose products TVM 0.27 gives in ``float32``, and their state.

    ``state`` has the names of the nodes whose values are new ones of buffers, by buffers' nodes;
    ``in_place`` those that are written to the buffer itself. ``writes_rows`` tells whether any is.
    """

    def __init__(self, state: Mapping[str, str]) -> None:
        self.state, self.in_place, self.writes_rows = state, set[str](), False
        super().__init__()

    def create_input_vars(self, exported_program: Any) -> Any:
        """Take note of the variables that stand for symbolic sizes."""
        found = super().create_input_vars(exported_program)
        self.sizes = Sizes(exported_program, {**found[0], **found[1]})
        self._known = Known(exported_program)
        return found

    def _check_unsupported_func_type(self, nodes: list[Any]) -> None:
        """Refuse operators that TVM does not have, unless torch knows what all of them give."""
        unknown: dict[str, list[Any]] = {}
        for node in nodes:
            if node.op == "call_function" and node.target.__name__ not in self.convert_map:
                unknown.setdefault(node.target.__name__, []).append(node)
        for name, ones in unknown.items():
            if all(self._known.value_of(node) is not None for node in ones):
                self.convert_map[name] = partial(self._typed, self._constant)
        super()._check_unsupported_func_type(nodes)

    def create_convert_map(self) -> dict[str, Converter]:
        """Stock conversions, each followed by a cast to the type that torch has for its value."""
        stock = super().create_convert_map()
        found: dict[str, Converter] = {
            name: partial(self._typed, one) for name, one in stock.items()
        }
        added = _ADDED | dict.fromkeys((name for name in _WIDENED if name in stock), None)
        own: dict[str, Converter] = {
            "convolution.default": partial(self._convolved, stock["convolution.default"]),
            "native_group_norm.default": self._normed_in_groups,
        }
        for name, at in added.items():
            convert = own.get(name, stock[name])
            found[name] = partial(self._typed, partial(self._in_float32, convert, at))
        arithmetic = Arithmetic(self, stock).converters()
        found |= {name: partial(self._typed, one) for name, one in arithmetic.items()}
        for name in (one for one in stock if one.endswith("_aa.default")):
            found[name] = partial(self._typed, partial(self._averaged, stock[name]))
        for name in (one for one in stock if "_pool" in one):
            check = partial(_checked, stock[name])
            found[name] = check if "indices" in name else partial(self._typed, check)
        found["grid_sampler_2d.default"] = partial(self._typed, self._sampled)
        found["instance_norm.default"] = partial(self._typed, self._normed)
        found["select.int"] = partial(self._typed, self._place)
        found["index.Tensor"] = partial(self._typed, self._indexed)
        found["masked_scatter.default"] = partial(self._typed, partial(masked_scatter, self))
        shapes = Shapes(self, stock)
        found |= {name: partial(self._typed, one) for name, one in shapes.converters().items()}
        found |= shapes.of_sizes()
        found["index_put.default"] = self._rows_in_place
        return found

    def _constant(self, node: Any) -> Any:
        """What torch knows that a node gives; complex numbers are read by others that it knows."""
        value = self._known.value_of(node)
        if value.is_complex():
            return None
        return relax.const(tvm.runtime.from_dlpack(value.detach().contiguous().clone()))

    def _averaged(self, convert: Converter, node: Any) -> Any:
        """Images of another size that average, which TVM 0.27 leaves out: those that are known."""
        if self._known.value_of(node) is not None:
            return self._constant(node)
        return _checked(convert, node)

    def _typed(self, convert: Converter, node: Any) -> Any:
        """Convert a node; what comes in another type than torch's is cast."""
        found = convert(node)
        wanted = getattr(node.meta.get("val"), "dtype", None)
        if wanted is None or not isinstance(getattr(found, "ty", None), relax.TensorType):
            return found
        _refuse_another_shape(node, found)
        found = self._shaped(node, found)
        wanted = self._convert_data_type(wanted)
        if str(found.ty.dtype) == wanted:
            return found
        return self.block_builder.emit(relax.op.astype(found, wanted))

    def _shaped(self, node: Any, found: Any) -> Any:
        """A value whose symbolic shape TVM does not see, or not as torch does, is said to have it.

        TVM 0.27 knows no least size, and so not that one of several rows is one row.
        """
        if not is_symbolic(node.meta["val"]):
            return found
        shape = self.sizes.shape_of(node)
        if shape is None or self.sizes.are_equal(extents_of(found), shape):
            return found
        kind = relax.TensorType(shape, str(found.ty.dtype))
        return self.block_builder.match_cast(found, kind)

    def _sampled(self, node: Any) -> Any:
        """Pixels at places between them, which TVM has before rows and columns, torch behind."""
        image, grid, method, outside, corners = node.args
        if method == 2:
            raise ValueError("a bicubic grid_sample is not TVM's; use bilinear")
        places = self.block_builder.emit(relax.op.permute_dims(self.env[grid], [0, 3, 1, 2]))
        how = ("bilinear", "nearest")[method], "NCHW", ("zeros", "border", "reflection")[outside]
        sampled = relax.op.image.grid_sample(self.env[image], places, *how, corners)
        return self.block_builder.emit(sampled)

    def _normed(self, node: Any) -> Any:
        """A norm of each channel of each image; TVM 0.27 takes another number for its epsilon."""
        x, *given, epsilon = (node.args[i] for i in (0, 1, 2, 7))
        image = self.env[x]
        axes = [*range(2, image.ty.ndim)]
        factors = self._factors(image, *given)
        return self.block_builder.emit(relax.op.nn.instance_norm(image, *factors, 1, axes, epsilon))

    def _normed_in_groups(self, node: Any) -> Any:
        """A norm of each group of channels, of which TVM 0.27 takes those alone that are scaled."""
        x, *given, groups, epsilon = (node.args[i] for i in (0, 1, 2, 6, 7))
        image = self.env[x]
        axes = [*range(2, image.ty.ndim)]
        factors = self._factors(image, *given)
        return self.block_builder.emit(
            relax.op.nn.group_norm(image, *factors, groups, 1, axes, epsilon)
        )

    def _factors(self, image: Any, scale: Any, shift: Any) -> list[Any]:
        """What the channels of a norm are multiplied by, and what is added; ones and zeros else."""
        channels, dtype = image.ty.shape.values[1], str(image.ty.dtype)
        return [
            relax.op.full((channels,), relax.const(usual, dtype)) if one is None else self.env[one]
            for one, usual in ((scale, 1), (shift, 0))
        ]

    def _in_float32(self, convert: Converter, at: int | None, node: Any) -> Any:
        """Convert a node whose floats, or operand ``at`` alone, come in ``float32``."""
        given = node.all_input_nodes if at is None else node.args[at : at + 1]

        def is_narrow(value: Any) -> bool:
            return str(getattr(getattr(value, "ty", None), "dtype", "")) in NARROW_FLOATS

        nodes = [one for one in given if isinstance(one, fx.Node) and is_narrow(self.env[one])]
        emit, op = self.block_builder.emit, relax.op
        wide = {one: emit(op.astype(self.env[one], "float32")) for one in nodes}
        with standing_for(self.env, wide):
            return convert(node)

    def _convolved(self, convert: Converter, node: Any) -> Any:
        """A convolution; of transposed ones TVM 0.27 imports those of one and two dims."""
        data, weight, bias, *sizes, is_transposed, more, groups = node.args
        if not is_transposed or node.meta["val"].ndim != _IN_THREE_DIMS:
            return convert(node)
        (strides, padding, dilation), emit = sizes, self.block_builder.emit
        sums = relax.op.nn.conv3d_transpose(
            *(self.env[data], self.env[weight], strides, padding, more, dilation, groups),
            out_dtype="float32",
        )
        if bias is None:
            return emit(sums)
        column = emit(relax.op.reshape(self.env[bias], [1, -1, 1, 1, 1]))
        return emit(relax.op.add(emit(sums), column))

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


def _checked(convert: Converter, node: Any) -> Any:
    """Convert a pool or a change of size, unless by what TVM 0.27 leaves out without a word."""
    name = str(node.target)
    divisor = [*node.args[6:7], node.kwargs.get("divisor_override")][0]
    if "avg_pool" in name and "adaptive" not in name and divisor is not None:
        raise ValueError(f"divisor_override={divisor} of an average pool is not TVM's; multiply")
    if "indices" in name and any(one.args[1:] == (1,) and one.users for one in node.users):
        raise ValueError(f"{name} gives no indices in TVM; leave return_indices out")
    if name.endswith("_aa.default"):
        raise ValueError(f"{name} does not average in TVM; leave antialias out")
    return convert(node)


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
