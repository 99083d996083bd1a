"""The softmax of a tile of scores in the registers of ``wgmma``'s sums, one tile after another.

A thread has columns of two rows, eight apart; four lanes share a row. It keeps the highest score
of each row so far, and its own part of the sum of weights relative to that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from ...gpu.hardware import WARP_SIZE
from ...intrin import asynchronous
from ...ir import ops
from ...ir.conditions import conjuncts
from ...ir.queries import loads_in, substitute
from ..hopper.epilogue import column_of, row_of
from .plan import AttentionPlan

#: In place of minus infinity, so that differences are numbers.
_LOWEST = -1e30


def _local(name: str, length: int, dtype: str = "float32") -> Any:
    return tirx.decl_buffer((length,), dtype, name, scope="local")


def typed(values: dict[Any, Any]) -> dict[Any, Any]:
    """Values of variables in the variables' types."""
    return {var: tirx.Cast(str(var.ty.dtype), value) for var, value in values.items()}


@dataclass(frozen=True)
class Rows:
    """Registers of a thread: scores, weights, weighted sums, and what it knows of its two rows."""

    scores: Any
    weights: Any
    means: Any
    tops: Any
    sums: Any
    factors: Any
    shifts: Any

    @classmethod
    def of(cls, plan: AttentionPlan) -> Rows:
        """Name the registers of a kernel."""
        width = plan.attention.sizes[3]
        return cls(
            _local("scores", plan.keys // 2),
            _local("weights", plan.keys // 4, "uint32"),
            _local("means", width // 2),
            *(_local(name, 2) for name in ("tops", "sums", "factors", "shifts")),
        )

    def start(self) -> list[Any]:
        """Allocate them; there is nothing in the rows yet."""
        made = [tirx.AllocBuffer(one) for one in vars(self).values()]
        for half in range(2):
            made.append(_put(self.tops, half, tirx.const(_LOWEST, "float32")))
            made.append(_put(self.sums, half, tirx.const(0.0, "float32")))
        return made

    def rescale(self) -> list[Any]:
        """Make weighted sums relative to the highest scores of now."""
        count = int(self.means.shape[0])
        return [_put(self.means, i, self.means[i] * self.factors[i // 2 % 2]) for i in range(count)]

    def pack(self, dtype: str) -> list[Any]:
        """Round weights to what multiplies V: neighbours in a row share a register."""
        count = int(self.weights.shape[0])
        return [
            asynchronous.pack(
                self.weights[i], self.scores[2 * i], self.scores[2 * i + 1], dtype
            )
            for i in range(count)
        ]  # fmt: skip

    def finish(self) -> list[Any]:
        """Add sums up over the four lanes of a row, and turn them round."""
        made = [part for half in range(2) for part in _over_lanes(self.sums, half, _add)]
        one = tirx.const(1.0, "float32")
        return [*made, *(_put(self.factors, h, one / self.sums[h]) for h in range(2))]


def _put(buffer: Any, index: int, value: Any) -> Any:
    return tirx.BufferStore(buffer, value, [index])


def _add(one: Any, other: Any) -> Any:
    return one + other


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


def weigh(plan: AttentionPlan, rows: Rows, place: dict[Any, Any], thread: Any, masked: bool) -> Any:
    """Turn a tile of scores into weights, and tell how much less the earlier ones are worth.

    ``place`` has the values of the batch's variables, of ``row`` of the warpgroup's first row, and
    of ``key`` of the tile's first one.
    """
    scores = plan.attention.scores
    plain = scores.bias is None and scores.scale > 0
    made = []
    if masked or not plain:
        made += [
            _put(rows.scores, i, _score(plan, rows.scores[i], i, place, thread, masked, plain))
            for i in range(plan.keys // 2)
        ]
    factor = tirx.const(scores.scale if plain else 1.0, "float32")
    for half in range(2):
        own = [i for i in range(plan.keys // 2) if i // 2 % 2 == half]
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


def _score(
    plan: AttentionPlan,
    value: Any,
    number: int,
    place: dict[Any, Any],
    thread: Any,
    masked: bool,
    plain: bool,
) -> Any:
    """A score with its bias, and the lowest of all where its key is hidden."""
    attention = plan.attention
    row = place[attention.row] + row_of(thread, number // 2 % 2)
    key = place[attention.key] + number // 4 * 8 + column_of(thread, number % 2)
    values = typed({**place, attention.row: row, attention.key: key})
    lowest = tirx.const(_LOWEST, "float32")
    if not plain:
        value = value * tirx.const(attention.scores.scale, "float32")
    if attention.scores.bias is not None:
        value = value + substitute(attention.scores.bias, values)
    parts = [part for one in attention.scores.visible for part in conjuncts(one)]
    shown = [substitute(part, values) for part in parts] if masked else []
    plain_ones = [one for one in shown if not _reads_memory(one)]
    if masked and attention.sizes[1] % plan.keys:
        plain_ones.append(key < attention.sizes[1])
    for one in shown:
        if _reads_memory(one):
            value = tirx.if_then_else(one, value, lowest)
    if _reads_memory(value) and _reads_beyond(plan):
        inside = tirx.all(row < attention.sizes[0], key < attention.sizes[1])
        value = tirx.if_then_else(inside, value, lowest)
    return tirx.Select(tirx.all(*plain_ones), value, lowest) if plain_ones else value


def _reads_memory(value: Any) -> bool:
    return any(one.source.scope() in ("", "global") for one in loads_in(value))


def _reads_beyond(plan: AttentionPlan) -> bool:
    queries, keys = plan.attention.sizes[:2]
    return bool(queries % plan.rows or keys % plan.keys)


