"""What Relax's values are called, how large they are, and what they hold if that is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir.expr import GenericConst

from ..ir.queries import are_equal, nodes_of, size_of

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
#: Floats of 16 bits, as in NumPy's names.
NARROW_FLOATS = ("float16", "bfloat16")
FLOATS = (*NARROW_FLOATS, "float32")
#: Operators each element of whose result is computed from those at its place.
ELEMENTWISE = (
    *("abs", "add", "astype", "ceil", "clip", "cos", "divide", "erf", "exp", "floor", "log"),
    *("maximum", "minimum", "multiply", "negative", "nn.gelu", "nn.gelu_tanh", "nn.leakyrelu"),
    *("nn.relu", "nn.silu", "power", "round", "rsqrt", "sigmoid", "sin", "sqrt", "square"),
    *("subtract", "tanh", "where"),
)


#: Operators that give elements another shape, and leave them where they are.
VIEWS = ("reshape", "expand_dims", "squeeze")


def rewritten(mod: tvm.IRModule, kind: Any) -> tvm.IRModule:
    """A module whose Relax functions a mutator has rewritten."""
    one = kind(mod)
    for gv, func in mod.functions_items():
        if isinstance(func, relax.Function):
            one.builder_.update_func(gv, one.visit_expr(func))
    return one.builder_.get()


def bound_to(value: Any, binding: Callable[[Any], Any]) -> Any:
    """What a variable is bound to, also by the name of another one; else the value itself."""
    while isinstance(value, relax.Var):
        value = binding(value)
    return value


def bound_in_reach(value: Any, binding: Callable[[Any], Any]) -> Any:
    """What a variable is bound to, or None where the variable's readers cannot read its operands.

    They cannot where a block of dataflow gives the variable, and has the operands for itself.
    """
    found = bound_to(value, binding)
    if not isinstance(value, relax.Var) or isinstance(value, relax.DataflowVar) or found is None:
        return found
    return None if any(isinstance(one, relax.DataflowVar) for one in uses_of(found)) else found


def source_of(value: Any, names: Sequence[str], bound: Callable[[Any], Any]) -> Any:
    """What a value is made from by some operators alone, ``bound`` giving what variables are."""
    while name_of(call := bound(value)) in names:
        value = call.args[0]
    return value


def name_of(value: Any) -> str:
    """Name of an operator that is called, without its family."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return ""
    return str(value.op.name).removeprefix("relax.")


def calls_operator(mod: tvm.IRModule, name: str) -> bool:
    """Whether a Relax function of a module calls an operator."""
    found = (one for func in mod.functions.values() for one in nodes_of(func))
    return any(name_of(one) == name for one in found)


def dims_of(value: Any) -> list[int] | None:
    """Extents of a tensor, or None where some are not known."""
    shape = getattr(getattr(value.ty, "shape", None), "values", None)
    if shape is None or not all(isinstance(one, tirx.IntImm) for one in shape):
        return None
    return [int(one) for one in shape]


def extents_of(value: Any) -> tuple[Any, ...] | None:
    """Extents of a tensor, or None where they are not written out."""
    found = getattr(getattr(value.ty, "shape", None), "values", None)
    return None if found is None else tuple(found)


def has_shape(value: Any, shape: Sequence[Any] | None) -> bool:
    """Whether a value is a tensor of these extents; not if either is not written out."""
    own = extents_of(value)
    if own is None or shape is None or len(own) != len(shape):
        return False
    return are_equal(own, shape)


def axes_of(call: relax.Call) -> list[int]:
    """The axes of a ``permute_dims``, counted from the front; none written are all, backwards."""
    rank, axes = int(call.args[0].ty.ndim), call.attrs.axes
    return [int(axis) % rank for axis in (range(rank)[::-1] if axes is None else axes)]


def uses_of(value: Any) -> list[Any]:
    """Variables that a value is computed from, each as often as it is read."""
    if isinstance(value, relax.Call):
        return [var for one in value.args for var in uses_of(one)]
    if isinstance(value, relax.Tuple):
        return [var for one in value.fields for var in uses_of(one)]
    return [value] if isinstance(value, relax.Var) else [*relax.analysis.free_vars(value)]


def scalar_of(value: Any, binding: Callable[[Any], Any]) -> float | None:
    """The number that a value without dims holds, or None."""
    if getattr(value, "ty", None) is not None and extents_of(value) not in ((), None):
        return None
    found = array_of(value, binding)
    return float(found) if found is not None and found.ndim == 0 else None


def array_of(
    value: Any, binding: Callable[[Any], Any], repeated: bool = False
) -> np.ndarray | None:
    """What a value holds that depends on no input, or None where that is not known.

    ``binding`` gives the expression that a variable is bound to. With ``repeated`` an extent that
    is symbolic is 1, where the same elements are repeated along it.
    """
    return _Known(binding, repeated).array(value, _DEEP)


