"""What Relax's values hold that depends on no input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir.expr import GenericConst

from ..ir.queries import size_of
from .affine_values import AffineReader
from .relax_values import (
    VIEWS,
    axes_of,
    bound_to,
    dims_of,
    extents_of,
    name_of,
    slices_of,
    tensors_of,
    whole_numbers,
)

#: Elements of a constant that is worked out; masks of 4,096 keys have more than enough.
MOST_ELEMENTS = 1 << 26
#: Operators of NumPy, by those of Relax.
_NUMPY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: np.reciprocal(np.sqrt(x)),
    "negative": np.negative,
    "abs": np.abs,
    "less_equal": np.less_equal,
    "less": np.less,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_not": np.logical_not,
    "bitwise_and": np.bitwise_and,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "where": np.where,
}

#: Operators in a row that a constant is made by. What depends on inputs has the layers of a model
#: behind it, more than Python calls functions within one another.
_DEEP = 128
#: Elements of an array that is kept while others are worked out.
_MOST_KEPT = 1 << 24


def scalar_of(value: Any, binding: Callable[[Any], Any]) -> float | None:
    """The number that a value without dims holds, or None."""
    if getattr(value, "ty", None) is not None and extents_of(value) not in ((), None):
        return None
    found = array_of(value, binding)
    return float(found) if found is not None and found.ndim == 0 else None


def array_of(
    value: Any,
    binding: Callable[[Any], Any],
    repeated: bool = False,
    kept: dict[Any, tuple[np.ndarray | None, int]] | None = None,
) -> np.ndarray | None:
    """What a value holds that depends on no input, or None where that is not known.

    ``binding`` gives the expression that a variable is bound to. With ``repeated`` an extent that
    is symbolic is 1, where the same elements are repeated along it. ``kept`` is what was worked out
    of variables before, by the same binding, and takes what is worked out now: each layer of a
    model asks for what the layers before it have asked for.
    """
    return _Known(binding, repeated, {} if kept is None else kept).array(value, _DEEP)


@dataclass
class _Known:
    """A reader of what is known, which reads each variable once.

    A mask that slices are put into, as Swin's in windows, reads each of its states twice. ``kept``
    has what variables hold, and how many operators were followed to find it.
    """

    binding: Callable[[Any], Any]
    repeated: bool
    kept: dict[Any, tuple[np.ndarray | None, int]]
    affine: AffineReader = field(init=False)

    def __post_init__(self) -> None:
        self.affine = AffineReader(self.binding)

    def array(self, value: Any, deep: int) -> np.ndarray | None:
        """What a value holds, that so many operators at most are followed to."""
        if not deep:
            return None
        if not isinstance(value, relax.Var):
            return self._made(bound_to(value, self.binding), deep)
        found, followed = self.kept.get(value, (None, 0))
        if found is None and followed < deep:
            found = self._made(bound_to(value, self.binding), deep)
            if found is None or found.size <= _MOST_KEPT:
                self.kept[value] = found, deep
        return found

    def _made(self, value: Any, deep: int) -> np.ndarray | None:
        """What an operator gives, or a constant is."""
        if isinstance(value, GenericConst):
            return np.asarray(value.value.numpy())
        name, binding = name_of(value), self.binding
        dims = None if value is None else dims_of(value)
        if self.repeated and (same := self.affine.of(value)) is not None and same.is_uniform:
            return np.full([*map(_size, extents_of(value) or ())], same.first, str(value.ty.dtype))
        if self.repeated and name and name != "arange":
            moves = _moves_along_any(value, binding)
            dims = None if moves else [*map(_size, extents_of(value) or ())]
        if not name or dims is None or np.prod(dims, dtype=np.int64) > MOST_ELEMENTS:
            return None
        if name == "arange":
            return _arange(value)
        if name == "full":
            filler = self.array(value.args[1], deep - 1)
            return None if filler is None else np.full(dims, filler, str(value.ty.dtype))
        tensors = tensors_of(value, binding)
        if name in (*_NUMPY, "take") and len(tensors) < len(value.args):
            return None  # A size is computed with, which is no tensor.
        given = self._given(name, tensors, deep - 1)
        return None if given is None else _computed(value, tensors, given, dims)

    def _given(self, name: str, tensors: Sequence[Any], deep: int) -> list[np.ndarray] | None:
        """What the operands hold; None where one is not known."""
        given = dict[int, np.ndarray]()
        # Of a large constant nothing is read if another operand is unknown.
        for at in sorted(range(len(tensors)), key=lambda at: isinstance(tensors[at], GenericConst)):
            one, known = tensors[at], None
            if self.repeated and name == "index_tensor" and at and _is_any(tensors[0], at - 1):
                known = np.zeros([*map(_size, extents_of(one) or ())], int)
            else:
                known = self.array(one, deep)
            if known is None:
                return None
            given[at] = known
        return [given[at] for at in range(len(tensors))]


def _computed(
    call: relax.Call, tensors: Sequence[Any], given: list[np.ndarray], dims: Sequence[int]
) -> np.ndarray | None:
    """What an operator makes of known operands."""
    name = name_of(call)
    if name in _NUMPY:
        # A quotient of whole numbers is cut off.
        return np.asarray(_NUMPY[name](*given)).astype(str(call.ty.dtype))
    if name in _MOVED:
        return _MOVED[name](call, given)
    if name == "astype":
        return given[0].astype(str(call.ty.dtype))
    return _viewed(call, tensors, given, dims)


def _size(extent: Any) -> int:
    """An extent, or 1 where it is symbolic."""
    size = size_of(extent)
    return size if isinstance(size, int) else 1


def _is_any(value: Any, axis: int) -> bool:
    """Whether a tensor has a symbolic extent on an axis."""
    found = extents_of(value)
    return found is not None and not isinstance(size_of(found[axis]), int)


def _behind(value: Any) -> list[int]:
    """Elements behind each symbolic extent: a view leaves these where it moves no such extent."""
    extents = extents_of(value) or ()
    sizes = [*map(_size, extents)]
    return [prod(sizes[at:]) for at in range(len(sizes)) if _is_any(value, at)]


def _viewed(
    call: relax.Call, tensors: Sequence[Any], known: Sequence[np.ndarray], dims: Any
) -> np.ndarray | None:
    """A view or a repetition of what is known, or None."""
    if name_of(call) in VIEWS:
        return known[0].reshape(dims) if _behind(call) == _behind(tensors[0]) else None
    return np.broadcast_to(known[0], dims) if name_of(call) == "broadcast_to" else None


def _arange(call: relax.Call) -> np.ndarray | None:
    bounds = whole_numbers(call.args)
    return None if bounds is None else np.arange(*bounds).astype(str(call.ty.dtype))


def _moves_along_any(call: Any, binding: Callable[[Any], Any]) -> bool:
    """Whether an operator gives elements other places along a symbolic extent, or adds them up."""
    name, along = name_of(call), list[int]()
    if name == "nn.pad":
        widths = call.attrs.pad_width
        along = [at // 2 for at, width in enumerate(widths) if int(width)]
    if (
        name in ("concat", "cumsum", "slice_scatter", "flip", "take")
        and call.attrs.axis is not None
    ):
        along = [int(call.attrs.axis)]
    if name == "strided_slice":
        along = whole_numbers(call.args[1]) or []
    given = tensors_of(call, binding) if along else []
    given = given[:1] if name == "take" else given
    return any(_is_any(one, axis) for one in given for axis in along)


def _sliced(value: Any, given: list[np.ndarray]) -> np.ndarray | None:
    """A slice of an array; None if it is not known which."""
    numbers = slices_of(value)
    if numbers is None:
        return None
    axes, begins, ends, *steps = numbers
    found = given[0]
    for at, axis in enumerate(axes):
        step = steps[0][at] if steps else 1
        places = [slice(None)] * found.ndim
        places[axis] = slice(begins[at], ends[at], step)
        found = found[tuple(places)]
    return found


def _scattered(value: Any, given: list[np.ndarray]) -> np.ndarray | None:
    """An array with a slice of it replaced; None if it is not known which."""
    numbers = whole_numbers(value.args[2:])
    if numbers is None:
        return None
    begin, end, step = numbers
    found, places = given[0].copy(), [slice(None)] * given[0].ndim
    places[int(value.attrs.axis)] = slice(begin, end, step)
    found[tuple(places)] = given[1]
    return found


def _padded(value: Any, given: list[np.ndarray]) -> np.ndarray | None:
    """An array with a value around it; None if something is cut off, or put there otherwise."""
    if str(value.attrs.pad_mode) != "constant":
        return None
    widths = [int(one) for one in value.attrs.pad_width]
    if min(widths) < 0:
        return None
    pairs = [*zip(widths[::2], widths[1::2], strict=True)]
    return np.pad(given[0], pairs, constant_values=value.attrs.pad_value)


def _summed(value: Any, given: list[np.ndarray]) -> np.ndarray | None:
    # TVM adds booleans up to a boolean where PyTorch counts: known is the sum of none.
    if value.attrs.axis is None or (given[0].dtype == bool and given[0].any()):
        return None
    return np.cumsum(given[0], int(value.attrs.axis)).astype(str(value.ty.dtype))


def _taken(value: Any, given: list[np.ndarray]) -> np.ndarray | None:
    """Elements at indices of an axis; None where one lies outside, or no axis is named."""
    (data, indices), axis = given, value.attrs.axis
    if axis is None or not indices.size:
        return None
    is_inside = 0 <= indices.min() <= indices.max() < data.shape[int(axis)]
    return np.take(data, indices, int(axis)) if is_inside else None


def _indexed(_value: Any, given: list[np.ndarray]) -> np.ndarray | None:
    data, *indices = given
    ends = zip(indices, data.shape, strict=False)
    is_inside = all(((-end <= one) & (one < end)).all() for one, end in ends)
    return data[tuple(indices)] if is_inside else None


#: What gives elements of its operands at other places, or their sums.
_MOVED: dict[str, Callable[[Any, list[np.ndarray]], np.ndarray | None]] = {
    "permute_dims": lambda value, given: given[0].transpose(axes_of(value)),
    "concat": lambda value, given: np.concatenate(given, int(value.attrs.axis)),
    "flip": lambda value, given: np.flip(given[0], int(value.attrs.axis)),
    "nn.pad": _padded,
    "strided_slice": _sliced,
    "slice_scatter": _scattered,
    "index_tensor": _indexed,
    "cumsum": _summed,
    "take": _taken,
}
