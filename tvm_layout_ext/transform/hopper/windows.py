"""Convolutions as products: rows are pixels, of which TMA copies boxes for each place in a window.

An index of the image is a sum of digits: of the row of the product, which counts the pixels of the
result, and of its term, which counts the places of the window and then channels::

    image[m // 64, m % 64 // 8 + k // 192 - 1, m % 8 + k % 192 // 64 - 1, k % 64]

Such a box begins where the result's begins, moved by the window's place, also in front of the
image; TMA fills what is outside with zeros, as the padding does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import tvm
from tvm import sym, tirx

from ...errors import ScheduleError
from ...gpu.halos import Halo, all_boxes
from ...gpu.warpgroups import BOX_ELEMENTS, WARPGROUP_ROWS
from ...ir.queries import size_of, uses, variables

#: Pixels along a dim of any number, by which its boxes are chosen.
_MANY = 1 << 10
#: A variable's handle, what it is divided by, and what the quotient is taken modulo.
Digit = tuple[Any, int, int | None]
#: Digits with their factors, and a constant under None.
Sum = dict[Digit | None, Any]


@dataclass(frozen=True)
class Digits:
    """A dim of a product that several variables count through, the last one fastest."""

    variables: tuple[Any, ...]
    extents: tuple[Any, ...]  #: Of pixels, they may be symbolic

    def values(self, number: Any, each: Sequence[int] | None = None) -> dict[Any, Any]:
        """What the variables are at a number; with ``each``, at a number of boxes so large."""
        sizes = each or (1,) * len(self.extents)
        found = {}
        for var, extent, size in reversed(
            list(zip(self.variables, self.extents, sizes, strict=True))
        ):
            digit = number if var.same_as(self.variables[0]) else number % _parts(extent, size)
            found[var] = digit * size
            number = number // _parts(extent, size)
        return found

    @property
    def number(self) -> Any:
        """The number as a function of the variables."""
        value: Any = 0
        for var, extent in zip(self.variables, self.extents, strict=True):
            value = value * extent + var
        return value


@dataclass(frozen=True)
class Windows:
    """Pixels of a result, and terms of the sums for each: places in a window, then channels."""

    pixels: Digits
    terms: Digits
    box: tuple[int, ...]
    run: int  #: Channels of a place that a box has
    #: Of each variable of a place the dim of pixels along which it moves, and by how many; None if
    #: one moves otherwise.
    reach: tuple[tuple[int, int], ...] | None = None
    halo: Halo | None = None  #: Of each box, where all places of a window are a step

    @property
    def boxes(self) -> Any:
        """Boxes of 64 pixels that cover the result."""
        return prod(map(_parts, self.pixels.extents, self.box))

    @property
    def places(self) -> int:
        """Places in a window."""
        return prod(self.terms.extents[:-1])

    @property
    def runs(self) -> int:
        """Boxes that have all terms."""
        return self.places * ceil(self.terms.extents[-1] / self.run)

    @property
    def known(self) -> list[int]:
        """Pixels along each dim, many where there are any number."""
        return [n if isinstance(n, int) else _MANY for n in self.pixels.extents]

    def pixel(self, row: Any) -> dict[Any, Any]:
        """The pixel of a row, counted box by box."""
        corner = self.corner(row // WARPGROUP_ROWS)
        inside = Digits(self.pixels.variables, self.box).values(row % WARPGROUP_ROWS)
        return {var: corner[var] + at for var, at in inside.items()}

    def corner(self, number: Any) -> dict[Any, Any]:
        """The first pixel of a box."""
        return self.pixels.values(number, self.box)

    def begin(self, number: Any) -> dict[Any, Any]:
        """Place in the window, and first channel, of a box.

        Behind the last run it begins behind the last channel, where image and weights have zeros.
        """
        *_, channel = self.terms.variables
        found = self.terms.values(number, (*(1 for _ in self.terms.extents[1:]), self.run))
        beyond = number // self.runs * self.terms.extents[-1]
        return found | {channel: found[channel] + beyond}

    def at(self, place: int, channel: Any) -> dict[Any, Any]:
        """A place in the window, by its number, and a channel."""
        *places, last = self.terms.variables
        found = Digits(tuple(places), self.terms.extents[:-1]).values(tirx.IntImm("int32", place))
        return found | {last: channel}


def _parts(extent: Any, size: int) -> Any:
    """How many parts of a size an extent has."""
    return (extent + (size - 1)) // size


@dataclass(frozen=True)
class WindowLoad:
    """A load in digits, beside the bounds outside of which its copy is zero."""

    buffer: Any
    indices: tuple[Sum, ...]
    extents: tuple[Any, ...]
    sizes: dict[Any, int]

    def digits(self, var: Any) -> set[Digit]:
        """The digits of a variable that its indices have."""
        handle = var.__chandle__()
        return {d for index in self.indices for d in index if d is not None and d[0] == handle}


def read_window(load: Any, bounds: Sequence[Any], sizes: dict[Any, int], name: str) -> WindowLoad:
    """Read the load of a copy, whose iterators have so many values.

    Raises ScheduleError if an index is no sum of digits, or a condition no bound of one.
    """
    limits = {var.__chandle__(): int(size) for var, size in sizes.items()}
    # Of one pixel TVM leaves 0 <= 0 + 0.
    analyzer = sym.Analyzer()
    bounds = [one for one in bounds if not analyzer.can_prove(one)]
    others = [one for one in bounds if not _limits_iterator(_at_least_zero(one, limits), limits)]
    indices = []
    for index in load.indices:
        # The image of a batch is where the kernel's block is.
        is_fixed = not any(uses(index, var) for var in sizes)
        found: Sum | None = {None: index} if is_fixed else _sum(index, limits)
        if found is None:
            raise ScheduleError(f"{name} reads {load}, which is no window of pixels.")
        indices.append(found)
    extents = [size_of(extent) for extent in load.source.shape]
    for bound in others:
        if not _limits_index(_at_least_zero(bound, limits), indices, extents):
            raise ScheduleError(
                f"{name} reads {load} under {bound}, which is no bound of an index; TMA leaves out "
                "only what lies outside of a buffer."
            )
    ends = {var: limits[var.__chandle__()] for var in sizes}
    return WindowLoad(load.source, tuple(indices), tuple(extents), ends)


def _limits_iterator(least: Sum | None, limits: dict[Any, int]) -> bool:
    """Note what a condition says about an iterator; False if that is nothing."""
    terms, constant = _apart(least or {})
    if len(terms) != 1:
        return False
    ((digit, factor),) = terms.items()
    if digit[1:] != (1, None) or factor != -1 or not isinstance(constant, int):
        return False
    limits[digit[0]] = min(limits[digit[0]], constant + 1)
    return True


def _limits_index(least: Sum | None, indices: Sequence[Sum], extents: list[Any]) -> bool:
    """Note what a condition says about an index; False if that is nothing."""
    if least is None:
        return False
    terms, constant = _apart(least)
    for i, index in enumerate(indices):
        own, offset = _apart(index)
        if not isinstance(constant, int) or not isinstance(offset, int):
            continue
        if terms == own:
            return constant >= offset
        if terms == {digit: -factor for digit, factor in own.items()}:
            extents[i] = min(extents[i], constant + offset + 1)
            return True
    return False


def _apart(found: Sum) -> tuple[dict[Digit, int], Any]:
    terms = {digit: factor for digit, factor in found.items() if digit is not None and factor}
    return terms, found.get(None, 0)


def _at_least_zero(bound: Any, known: dict[Any, int]) -> Sum | None:
    """What a comparison says is not negative."""
    if isinstance(bound, tirx.LT | tirx.LE):
        more, less = bound.b, bound.a
    elif isinstance(bound, tirx.GT | tirx.GE):
        more, less = bound.a, bound.b
    else:
        return None
    found = _sum(more - less, known)
    if found is not None and isinstance(bound, tirx.LT | tirx.GT):
        found[None] = found.get(None, 0) - 1
    return found


def _sum(expr: Any, known: dict[Any, int], factor: int = 1) -> Sum | None:
    """Take an expression apart; None if it is no sum of digits."""
    if isinstance(expr, tirx.IntImm):
        return {None: int(expr) * factor}
    if isinstance(expr, tirx.Mul) and isinstance(expr.b, tirx.IntImm):
        return _sum(expr.a, known, factor * int(expr.b))
    if isinstance(expr, tirx.Add | tirx.Sub):
        sign = 1 if isinstance(expr, tirx.Add) else -1
        left, right = _sum(expr.a, known, factor), _sum(expr.b, known, sign * factor)
        if left is None or right is None:
            return None
        return {
            digit: left.get(digit, 0) + right.get(digit, 0)
            for digit in dict.fromkeys([*left, *right])
        }
    digit = _digit(expr, known)
    if digit is not None:
        return {digit: factor}
    # A member of a batch is where the kernel's block is.
    is_fixed = not any(var.__chandle__() in known for var in variables(expr))
    return {None: expr * factor} if is_fixed else None


def _digit(expr: Any, known: dict[Any, int]) -> Digit | None:
    """A digit of one of the variables, which have so many values."""
    if isinstance(expr, tirx.Var):
        return (expr.__chandle__(), 1, None) if expr.__chandle__() in known else None
    if not isinstance(expr, tirx.FloorDiv | tirx.FloorMod) or not isinstance(expr.b, tirx.IntImm):
        return None
    inner, by = _digit(expr.a, known), int(expr.b)
    if inner is None:
        return None
    var, divisor, modulus = inner
    if modulus is not None and modulus % by:
        return None
    if isinstance(expr, tirx.FloorMod):
        # Of 240 terms, those modulo 240 are all: TVM leaves that out in an index alone.
        is_whole = modulus is None and ceil(known[var] / divisor) <= by
        return inner if is_whole else (var, divisor, by)
    return var, divisor * by, None if modulus is None else modulus // by


def counted(window: WindowLoad, var: Any, names: Sequence[str]) -> Digits:
    """The digits by which a window counts a variable, as variables of their own.

    Raises ScheduleError if they leave some values of the variable out.
    """
    handle, size, digits = var.__chandle__(), window.sizes[var], window.digits(var)
    divisors = sorted({divisor for _, divisor, _ in digits}, reverse=True)
    extents = [size, *divisors]
    found = tuple(before // after for before, after in zip(extents, divisors, strict=False))
    spans = zip(divisors, found, strict=True)
    expected = {(handle, d, None if d == divisors[0] else n) for d, n in spans}
    if not divisors or divisors[-1] != 1 or digits != expected or size % divisors[0]:
        raise ScheduleError(
            f"Buffer {window.buffer.name} is read by parts of {var.name} that do not count all of "
            f"its {size:,} values once; TMA has no boxes of them."
        )
    dtype = str(var.ty.dtype)
    own = names[len(names) - len(found) :] if len(found) <= len(names) else [var.name] * len(found)
    return Digits(tuple(tirx.Var(name, dtype) for name in own), found)


def places(window: WindowLoad, axes: dict[Any, Digits]) -> tuple[Any, ...]:
    """Indices of a window in the variables of axes, each axis by the variable that it counts."""
    values = {}
    for var, axis in axes.items():
        below = window.sizes[var]
        for one, extent in zip(axis.variables, axis.extents, strict=True):
            below //= extent
            values[var.__chandle__(), below] = one, extent
    found = []
    for index in window.indices:
        terms, constant = _apart(index)
        value: Any = tirx.IntImm("int32", constant) if isinstance(constant, int) else constant
        for (var, divisor, modulus), factor in terms.items():
            inside = [
                (at, one)
                for (of, at), (one, extent) in values.items()
                if of == var and at >= divisor and (modulus is None or at < divisor * modulus)
            ]
            for at, one in inside:
                value = value + one * (factor * (at // divisor))
        found.append(sym.Analyzer().simplify(value))
    return tuple(found)


def best_box(extents: Sequence[int], steps: Sequence[int]) -> tuple[int, ...]:
    """Pixels along each dim of a box of 64, so that the fewest lie outside of the result.

    Of equals the one of the most neighbours along the last dims. ``steps`` are between pixels in
    the image, of which TMA has boxes of 256.

    Examples
    --------
    >>> best_box((64, 56, 56), (1, 1, 1)), best_box((64, 7, 7), (1, 1, 1))
    ((1, 8, 8), (64, 1, 1))
    """

    def key(box: tuple[int, ...]) -> Any:
        covered = prod(ceil(n / size) for n, size in zip(extents, box, strict=True))
        return covered, -prod(box[1:]), max(box)

    found = all_boxes(WARPGROUP_ROWS, steps)
    if not found:
        raise ScheduleError(
            f"Pixels lie {steps[-1]} apart along one dim; TMA has no boxes of {WARPGROUP_ROWS} "
            f"such pixels, which span more than {BOX_ELEMENTS}."
        )
    return min(found, key=key)


def ranges(axes: Sequence[Digits]) -> Any:
    """An analyzer that knows the extents of axes."""
    analyzer = sym.Analyzer()
    for axis in axes:
        for var, extent in zip(axis.variables, axis.extents, strict=True):
            analyzer.bind(var, tvm.ir.Range(0, extent))
    return analyzer
