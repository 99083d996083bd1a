"""What arithmetic makes of contiguity, divisibility and constancy: Triton's rules.

They are Triton's exactly, including where it is cautious (decreasing runs, masks by ``&``) or bold
(casts and products are taken not to wrap). :mod:`.values` has the numbers themselves and how they
follow changes of shape.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import gcd

from .values import WORD_BITS, AxisInfo, join, power_of_two_in, times

#: From both operands and the shape to the result; constants are folded before.
Rule = Callable[[AxisInfo, AxisInfo, Sequence[int]], AxisInfo]


def apply_binary(name: str, left: AxisInfo, right: AxisInfo, shape: Sequence[int]) -> AxisInfo:
    """Apply an operation of :data:`RULES`, or fold it, to operands of one shape.

    Examples
    --------
    >>> index = AxisInfo.of_range(0, 256)
    >>> apply_binary("div", index, AxisInfo.of_constant(16, (256,)), (256,)).constancy
    (16,)
    """
    folded = _fold(name, left.constant, right.constant)
    if folded is not None:
        return AxisInfo.of_constant(folded, shape)
    return RULES[name][1](left, right, shape)


def _fold(name: str, left: int | None, right: int | None) -> int | None:
    if (name == "mul" and 0 in (left, right)) or (name == "rem" and right == 1):
        return 0
    if left is None or right is None:
        return None
    if name in ("div", "rem") and right == 0:
        return None
    if name in ("shl", "shr") and not 0 <= right < WORD_BITS:
        return None
    return int(RULES[name][0](left, right))


def _quotient(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder_of(left: int, right: int) -> int:
    return left - right * _quotient(left, right)


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
    right = times(axis.vr, element_bytes)
    if axis.cl > 1 and axis.cr > 1:
        if minus and axis.cl == axis.cr:
            return gcd(axis.vl, right)
        return 2 if axis.vl % 2 == 0 and right % 2 == 0 else 1
    if axis.cl > 1 or axis.cr > 1:
        return gcd(axis.vl, right, times(contiguity, element_bytes))
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
    """Move pointers by a number of elements; divisibility stays in bytes."""
    element_bytes = max(1, element_bits // 8)

    def rule(axis: Axis, _: int) -> tuple[int, int, int]:
        run = axis.run_over_constants
        return run, _sum_divisor(axis, run, element_bytes), axis.constancy

    return by_axis(rule)(pointer, offset, shape)


def _multiply(axis: Axis, _: int) -> tuple[int, int, int]:
    run = axis.cl if axis.right == 1 else axis.cr if axis.left == 1 else 1
    left = 1 if axis.cl > 1 and axis.right != 1 else axis.vl
    right = 1 if axis.cr > 1 and axis.left != 1 else axis.vr
    return run, times(left, right), axis.constancy


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
    whole = axis.cl == size and axis.kr == size
    kept = gcd(axis.cl, axis.vl, axis.vr) if whole else 1
    divisor = gcd(axis.vl, axis.vr)
    if axis.cl > 1 or axis.cr > 1:
        divisor = gcd(divisor, kept)
    return kept, divisor, axis.constancy


def _opaque(axis: Axis, _: int) -> tuple[int, int, int]:
    return 1, 1, axis.constancy


#: Nothing is known but that equal operands give equal results.
opaque: Rule = by_axis(_opaque)


def _shift_left(axis: Axis, _: int) -> tuple[int, int, int]:
    shift = axis.shift or 0
    divisor = 1 if axis.cl > 1 and shift > 0 else axis.vl
    return axis.cl if axis.shift == 0 else 1, times(divisor, 1 << shift), axis.constancy


def _shift_right(axis: Axis, _: int) -> tuple[int, int, int]:
    if axis.shift is None:
        return 1, 1, axis.constancy
    run = axis.cl if axis.shift == 0 else 1
    divisor = 1 if axis.cl > 1 and axis.shift > 0 else axis.vl
    return run, max(1, divisor >> axis.shift), axis.constancy


def _extremum(left: AxisInfo, right: AxisInfo, _: Sequence[int]) -> AxisInfo:
    return replace(join(left, right), constant=None)


def _comparison(name: str) -> Rule:
    """Make the rule of a comparison: against a constant it changes only between aligned groups."""

    def rule(axis: Axis, size: int) -> tuple[int, int, int]:
        constancy = axis.constancy
        if name in ("gt", "le") and axis.kl == size:
            constancy = max(constancy, gcd(axis.cr, axis.vl, axis.vr))
        elif name in ("lt", "ge") and axis.kr == size:
            constancy = max(constancy, gcd(axis.cl, axis.vl, axis.vr))
        return 1, 1, constancy

    return by_axis(rule)


COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")
}

#: Every operation of two operands: on two known numbers, and Triton's rule.
RULES: Mapping[str, tuple[Callable[[int, int], int], Rule]] = {
    "add": (operator.add, by_axis(_add)),
    "sub": (operator.sub, by_axis(_subtract)),
    "mul": (operator.mul, by_axis(_multiply)),
    "div": (_quotient, by_axis(_divide)),
    "rem": (_remainder_of, by_axis(_remainder)),
    "and": (operator.and_, opaque),
    "or": (operator.or_, opaque),
    "xor": (operator.xor, opaque),
    "shl": (operator.lshift, by_axis(_shift_left)),
    "shr": (operator.rshift, by_axis(_shift_right)),
    "min": (min, _extremum),
    "max": (max, _extremum),
    **{name: (fold, _comparison(name)) for name, fold in COMPARISONS.items()},
}