@dataclass
class _Known:
    """A reader of what is known, which reads each variable once.

    A mask that slices are put into, as Swin's in windows, reads each of its states twice.
    """

    binding: Callable[[Any], Any]
    repeated: bool
    kept: dict[Any, np.ndarray | None] = field(default_factory=dict)

    def array(self, value: Any, deep: int) -> np.ndarray | None:
        """What a value holds, that so many operators at most are followed to."""
        if not deep:
            return None
        if not isinstance(value, relax.Var):
            return self._made(bound_to(value, self.binding), deep)
        if value not in self.kept:
            found = self._made(bound_to(value, self.binding), deep)
            if found is not None and found.size > _MOST_KEPT:
                return found
            self.kept[value] = found
        return self.kept[value]

    def _made(self, value: Any, deep: int) -> np.ndarray | None:
        """What an operator gives, or a constant is."""
        if isinstance(value, GenericConst):
            return np.asarray(value.value.numpy())
        name, binding = name_of(value), self.binding
        dims = None if value is None else dims_of(value)
        if self.repeated and name == "greater_equal" and _holds_of_places(value, binding):
            return np.ones([*map(_size, extents_of(value) or ())], bool)
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
        given = self._given(name, tensors, deep - 1)
        return None if given is None else _computed(value, tensors, given, dims)

    def _given(self, name: str, tensors: Sequence[Any], deep: int) -> list[np.ndarray] | None:
        """What the operands hold; None where one is not known."""
        given = list[np.ndarray]()
        for at, one in enumerate(tensors):
            known: np.ndarray | None
            if self.repeated and name == "index_tensor" and at and _is_any(tensors[0], at - 1):
                known = np.zeros([*map(_size, extents_of(one) or ())], int)
            else:
                known = self.array(one, deep)
            if known is None:
                return None
            given.append(known)
        return given


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


def _holds_of_places(call: relax.Call, binding: Callable[[Any], Any]) -> bool:
    """Whether ``a >= b`` holds however many there are of ``a``, as ``arange(n) >= 0`` does.

    That is the mask of ``transformers`` where all rows see all keys.
    """
    moves = (*VIEWS, "broadcast_to")
    places = bound_to(source_of(call.args[0], moves, lambda one: bound_to(one, binding)), binding)
    least = array_of(call.args[1], binding)
    if name_of(places) != "arange" or least is None or least.size != 1:
        return False
    known = whole_numbers((places.args[0], places.args[2]))
    return known is not None and known[1] > 0 and known[0] >= least.item()


def _moves_along_any(call: Any, binding: Callable[[Any], Any]) -> bool:
    """Whether an operator gives elements other places along a symbolic extent, or adds them up."""
    name, along = name_of(call), list[int]()
    if name == "nn.pad":
        widths = call.attrs.pad_width
        along = [at // 2 for at, width in enumerate(widths) if int(width)]
    if name in ("concat", "cumsum", "slice_scatter", "flip") and call.attrs.axis is not None:
        along = [int(call.attrs.axis)]
    if name == "strided_slice":
        along = whole_numbers(call.args[1]) or []
    given = tensors_of(call, binding) if along else []
    return any(_is_any(one, axis) for one in given for axis in along)


def tensors_of(call: relax.Call, binding: Callable[[Any], Any]) -> list[Any]:
    """The tensors that an operator is given, those of a tuple one by one."""
    found = []
    for one in call.args:
        bound = bound_to(one, binding)
        found += [*bound.fields] if isinstance(bound, relax.Tuple) else [one]
    return [one for one in found if isinstance(getattr(one, "ty", None), relax.TensorType)]


def whole_numbers(values: Any) -> list[int] | None:
    """Whole numbers that are written out, or None where some are not."""
    found = [size_of(getattr(one, "value", one)) for one in values]
    return found if all(isinstance(one, int) for one in found) else None


def slices_of(call: relax.Call) -> list[list[int]] | None:
    """Axes, begins, ends and perhaps steps of a slice, or None where some are not written out."""
    found = [whole_numbers(part) for part in call.args[1:]]
    known = [part for part in found if part is not None]
    return known if len(known) == len(found) else None


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


#: What gives elements of its operands at other places, or their sums.
_MOVED: dict[str, Callable[[Any, list[np.ndarray]], np.ndarray | None]] = {
    "permute_dims": lambda value, given: given[0].transpose(axes_of(value)),
    "concat": lambda value, given: np.concatenate(given, int(value.attrs.axis)),
    "flip": lambda value, given: np.flip(given[0], int(value.attrs.axis)),
    "nn.pad": _padded,
    "strided_slice": _sliced,
    "slice_scatter": _scattered,
    "index_tensor": lambda _, given: given[0][tuple(given[1:])],
    "cumsum": _summed,
}
