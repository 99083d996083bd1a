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

The rules below are Triton's, exactly, including where they are cautious (decreasing runs, masks by
``&``) or bold (casts and products are taken not to wrap).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

__all__ = [
    "BIG",
    "BINARY_RULES",
    "COMPARISONS",
    "Axis",
    "AxisInfo",
    "add_pointer",
    "apply_binary",
    "broadcast",
    "by_axis",
    "compare",
    "expand_dims",
    "join",
    "load",
    "power_of_two_in",
    "reshape",
    "select",
    "splat",
    "transpose",
]

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


def _times(a: int, b: int) -> int:
    return min(a * b, BIG)


@dataclass(frozen=True)
class AxisInfo:
    """Contiguity, divisibility and constancy along each axis.

    Attributes
    ----------
    contiguity, divisibility, constancy : tuple of int
        One number an axis; a scalar has one axis of size 1.
    constant : int, optional
        The value, where it is one known number throughout.

    Examples
    --------
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
    """Renumber the elements in row-major order.

    A new axis steps through the elements at one stride, which lies inside one old axis. It inherits
    that axis' run if it walks along it, or its constancy as far as that reaches.
    """
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
    """Choose between two values.

    Parameters
    ----------
    condition, left, right : AxisInfo
        Of the condition and of what is chosen where it holds and where not.
    scalar : bool
        The condition is one value for the whole tensor.
    """
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


# Arithmetic

#: From both operands and the shape to the result; constants are folded before.
Rule = Callable[[AxisInfo, AxisInfo, Sequence[int]], AxisInfo]


def apply_binary(
    name: str,
    left: AxisInfo,
    right: AxisInfo,
    shape: Sequence[int],
    rules: Mapping[str, Rule] | None = None,
) -> AxisInfo:
    """Apply an operation of :data:`BINARY_RULES`, or fold it.

    Parameters
    ----------
    name : str
        A key of the rules.
    left, right : AxisInfo
        The operands, already of one shape.
    shape : sequence of int
        That shape, ``(1,)`` for scalars.
    rules : mapping, optional
        Rules to use instead of :data:`BINARY_RULES`.

    Examples
    --------
    >>> index = AxisInfo.of_range(0, 256)
    >>> apply_binary("mul", index, AxisInfo.of_constant(4, (256,)), (256,))
    AxisInfo(contiguity=(1,), divisibility=(4,), constancy=(1,), constant=None)
    """
    folded = _fold(name, left.constant, right.constant)
    if folded is not None:
        return AxisInfo.of_constant(folded, shape)
    return (rules or BINARY_RULES)[name](left, right, shape)


def _fold(name: str, left: int | None, right: int | None) -> int | None:
    if (name == "mul" and 0 in (left, right)) or (name == "rem" and right == 1):
        return 0
    if left is None or right is None:
        return None
    if name in ("div", "rem") and right == 0:
        return None
    if name in ("shl", "shr") and not 0 <= right < WORD_BITS:
        return None
    return _FOLDS[name](left, right)


def _quotient(left: int, right: int) -> int:
    """Divide as C does, towards zero."""
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


_FOLDS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _quotient,
    "rem": lambda a, b: a - b * _quotient(a, b),
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
    "min": min,
    "max": max,
}


def by_axis(
    rule: Callable[[Axis, int], tuple[int, int, int]],
) -> Rule:
    """Make a rule for tensors of one for a single axis."""

    def apply(left: AxisInfo, right: AxisInfo, shape: Sequence[int]) -> AxisInfo:
        axes = [rule(Axis(left, right, d), size) for d, size in enumerate(shape)]
        contiguity, divisibility, constancy = zip(*axes, strict=True)
        return AxisInfo(contiguity, divisibility, constancy)

    return apply


class Axis:
    """The six numbers of both operands along one axis, and their constants."""

    def __init__(self, left: AxisInfo, right: AxisInfo, axis: int) -> None:
        self.cl, self.cr = left.contiguity[axis], right.contiguity[axis]
        self.vl, self.vr = left.divisibility[axis], right.divisibility[axis]
        self.kl, self.kr = left.constancy[axis], right.constancy[axis]
        self.left, self.right = left.constant, right.constant

    @property
    def constancy(self) -> int:
        """Elements in a row along which neither operand changes."""
        return gcd(self.kl, self.kr)

    @property
    def shift(self) -> int | None:
        """The right operand as a known and legal shift."""
        return self.right if self.right is not None and 0 <= self.right < WORD_BITS else None

    @property
    def run_over_constants(self) -> int:
        """How far a run of one operand lasts while the other stays the same."""
        return max(gcd(self.cl, self.kr), gcd(self.kl, self.cr))


def _sum_divisor(axis: Axis, contiguity: int, element_bytes: int, *, minus: bool = False) -> int:
    """Divisibility of a sum; runs that are cut shorter begin at multiples of what is left."""
    right = _times(axis.vr, element_bytes)
    if axis.cl > 1 and axis.cr > 1:
        if minus and axis.cl == axis.cr:
            return gcd(axis.vl, right)
        return 2 if axis.vl % 2 == 0 and right % 2 == 0 else 1
    if axis.cl > 1 or axis.cr > 1:
        return gcd(axis.vl, right, _times(contiguity, element_bytes))
    return gcd(axis.vl, right)


def _add(axis: Axis, _: int) -> tuple[int, int, int]:
    run = axis.run_over_constants
    return run, _sum_divisor(axis, run, 1), axis.constancy


def _subtract(axis: Axis, _: int) -> tuple[int, int, int]:
    run = gcd(axis.cl, axis.kr)
    return run, _sum_divisor(axis, run, 1, minus=True), axis.constancy


def add_pointer(
    pointer: AxisInfo, offset: AxisInfo, shape: Sequence[int], element_bits: int
) -> AxisInfo:
    """Move pointers by a number of elements; divisibility stays in bytes.

    Examples
    --------
    An aligned base, but the offset begins at 1: only 2 bytes can be relied on.

    >>> base = splat(AxisInfo.argument(16), (64,))
    >>> add_pointer(base, AxisInfo.of_range(1, 65), (64,), 16).divisibility
    (2,)
    """
    element_bytes = max(1, element_bits // 8)

    def rule(axis: Axis, _: int) -> tuple[int, int, int]:
        run = axis.run_over_constants
        return run, _sum_divisor(axis, run, element_bytes), axis.constancy

    return by_axis(rule)(pointer, offset, shape)


def _multiply(axis: Axis, _: int) -> tuple[int, int, int]:
    run = axis.cl if axis.right == 1 else axis.cr if axis.left == 1 else 1
    left = 1 if axis.cl > 1 and axis.right != 1 else axis.vl
    right = 1 if axis.cr > 1 and axis.left != 1 else axis.vr
    return run, _times(left, right), axis.constancy


def _divide(axis: Axis, size: int) -> tuple[int, int, int]:
    divisor, constancy = 1, axis.constancy
    if axis.left == 0 or axis.right == 1:
        divisor = axis.vl
    elif axis.right and power_of_two_in(axis.right) == abs(axis.right) and axis.cl == 1:
        divisor = max(1, axis.vl // abs(axis.right))
    if axis.cl == size and axis.kr == size:
        # A run that begins at a multiple of the divisor's power of two stays in one quotient.
        constancy = max(constancy, gcd(axis.cl, axis.vl, axis.vr))
    return axis.cl if axis.right == 1 else 1, divisor, constancy


def _remainder(axis: Axis, size: int) -> tuple[int, int, int]:
    run = gcd(axis.cl, axis.vl, axis.vr) if axis.cl == size and axis.kr == size else 1
    divisor = gcd(axis.vl, axis.vr)
    if axis.cl > 1 or axis.cr > 1:
        divisor = gcd(divisor, run)
    return run, divisor, axis.constancy


def _bits(axis: Axis, _: int) -> tuple[int, int, int]:
    return 1, 1, axis.constancy


def _shift_left(axis: Axis, _: int) -> tuple[int, int, int]:
    shift = axis.shift or 0
    divisor = 1 if axis.cl > 1 and shift > 0 else axis.vl
    return axis.cl if axis.shift == 0 else 1, _times(divisor, 1 << shift), axis.constancy


def _shift_right(axis: Axis, _: int) -> tuple[int, int, int]:
    if axis.shift is None:
        return 1, 1, axis.constancy
    run = axis.cl if axis.shift == 0 else 1
    divisor = 1 if axis.cl > 1 and axis.shift > 0 else axis.vl
    return run, max(1, divisor >> axis.shift), axis.constancy


def _extremum(left: AxisInfo, right: AxisInfo, _: Sequence[int]) -> AxisInfo:
    return replace(join(left, right), constant=None)


BINARY_RULES: dict[str, Rule] = {
    "add": by_axis(_add),
    "sub": by_axis(_subtract),
    "mul": by_axis(_multiply),
    "div": by_axis(_divide),
    "rem": by_axis(_remainder),
    "and": by_axis(_bits),
    "or": by_axis(_bits),
    "xor": by_axis(_bits),
    "shl": by_axis(_shift_left),
    "shr": by_axis(_shift_right),
    "min": _extremum,
    "max": _extremum,
}

COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}


def compare(name: str, left: AxisInfo, right: AxisInfo, shape: Sequence[int]) -> AxisInfo:
    """Compare: a run against a constant changes its answer only between aligned groups.

    Examples
    --------
    A mask ``i < n`` with n a multiple of 16 is uniform over groups of 16:

    >>> bound = splat(AxisInfo.argument(16), (256,))
    >>> compare("lt", AxisInfo.of_range(0, 256), bound, (256,)).constancy
    (16,)
    """
    if left.constant is not None and right.constant is not None:
        return AxisInfo.of_constant(int(COMPARISONS[name](left.constant, right.constant)), shape)

    def rule(axis: Axis, size: int) -> tuple[int, int, int]:
        constancy = axis.constancy
        if name in ("gt", "le") and axis.kl == size:
            constancy = max(constancy, gcd(axis.cr, axis.vl, axis.vr))
        elif name in ("lt", "ge") and axis.kr == size:
            constancy = max(constancy, gcd(axis.cl, axis.vl, axis.vr))
        return 1, 1, constancy

    return by_axis(rule)(left, right, shape)
