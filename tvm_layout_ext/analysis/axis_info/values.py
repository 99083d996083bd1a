"""How the values of an index expression run along each axis.

An index such as ``row * stride + column`` is a tensor of integers. Along each axis three numbers
tell what a vector load needs to know:

* *contiguity* c: the axis falls into aligned groups of c in which values go up by one;
* *divisibility* v: the first value of every such group is a multiple of v, a power of two;
* *constancy* k: the axis falls into aligned groups of k equal values.

For a tensor of pointers the values are addresses, v counts bytes and c counts elements.

An example. ``i`` runs from 0 to 63 along axis 1 and ``r`` from 0 to 31 along axis 0, broadcast
against each other; ``s`` is known to be a multiple of 16::

    i            contiguity [1, 64]   divisibility [BIG, BIG]  constancy [32, 1]
    r * s        contiguity [1, 1]    divisibility [16, 16]    constancy [1, 64]
    r * s + i    contiguity [1, 64]   divisibility [16, 16]    constancy [1, 1]

Rows of 64 in a row, beginning at multiples of 16: a half-precision load may take 16 bytes.

This file has what the numbers mean, how they follow a tensor through changes of its shape, and how
two of them meet. What arithmetic makes of them is the table of :mod:`.arithmetic`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

#: Stands for "divisible by anything", the divisibility of the value 0.
BIG = 1 << 62
#: A shift by this much or more means nothing.
WORD_BITS = 64


def power_of_two_in(value: int) -> int:
    """Find the largest power of two that divides a value; :data:`BIG` for 0.

    >>> [power_of_two_in(value) for value in (12, -8, 7)]
    [4, 8, 1]
    """
    return min(value & -value, BIG) if value else BIG


def times(a: int, b: int) -> int:
    """Multiply divisibilities, at most up to :data:`BIG`."""
    return min(a * b, BIG)


@dataclass(frozen=True)
class AxisInfo:
    """Contiguity, divisibility and constancy along each axis; a scalar has one of size 1.

    Along an axis with contiguity 1 every element begins a group, so its divisibility holds
    everywhere, and the other axes may have it too:

    >>> AxisInfo((1, 8), (16, 2), (1, 1)).divisibility
    (16, 16)
    """

    contiguity: tuple[int, ...]
    divisibility: tuple[int, ...]
    constancy: tuple[int, ...]
    constant: int | None = None

    def __post_init__(self) -> None:
        everywhere = self.divisor_of_all
        spread = tuple(max(v, everywhere) for v in self.divisibility)
        object.__setattr__(self, "divisibility", spread)

    @staticmethod
    def unknown(rank: int = 1) -> AxisInfo:
        """Claim nothing."""
        return AxisInfo((1,) * rank, (1,) * rank, (1,) * rank)

    @staticmethod
    def argument(divisibility: int = 1) -> AxisInfo:
        """Describe a scalar argument; for a pointer, divisibility counts bytes."""
        return AxisInfo((1,), (divisibility,), (1,))

    @staticmethod
    def of_constant(value: int, shape: Sequence[int] = (1,)) -> AxisInfo:
        """Describe one number throughout a shape."""
        rank = len(shape)
        return AxisInfo((1,) * rank, (power_of_two_in(value),) * rank, tuple(shape), value)

    @staticmethod
    def of_range(low: int, high: int) -> AxisInfo:
        """Describe low, low + 1, ..., high - 1."""
        return AxisInfo((high - low,), (power_of_two_in(low),), (1,))

    @staticmethod
    def of_loop_variable(start: AxisInfo, step: AxisInfo) -> AxisInfo:
        """Describe the variable of a loop."""
        return AxisInfo((1,), (gcd(start.divisibility[0], step.divisibility[0]),), (1,))

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.contiguity)

    @property
    def divisor_of_all(self) -> int:
        """A power of two that divides every single value."""
        pairs = zip(self.contiguity, self.divisibility, strict=True)
        return max((v for c, v in pairs if c == 1), default=1)

    def with_hints(
        self,
        *,
        contiguity: Sequence[int] | None = None,
        divisibility: Sequence[int] | None = None,
        constancy: Sequence[int] | None = None,
    ) -> AxisInfo:
        """Replace what was found by what the user knows."""
        return replace(
            self,
            contiguity=tuple(contiguity or self.contiguity),
            divisibility=tuple(divisibility or self.divisibility),
            constancy=tuple(constancy or self.constancy),
        )


# Changes of shape


def splat(scalar: AxisInfo, shape: Sequence[int]) -> AxisInfo:
    """Repeat a scalar throughout a shape."""
    divisibility = (scalar.divisibility[0],) * len(shape)
    return AxisInfo((1,) * len(shape), divisibility, tuple(shape), scalar.constant)


def expand_dims(info: AxisInfo, axis: int) -> AxisInfo:
    """Insert an axis of size 1."""
    if info.constant is not None:
        divisor = power_of_two_in(info.constant)
    else:
        pairs = zip(info.contiguity, info.divisibility, strict=True)
        divisor = gcd(*(1 if c > 1 else v for c, v in pairs))

    def insert(values: tuple[int, ...], value: int) -> tuple[int, ...]:
        return (*values[:axis], value, *values[axis:])

    return AxisInfo(
        insert(info.contiguity, 1),
        insert(info.divisibility, divisor),
        insert(info.constancy, 1),
        info.constant,
    )


def broadcast(info: AxisInfo, shape: Sequence[int], to: Sequence[int]) -> AxisInfo:
    """Stretch the axes of size 1 of ``shape`` to those of ``to``."""
    stretched = [old == 1 != new for old, new in zip(shape, to, strict=True)]
    return AxisInfo(
        tuple(1 if s else c for s, c in zip(stretched, info.contiguity, strict=True)),
        info.divisibility,
        tuple(n if s else k for s, n, k in zip(stretched, to, info.constancy, strict=True)),
        info.constant,
    )


def transpose(info: AxisInfo, order: Sequence[int]) -> AxisInfo:
    """Permute the axes: new axis d is old axis ``order[d]``."""
    return AxisInfo(
        tuple(info.contiguity[d] for d in order),
        tuple(info.divisibility[d] for d in order),
        tuple(info.constancy[d] for d in order),
        info.constant,
    )


def reshape(info: AxisInfo, shape: Sequence[int], to: Sequence[int]) -> AxisInfo:
    """Renumber the elements in row-major order."""
    if info.constant is not None:
        return AxisInfo.of_constant(info.constant, to)
    strides = _row_major_strides(shape)
    axes = [
        _reshaped_axis(info, shape, strides, size, stride)
        for size, stride in zip(to, _row_major_strides(to), strict=True)
    ]
    contiguity, divisibility, constancy = zip(*axes, strict=True)
    return AxisInfo(contiguity, divisibility, constancy)


def _reshaped_axis(
    info: AxisInfo, shape: Sequence[int], strides: Sequence[int], size: int, stride: int
) -> tuple[int, int, int]:
    nothing = 1, info.divisor_of_all, 1
    inside = (i for i, n in enumerate(shape) if strides[i] <= stride < strides[i] * n)
    axis = next(inside, None)
    if axis is None:
        return nothing
    if info.contiguity[axis] > 1:
        if stride != strides[axis]:
            return nothing
        run = min(info.contiguity[axis], size)
        whole = run == info.contiguity[axis]
        divisor = info.divisibility[axis]
        return run, divisor if whole else min(divisor, run), 1
    while axis > 0 and info.constancy[axis] == shape[axis]:
        axis -= 1
    reach = strides[axis] * info.constancy[axis]
    return 1, info.divisor_of_all, min(size, reach // stride) if stride <= reach else 1


def _row_major_strides(shape: Sequence[int]) -> list[int]:
    return [prod(shape[i + 1 :]) for i in range(len(shape))]


# Meeting points


def join(left: AxisInfo, right: AxisInfo) -> AxisInfo:
    """Claim what holds on both of two ways, as for a value carried round a loop."""
    same = left.constant is not None and left.constant == right.constant
    return AxisInfo(
        _gcds(left.contiguity, right.contiguity),
        _common_divisor(left, right),
        _gcds(left.constancy, right.constancy),
        left.constant if same else None,
    )


def _gcds(left: Sequence[int], right: Sequence[int]) -> tuple[int, ...]:
    return tuple(map(gcd, left, right))


def _common_divisor(left: AxisInfo, right: AxisInfo) -> tuple[int, ...]:
    """Divide both: but where runs differ in length, the shorter begins inside the longer."""
    axes = zip(
        left.contiguity, right.contiguity, left.divisibility, right.divisibility, strict=True
    )
    return tuple(
        gcd(vl, vr) if cl == cr or BIG in (cl, cr) else gcd(vl, vr, cl, cr)
        for cl, cr, vl, vr in axes
    )


def load(pointer: AxisInfo, mask: AxisInfo | None = None) -> AxisInfo:
    """Describe what a load gives: equal where its addresses and mask are."""
    constancy = pointer.constancy
    if mask is not None:
        constancy = _gcds(constancy, mask.constancy)
    return replace(AxisInfo.unknown(pointer.rank), constancy=constancy)


def select(condition: AxisInfo, left: AxisInfo, right: AxisInfo, *, scalar: bool) -> AxisInfo:
    """Choose between two values; by a ``scalar`` condition for the whole tensor at once."""
    if condition.constant is not None:
        return left if condition.constant else right
    merged = join(left, right)
    if scalar:
        return merged
    contiguity = _gcds(merged.contiguity, condition.constancy)
    return AxisInfo(
        contiguity,
        _gcds(merged.divisibility, contiguity),
        _gcds(merged.constancy, condition.constancy),
        merged.constant,
    )
