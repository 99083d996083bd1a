"""The softmax of a tile of scores in the registers of ``wgmma``'s sums, one tile after another.

A thread has columns of two rows, eight apart; four lanes share a row. It keeps the highest score
of each row so far, and its own part of the sum of weights relative to that.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import reduce
from typing import Any

from tvm import tirx

from ...gpu.hardware import WARP_SIZE
from ...intrin import asynchronous
from ...ir import ops
from ...ir.queries import loads_in, substitute
from ..hopper.epilogue import column_of, row_of
from .bias import BiasTile
from .plan import AttentionPlan
from .reach import is_ragged, read_bounds

#: In place of minus infinity, so that differences are numbers: below all scores that are seen.
LOWEST = -1e30
#: Score of a hidden key. It is below that, or rows of which a tile shows no key would have weights
#: of the rounding of a difference: a product and a sum of 1e30 that are one operation differ by
#: 1e22, of which there is no power of two.
HIDDEN = -3e38


def _local(name: str, length: int, dtype: str = "float32") -> Any:
    return tirx.decl_buffer((length,), dtype, name, scope="local")


def typed(values: dict[Any, Any]) -> dict[Any, Any]:
    """Values of variables in the variables' types."""
    return {var: tirx.Cast(str(var.ty.dtype), value) for var, value in values.items()}


