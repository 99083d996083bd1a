"""Whole numbers that are counted along the dims of a tensor, as positions are, of any size."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir.expr import GenericConst

from ..ir.queries import are_equal, is_number, size_of
from .relax_values import VIEWS, axes_of, bound_to, extents_of, name_of, tensors_of, whole_numbers

#: Elements of a constant that is looked at, and operators in a row.
_MOST, _DEEP = 1 << 16, 64
_KINDS = ("bool", "int32", "int64")
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}
_LOGIC: dict[str, Callable[[int, int], int]] = {
    "logical_and": operator.and_,
    "logical_or": operator.or_,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
}


@dataclass(frozen=True)
class AffineValue:
    """A tensor of whole numbers ``first + sum(step * index)``, with a step for each dim.

    Along a dim of one element the step is 0. A truth value is 0 or 1.
    """

    first: int
    steps: tuple[int, ...]

    @property
    def is_uniform(self) -> bool:
        """Whether all elements are the same."""
        return not any(self.steps)

    @property
    def counts_up(self) -> bool:
        """Whether no element is negative, and none less than the first."""
        return self.first >= 0 and all(step >= 0 for step in self.steps)

    def times(self, factor: int) -> AffineValue:
        """So many times each element."""
        return AffineValue(factor * self.first, tuple(factor * step for step in self.steps))

    def plus(self, other: AffineValue) -> AffineValue:
        """The sum, of dims that are aligned at their ends."""
        rank = max(len(self.steps), len(other.steps))
        own, others = ((0,) * (rank - len(one.steps)) + one.steps for one in (self, other))
        return AffineValue(self.first + other.first, tuple(map(operator.add, own, others)))


@dataclass
class AffineReader:
    """Reads values of any size; ``binding`` gives what a variable is bound to."""

    binding: Callable[[Any], Any]
    kept: dict[Any, AffineValue | None] = field(default_factory=dict)

    def of(self, value: Any, deep: int = _DEEP) -> AffineValue | None:
        """A value, or None where it is not known to be affine in its indices."""
        if not deep:
            return None
        if not isinstance(value, relax.Var):
            return self._made(self.bound(value), deep)
        if value not in self.kept:
            self.kept[value] = self._made(self.bound(value), deep)
        return self.kept[value]

    def bound(self, value: Any) -> Any:
        """What a variable is bound to; else the value itself."""
        return bound_to(value, self.binding)

    def apart(self, call: Any) -> AffineValue | None:
        """How far the operands of a comparison are apart, of a common shape; None if unknown."""
        found = [self.of(one) for one in call.args]
        if found[0] is None or found[1] is None:
            return None
        return found[0].plus(found[1].times(-1))

    def _made(self, value: Any, deep: int) -> AffineValue | None:
        if isinstance(value, GenericConst):
            return _counted(np.asarray(value.value.numpy()))
        read = _READ.get(name_of(value))
        shape = None if read is None else extents_of(value)
        if read is None or shape is None or str(value.ty.dtype) not in _KINDS:
            return None
        given = [self.of(one, deep - 1) for one in tensors_of(value, self.binding)]
        known = [one for one in given if one is not None]
        found = read(value, known, self) if len(known) == len(given) else None
        if found is None:
            return None
        steps = (0,) * (len(shape) - len(found.steps)) + found.steps
        ones = [is_number(extent, 1) for extent in shape]
        return AffineValue(
            found.first, tuple(0 if one else n for n, one in zip(steps, ones, strict=True))
        )


def _counted(array: np.ndarray) -> AffineValue | None:
    """An array of numbers that are counted along each dim."""
    if array.dtype.kind not in "iub" or not 0 < array.size <= _MOST:
        return None
    numbers = array.astype(np.int64)
    first = int(numbers.flat[0])
    steps = [
        int(np.take(numbers, 1, axis).flat[0]) - first if size > 1 else 0
        for axis, size in enumerate(numbers.shape)
    ]
    counted = sum((n * at for n, at in zip(steps, np.indices(numbers.shape), strict=True)), first)
    return AffineValue(first, tuple(steps)) if np.array_equal(counted, numbers) else None


def _arange(call: Any, _given: Any, _reader: Any) -> AffineValue | None:
    numbers = whole_numbers((call.args[0], call.args[2]))
    return None if numbers is None else AffineValue(numbers[0], (numbers[1],))


def _full(call: Any, given: Sequence[AffineValue], _reader: Any) -> AffineValue | None:
    return _cast(call, given, _reader) if given else None


def _view(call: Any, given: Sequence[AffineValue], reader: AffineReader) -> AffineValue | None:
    """Dims of one element come and go."""
    (one,) = given
    before, after = (
        extents_of(value) or () for value in (tensors_of(call, reader.binding)[0], call)
    )
    wide = [[at for at, n in enumerate(dims) if not is_number(n, 1)] for dims in (before, after)]
    if not are_equal([before[at] for at in wide[0]], [after[at] for at in wide[1]]):
        return AffineValue(one.first, ()) if one.is_uniform else None
    steps = dict(zip(wide[1], (one.steps[at] for at in wide[0]), strict=True))
    return AffineValue(one.first, tuple(steps.get(at, 0) for at in range(len(after))))


def _cast(call: Any, given: Sequence[AffineValue], _reader: Any) -> AffineValue | None:
    """A whole number in another type that holds it, as positions do."""
    if str(call.ty.dtype) != "bool":
        return given[0]
    return AffineValue(int(given[0].first != 0), given[0].steps) if given[0].is_uniform else None


def _compared(call: Any, _given: Any, reader: AffineReader) -> AffineValue | None:
    """A comparison that comes out the same everywhere, however long the tensors are."""
    apart, holds = reader.apart(call), _COMPARISONS[name_of(call)]
    if apart is None:
        return None
    # What only grows, or only falls, from 0 or from beyond it has no other sign.
    last: float | None = None
    if apart.is_uniform:
        last = apart.first
    elif apart.counts_up:
        last = inf
    elif apart.times(-1).counts_up:
        last = -inf
    is_settled = last is not None and holds(apart.first, 0) == holds(last, 0)
    return AffineValue(int(holds(apart.first, 0)), ()) if is_settled else None


def _combined(call: Any, given: Sequence[AffineValue], _reader: Any) -> AffineValue | None:
    """Truth values that are the same everywhere."""
    if str(call.ty.dtype) != "bool" or len(given) < len(call.args):
        return None
    if not all(one.is_uniform for one in given):
        return None
    return AffineValue(_LOGIC[name_of(call)](given[0].first, given[1].first), given[0].steps)


def _added(call: Any, given: Sequence[AffineValue], _reader: Any) -> AffineValue | None:
    # A size that is added is no tensor.
    if str(call.ty.dtype) == "bool" or len(given) < len(call.args):
        return None
    return given[0].plus(given[1].times(1 if name_of(call) == "add" else -1))


def _taken(call: Any, given: Sequence[AffineValue], _reader: Any) -> AffineValue | None:
    """Elements at places of an axis, which are not negative."""
    axis = call.attrs.axis
    if axis is None or len(given) < len(call.args):
        return None
    data, at = given
    if not at.counts_up:
        return None
    axis = int(axis) % len(data.steps)
    found = at.times(data.steps[axis])
    steps = (*data.steps[:axis], *found.steps, *data.steps[axis + 1 :])
    return AffineValue(data.first + found.first, steps)


def _indexed(_call: Any, given: Sequence[AffineValue], _reader: Any) -> AffineValue | None:
    """Elements at a place of each dim."""
    data, *indices = given
    if len(indices) != len(data.steps) or not all(one.counts_up for one in indices):
        return None
    found = AffineValue(data.first, ())
    for step, index in zip(data.steps, indices, strict=True):
        found = found.plus(index.times(step))
    return found


def _joined(call: Any, given: Sequence[AffineValue], reader: AffineReader) -> AffineValue | None:
    """Parts that count on where the one before ends."""
    if call.attrs.axis is None:
        return None
    shapes = [extents_of(one) or () for one in tensors_of(call, reader.binding)]
    axis = int(call.attrs.axis) % len(shapes[0])
    sizes = [size_of(shape[axis]) for shape in shapes]
    steps = next((one.steps for one, n in zip(given, sizes, strict=True) if n != 1), None)
    if steps is None or not all(isinstance(n, int) for n in sizes[:-1]):
        return None
    begin = given[0].first
    for one, n in zip(given, sizes, strict=True):
        # A single element has any step.
        own = (
            *one.steps[:axis],
            steps[axis] if n == 1 else one.steps[axis],
            *one.steps[axis + 1 :],
        )
        if one.first != begin or own != steps:
            return None
        begin += steps[axis] * n if isinstance(n, int) else 0
    return AffineValue(given[0].first, steps)


def _cumulated(call: Any, given: Sequence[AffineValue], _reader: Any) -> AffineValue | None:
    """Sums of none, as of truth values of which none holds."""
    return given[0] if given[0].is_uniform and given[0].first == 0 else None


#: How what an operator gives is read from the places of its operands.
_READ: dict[str, Callable[[Any, list[AffineValue], AffineReader], AffineValue | None]] = {
    "arange": _arange,
    "full": _full,
    "broadcast_to": lambda _call, given, _reader: given[0],
    "astype": _cast,
    "add": _added,
    "subtract": _added,
    "permute_dims": lambda call, given, _reader: AffineValue(
        given[0].first, tuple(given[0].steps[axis] for axis in axes_of(call))
    ),
    "take": _taken,
    "index_tensor": _indexed,
    "concat": _joined,
    "cumsum": _cumulated,
    **dict.fromkeys(VIEWS, _view),
    **dict.fromkeys(_COMPARISONS, _compared),
    **dict.fromkeys(_LOGIC, _combined),
}
