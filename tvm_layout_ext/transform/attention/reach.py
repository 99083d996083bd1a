"""Which keys a tile of rows sees: the blocks of keys that it visits, and where it must look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import sym, tirx

from ...analysis.attention import Attention
from ...ir.conditions import conjuncts
from ...ir.queries import loads_in, size_of, substitute, uses

_COMPARED = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)


@dataclass(frozen=True)
class Bound:
    """A row sees keys up to (``is_upper``), or from, ``slope * row + offset`` on."""

    is_upper: bool
    slope: int
    offset: Any  #: A number, or an expression of symbolic sizes.

    def extremes(self, first: Any, rows: int) -> tuple[Any, Any]:
        """The bound of that row of a tile which sees the most, and of that which sees the least."""
        ends = [row * self.slope + self.offset for row in (first, first + (rows - 1))]
        widest = ends if self.is_upper == (self.slope < 0) else ends[::-1]
        return widest[0], widest[1]


def is_ragged(count: Any, keys: int) -> bool:
    """Whether the last of the blocks of so many keys may not be full."""
    return not isinstance(count, int) or count % keys > 0


def read_conditions(attention: Attention) -> tuple[list[Bound], list[Any]]:
    """Bounds of the keys that a row sees, and other conditions, which hide some, too."""
    parts = [part for one in attention.scores.visible for part in conjuncts(one)]
    found = [(_bound(part, attention), part) for part in parts]
    bounds = [bound for bound, _ in found if bound is not None]
    return bounds, [part for bound, part in found if bound is None]


def read_bounds(attention: Attention, keys: int) -> tuple[list[Bound], list[Any]]:
    """The same, with the number of keys where the last block of so many may not be full."""
    bounds, others = read_conditions(attention)
    if is_ragged(attention.sizes[1], keys):
        bounds.append(Bound(True, 0, attention.sizes[1] - 1))
    return bounds, others


def _bound(condition: Any, attention: Attention) -> Bound | None:
    row, key = attention.row, attention.key
    if not isinstance(condition, _COMPARED) or loads_in(condition):
        return None
    analyzer = sym.Analyzer()
    gap = condition.a - condition.b
    if isinstance(condition, tirx.LT | tirx.LE):
        gap = condition.b - condition.a
    if isinstance(condition, tirx.LT | tirx.GT):
        gap = gap - 1

    def at(i: int, j: int) -> Any:
        values = {var: tirx.const(n, var.ty.dtype) for var, n in ((row, i), (key, j))}
        return analyzer.simplify(substitute(gap, values))

    offset = at(0, 0)
    steps = [analyzer.simplify(one - offset) for one in (at(1, 0), at(0, 1))]
    by_head = any(uses(offset, var) for var, _ in attention.batch)
    if by_head or not all(isinstance(one, tirx.IntImm) for one in steps):
        return None
    slope, sign = map(int, steps)
    if abs(sign) != 1 or not analyzer.can_prove_equal(gap, row * slope + key * sign + offset):
        return None
    return Bound(sign < 0, -sign * slope, size_of((-sign * offset).astype("int32")))


@dataclass(frozen=True)
class Span:
    """Blocks of keys from one to before another; ``masked``: some of their keys are hidden."""

    start: Any
    stop: Any
    masked: bool


@dataclass(frozen=True)
class Reach:
    """Blocks of keys that a tile visits, all in all and after the first one."""

    first: Any
    end: Any
    first_is_masked: bool
    rest: tuple[Span, ...]


def reach(attention: Attention, first_row: Any, rows: int, keys: int) -> Reach:
    """Find the blocks of so many keys that a tile of rows visits."""
    bounds, others = read_bounds(attention, keys)
    count = tirx.max((attention.sizes[1] + (keys - 1)) // keys, tirx.const(1, "int32"))
    begin, whole_from = tirx.const(0, "int32"), tirx.const(0, "int32")
    end, whole_to = count, count
    for bound in bounds:
        most, least = bound.extremes(first_row, rows)
        if bound.is_upper:
            end = tirx.min(end, tirx.max(most // keys + 1, 1))
            whole_to = tirx.min(whole_to, (least + 1) // keys)
        else:
            begin = tirx.max(begin, most // keys)
            whole_from = tirx.max(whole_from, (least + (keys - 1)) // keys)
    if any(not one.is_upper for one in bounds):
        begin = tirx.min(begin, count - 1)
        end = tirx.max(end, begin + 1)
    second = begin + 1
    if others or not bounds:
        return Reach(begin, end, bool(others), (Span(second, end, bool(others)),))
    split = tirx.max(tirx.min(whole_from, end), second)
    last = tirx.max(tirx.min(whole_to, end), split)
    rest = [Span(split, last, False), Span(last, end, True)]
    if any(not one.is_upper for one in bounds):
        rest.insert(0, Span(second, split, True))
    return Reach(begin, end, True, tuple(rest))
