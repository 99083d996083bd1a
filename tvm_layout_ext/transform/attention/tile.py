"""What a kernel of attention knows of a tile of rows: where it lies, and which keys it sees."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import tirx

from ..hopper import places
from .plan import AttentionPlan
from .reach import Reach, reach


@dataclass(frozen=True)
class QueryTile:
    """Names of a tile's values.

    ``first`` and ``end`` are tiles of keys, ``before`` the steps that its block has done for other
    tiles, ``q`` the place of its rows of Q in shared memory, and ``q_phase`` the parity in which
    they come.
    """

    number: Any
    part: Any
    first_row: Any
    first: Any
    end: Any
    batch: dict[Any, Any]
    reach: Reach
    before: Any = 0
    q: Any = 0
    q_phase: Any = 0

    @classmethod
    def of(cls, plan: AttentionPlan, number: Any, before: Any = 0, *q: Any) -> QueryTile:
        """Name the values of a tile; ``q``: its place and parity, if there are many."""
        names = ("part", "first_row", "first", "end")
        part, first_row, first, end = (tirx.Var(name, "int32") for name in names)
        batch = {var: tirx.Var(f"{var.name}_at", "int32") for var, _ in plan.attention.batch}
        sees = reach(plan.attention, first_row, plan.rows, plan.keys)
        return cls(number, part, first_row, first, end, batch, sees, before, *q)

    def step(self, j: Any) -> Any:
        """Number of a step of the block: at a tile of keys."""
        return self.before + (j - self.first)

    def bind(self, plan: AttentionPlan) -> list[Any]:
        """Give the names their values."""
        number, count, split = self.number, tirx.const(1, "int32"), tirx.const(0, "int32")
        shared = self.number - plan.whole
        if plan.splits > 1:
            number, count = plan.whole + shared // plan.splits, tirx.const(plan.splits, "int32")
            split = shared % plan.splits
        if plan.whole:
            number, count, split = (
                tirx.Select(shared < 0, own, part)
                for own, part in ((self.number, number), (1, count), (0, split))
            )
        head, tile = plan.tile_of(number)
        named = partial(places.named, knows_sizes=plan.knows_sizes)
        left = tirx.Var("head", "int32")
        made = [*named(self.first_row, tile * plan.rows), *named(left, head)]
        for var, extent in reversed(plan.attention.batch):
            made += named(self.batch[var], left % extent)
            left = left // extent
        first, end = self.reach.first, self.reach.end
        if plan.splits > 1:
            each = (end - first + count - 1) // count
            made.append(tirx.Bind(self.part, shared))
            first = first + split * each
            end = tirx.min(end, first + each)
        return [*made, *named(self.first, first), *named(self.end, end)]
