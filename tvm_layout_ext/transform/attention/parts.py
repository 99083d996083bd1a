"""Attention whose keys are cut into parts: what a part leaves, and what puts parts together.

A part leaves the means of its keys, and for each row its highest score and the sum of its weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from ...intrin import asynchronous
from ...ir.queries import substitute
from ...ir.rebuild import sequence
from ..hopper.lower_warpgroups import launched
from ..hopper.pieces import when
from .plan import AttentionPlan
from .softmax import by_weights, typed


@dataclass(frozen=True)
class PartResults:
    """Workspace of all parts: means by tile and part, row and column; tops and sums by row."""

    plan: AttentionPlan
    means: Any
    rows: Any

    @classmethod
    def of(cls, plan: AttentionPlan) -> PartResults:
        """Name the buffers."""
        parts = plan.places_of_parts
        means = tirx.decl_buffer((parts, plan.rows, plan.attention.sizes[3]), "float32", "means")
        return cls(plan, means, tirx.decl_buffer((parts, plan.rows, 2), "float32", "row_sums"))

    def combine(self) -> Any:
        """Write the kernel that puts the parts of each row together, a thread a column."""
        plan, one = self.plan, self.plan.attention
        block, thread = (tirx.Var(name, "int32") for name in ("block", "thread"))
        queries, _, _, width = one.sizes
        each = min(plan.rows, queries) if plan.knows_rows else plan.rows
        head, tile = plan.tile_of(plan.whole + block // each)
        row, inside, at = tile * plan.rows + block % each, block % each, block // each * plan.splits
        names = ("top", "sum", "total", "weight")
        held = {name: tirx.decl_buffer((1,), "float32", name, scope="local") for name in names}

        def put(name: str, value: Any) -> Any:
            return tirx.BufferStore(held[name], value, [0])

        made = [*map(tirx.AllocBuffer, held.values()), put("top", self.rows[at, inside, 0])]
        for part in range(1, plan.splits):
            made.append(put("top", tirx.max(held["top"][0], self.rows[at + part, inside, 0])))
        made += [put(name, tirx.const(0.0, "float32")) for name in ("sum", "total")]
        for part in range(plan.splits):
            less = self.rows[at + part, inside, 0] - held["top"][0]
            made.append(asynchronous.power_of_two(held["weight"][0], less))
            made.append(put("weight", held["weight"][0] * self.rows[at + part, inside, 1]))
            made.append(put("sum", held["sum"][0] + held["weight"][0]))
            mean = self.means[at + part, inside, thread]
            made.append(put("total", held["total"][0] + held["weight"][0] * mean))
        values: dict[Any, Any] = {one.row: row, one.column: thread}
        left = head
        for var, extent in reversed(one.batch):
            values[var] = left % extent
            left = left // extent
        values = typed(values)
        total = by_weights(held["total"][0], held["sum"][0], plan.hides_rows)
        store = tirx.BufferStore(
            one.store.buffer,
            substitute(one.store.value, values | {one.total: total}),
            [substitute(index, values) for index in one.store.indices],
        )
        whole = plan.knows_rows and queries % each == 0
        done = [*made, store] if whole else [when(row < queries, *made, store)]
        tiles = plan.heads * plan.tiles - plan.whole
        return launched(sequence(done), block, thread, (tiles * each, width))