@dataclass(frozen=True)
class RowRegisters:
    """Registers of a thread: scores, weights, weighted sums, and what it knows of its two rows."""

    scores: Any
    weights: Any
    means: Any
    tops: Any
    sums: Any
    factors: Any
    shifts: Any
    last: Any
    first: Any

    @classmethod
    def of(cls, plan: AttentionPlan) -> RowRegisters:
        """Name the registers of a kernel."""
        width = plan.attention.sizes[3]
        return cls(
            _local("scores", plan.keys // 2),
            _local("weights", plan.keys // 4, "uint32"),
            _local("means", width // 2),
            *(_local(name, 2) for name in ("tops", "sums", "factors", "shifts")),
            *(_local(name, 2, "int32") for name in ("last", "first")),
        )

    def allocate(self) -> list[Any]:
        """Make room for them."""
        return [tirx.AllocBuffer(one) for one in vars(self).values()]

    def rescale(self) -> list[Any]:
        """Make weighted sums relative to the highest scores of now."""
        count = int(self.means.shape[0])
        return [_put(self.means, i, self.means[i] * self.factors[i // 2 % 2]) for i in range(count)]

    def summed(self) -> Any:
        """A condition that holds whatever the sums are, and that asks for them.

        A comparison with zero would not hold for what is no number: TVM turns ``not x < 0`` into
        ``0 <= x``. No sum of a GPU is the NaN of 32 ones.
        """
        return tirx.reinterpret("int32", self.sums[0] + self.sums[1]) != -1

    def pack(self, dtype: str) -> list[Any]:
        """Round weights to what multiplies V: neighbours in a row share a register."""
        count = int(self.weights.shape[0])
        return [
            asynchronous.pack(
                self.weights[i], self.scores[2 * i], self.scores[2 * i + 1], dtype
            )
            for i in range(count)
        ]  # fmt: skip

    def finish(self, sums: Any, hides_rows: bool) -> list[Any]:
        """Add sums up over the four lanes of a row, and turn them round."""
        made = [part for half in range(2) for part in _over_lanes(sums, half, operator.add)]
        one = tirx.const(1.0, "float32")
        turned = [by_weights(one, sums[half], hides_rows) for half in range(2)]
        return [*made, *(_put(self.factors, half, turned[half]) for half in range(2))]


def by_weights(total: Any, weights: Any, hides_rows: bool) -> Any:
    """A total by its weights; zero where there are none, as PyTorch has it.

    All keys of a row may be hidden, or all of the part of them that a block has.
    """
    if not hides_rows:
        return total / weights
    return tirx.Select(weights.equal(0), tirx.const(0.0, "float32"), total / weights)


def _put(buffer: Any, index: int, value: Any) -> Any:
    return tirx.BufferStore(buffer, value, [index])


def _over_lanes(buffer: Any, index: int, combine: Any) -> list[Any]:
    """Combine what the four lanes of a row have."""
    made = []
    for distance in (1, 2):
        own = buffer[index]
        numbers = tirx.const(distance, "int32"), tirx.const(WARP_SIZE, "int32")
        mask = tirx.const(0xFFFFFFFF, "uint32")
        other = tirx.call_intrin(own.ty, ops.CUDA___SHFL_XOR_SYNC, mask, own, *numbers)
        made.append(_put(buffer, index, combine(own, other)))
    return made


def start(
    plan: AttentionPlan, rows: RowRegisters, place: dict[Any, Any], thread: Any, owns_sink: Any
) -> list[Any]:
    """Begin a tile: there is nothing in the rows yet but their sinks, if this block has these.

    A sink is the highest score so far, and one lane of a row has its weight, which is one.
    """
    scores, row, made = plan.attention.scores, plan.attention.row, list[Any]()
    for half in range(2):
        top, total = (tirx.const(value, "float32") for value in (LOWEST, 0.0))
        if scores.sink is not None:
            own = place[row] + row_of(thread, half)
            own = own if plan.fills_tiles else tirx.min(own, plan.attention.sizes[0] - 1)
            sink = substitute(scores.sink, typed({**place, row: own}))
            sink = sink * tirx.const(1 / _folded(plan), "float32")
            leads = tirx.all((thread % 4).equal(0), owns_sink)
            top = tirx.if_then_else(owns_sink, tirx.max(sink, top), top)
            total = tirx.Select(leads, tirx.const(1.0, "float32"), total)
        made += [_put(rows.tops, half, top), _put(rows.sums, half, total)]
    return made


def _folded(plan: AttentionPlan) -> float:
    """The factor that a power of two takes in; 1 where scores are multiplied before."""
    scores = plan.attention.scores
    return scores.scale if scores.bias is None and scores.scale > 0 else 1.0


def weigh(
    plan: AttentionPlan,
    rows: RowRegisters,
    place: dict[Any, Any],
    thread: Any,
    masked: bool,
    added: BiasTile | None = None,
) -> Any:
    """Turn a tile of scores into weights, and tell how much less the earlier ones are worth.

    ``place`` has the values of the batch's variables, of ``row`` of the warpgroup's first row, and
    of ``key`` of the tile's first one; ``added`` is in shared memory what is added to scores.
    """
    scores = plan.attention.scores
    plain = scores.bias is None and scores.scale > 0
    made = _limits(plan, rows, place, thread) if masked else []
    if masked or not plain or scores.curve is not None:
        hidden = _Hidden(plan, rows, place, thread, masked, plain, added)
        made += [_put(rows.scores, i, hidden.score(i)) for i in range(plan.keys // 2)]
    return made + weights_of(rows, tirx.const(_folded(plan), "float32"))


def weights_of(rows: RowRegisters, factor: Any) -> list[Any]:
    """Turn scores, which are multiplied by a factor, into weights, and add these up."""
    made = []
    for half in range(2):
        own = [i for i in range(int(rows.scores.shape[0])) if i // 2 % 2 == half]
        top = rows.shifts
        made.append(_put(top, half, rows.tops[half]))
        made += [_put(top, half, tirx.max(top[half], rows.scores[i])) for i in own]
        made += _over_lanes(top, half, tirx.max)
        less = (rows.tops[half] - top[half]) * factor
        made.append(asynchronous.power_of_two(rows.factors[half], less))
        made.append(_put(rows.tops, half, top[half]))
        made.append(_put(rows.shifts, half, top[half] * factor))
        made.append(_put(rows.sums, half, rows.sums[half] * rows.factors[half]))
        for i in own:
            power = rows.scores[i] * factor - rows.shifts[half]
            made.append(asynchronous.power_of_two(rows.scores[i], power))
        made += [_put(rows.sums, half, rows.sums[half] + rows.scores[i]) for i in own]
    return made


def _limits(
    plan: AttentionPlan, rows: RowRegisters, place: dict[Any, Any], thread: Any
) -> list[Any]:
    """First and last key that each row of a thread sees, counted from its own first column."""
    attention, made = plan.attention, []
    bounds, _ = read_bounds(attention, plan.keys)
    for held, is_upper, closer in ((rows.last, True, tirx.min), (rows.first, False, tirx.max)):
        own = [one for one in bounds if one.is_upper == is_upper]
        for half in range(2 if own else 0):
            row = place[attention.row] + row_of(thread, half)
            ends = [row * one.slope + one.offset for one in own]
            here = place[attention.key] + column_of(thread, 0)
            made.append(_put(held, half, reduce(closer, ends) - here))
    return made


@dataclass(frozen=True)
class _Hidden:
    """Scores of a tile by their curve, with their bias, and what is below all for hidden keys."""

    plan: AttentionPlan
    rows: RowRegisters
    place: dict[Any, Any]
    thread: Any
    masked: bool
    plain: bool
    added: BiasTile | None = None

    def score(self, number: int) -> Any:
        """The score in a register."""
        attention, value = self.plan.attention, self.rows.scores[number]
        bounds, others = read_bounds(attention, self.plan.keys)
        half, column = number // 2 % 2, number // 4 * 8 + number % 2
        row = self.place[attention.row] + row_of(self.thread, half)
        key = self.place[attention.key] + column + column_of(self.thread, 0)
        values = typed({**self.place, attention.row: row, attention.key: key})
        lowest = tirx.const(HIDDEN, "float32")
        if attention.scores.curve is not None:
            value = substitute(attention.scores.curve.of(value), values)
        if not self.plain:
            value = value * tirx.const(attention.scores.scale, "float32")
        if attention.scores.bias is not None:
            bias = attention.scores.bias
            bias = bias if self.added is None else self.added.put_into(bias, number)
            value = value + substitute(bias, values)
        for one in others if self.masked else ():
            value = tirx.if_then_else(substitute(one, values), value, lowest)
        if self._reads_beyond() and (others or self._reads_memory()):
            inside = tirx.all(row < attention.sizes[0], key < attention.sizes[1])
            value = tirx.if_then_else(inside, value, lowest)
        seen = [column <= self.rows.last[half]] if any(b.is_upper for b in bounds) else []
        seen += [column >= self.rows.first[half]] if not all(b.is_upper for b in bounds) else []
        return tirx.Select(tirx.all(*seen), value, lowest) if seen and self.masked else value

    def _reads_memory(self) -> bool:
        """Whether the lanes read something for a score, as what is added to it."""
        scores = self.plan.attention.scores
        if scores.curve is not None and loads_in(scores.curve.value):
            return True
        if scores.bias is None or self.added is None:
            return scores.bias is not None and bool(loads_in(scores.bias))
        return not self.added.is_all_of(scores.bias)

    def _reads_beyond(self) -> bool:
        ragged = is_ragged(self.plan.attention.sizes[1], self.plan.keys)
        return ragged or not self.plan.fills_tiles
