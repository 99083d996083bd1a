"""A query whose keys are cut into parts: what a part leaves, and what puts parts together.

Unlike those of :mod:`.parts`, parts are counted by the host at each call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from ...gpu.hardware import MULTIPROCESSORS
from ...intrin import asynchronous
from ...ir.rebuild import sequence
from ..hopper.lower_warpgroups import launched
from ..hopper.pieces import when
from .softmax import LOWEST

#: The logarithm of a sum of nothing, as TVM's own kernels have it.
NOTHING = -5e4
#: A weight, and a mean, of nothing.
NONE = tirx.const(0.0, "float32")


@dataclass(frozen=True)
class RaggedParts:
    """What parts of the keys of a single query leave, by query, head and part.

    ``count`` parts share the keys, as the host finds at each call: so many that blocks fill the
    GPU, but each has two tiles, if sequences are of one length.
    """

    output: Any
    sums: Any
    count: Any
    means: Any
    rows: Any

    @classmethod
    def of(cls, output: Any, sums: Any, groups: int, tiles: Any) -> RaggedParts:
        """Name the buffers, where all queries have so many tiles of keys of each group."""
        queries, heads, width = output.shape
        each = tiles // queries // 2
        count = tirx.max(tirx.min(MULTIPROCESSORS // (queries * groups), each), 1)
        means, rows = (
            tirx.decl_buffer((queries * heads * count, columns), "float32", name)
            for columns, name in ((width, "means_of_parts"), (2, "sums_of_parts"))
        )
        return cls(output, sums, count, means, rows)

    def combine(self) -> Any:
        """Write the kernel that puts the parts of each head together, a thread a column."""
        block, thread = (tirx.Var(name, "int32") for name in ("block", "thread"))
        queries, heads, width = self.output.shape
        names = ("top", "sum", "total", "weight")
        held = {name: tirx.decl_buffer((1,), "float32", name, scope="local") for name in names}

        def put(name: str, value: Any) -> Any:
            return tirx.BufferStore(held[name], value, [0])

        def over(body: Any) -> Any:
            part = tirx.Var("part", "int32")
            steps = body(block * self.count + part)
            return tirx.For(part, 0, self.count, tirx.ForKind.SERIAL, sequence(steps), None, {})

        def add(at: Any) -> list[Any]:
            weight, total = held["weight"][0], self.rows[at, 1]
            mean = tirx.if_then_else(total > 0, self.means[at, thread], NONE)
            return [
                asynchronous.power_of_two(weight, self.rows[at, 0] - held["top"][0]),
                put("weight", weight * total),
                put("sum", held["sum"][0] + weight),
                put("total", held["total"][0] + weight * mean),
            ]

        place, found = [block // heads, block % heads], held["sum"][0] > 0
        mean = tirx.if_then_else(found, held["total"][0] / held["sum"][0], NONE)
        made = [
            *map(tirx.AllocBuffer, held.values()),
            put("top", tirx.const(LOWEST, "float32")),
            *(put(name, NONE) for name in ("sum", "total")),
            over(lambda at: [put("top", tirx.max(held["top"][0], self.rows[at, 0]))]),
            over(add),
            tirx.BufferStore(self.output, mean.astype(str(self.output.dtype)), [*place, thread]),
        ]
        if self.sums is not None:
            known = held["top"][0] + tirx.log2(held["sum"][0])
            known = tirx.if_then_else(found, known, tirx.const(NOTHING, "float32"))
            made.append(when(thread.equal(0), tirx.BufferStore(self.sums, known, place)))
        return launched(sequence(made), block, thread, (queries * heads, int(width)))
