"""A kernel of attention whose blocks take tiles in turns.

A tile's first loads lie under the last steps of the one before. Step ``it`` of a block uses stage
``it % stages``, whichever tile it is of; tiles use two places of Q by turns, and results leave from
the place of their Q (as CUTLASS's persistent kernels do).

Three warpgroups go on with the pipeline of FlashAttention-3 (arXiv 2407.08608, section 3.2) over a
tile's end: they compute the first scores of the next one beside the last means. 16x12x1024x64
takes 118 us for 127 so; two warpgroups would lose up to 5% (float16, H100).
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from ...intrin import asynchronous
from ...ir.rebuild import sequence
from ..hopper.pieces import mbarriers, phase, release, when
from .kernel import AttentionKernel
from .plan import AttentionPlan
from .tile import QueryTile


class PersistentKernel(AttentionKernel):
    """Writes the roles of a kernel whose blocks have many tiles."""

    def __init__(self, plan: AttentionPlan, maps: dict[str, Any]) -> None:
        super().__init__(plan, maps)
        places = plan.places_of_q
        self.q_full, self.q_empty = (mbarriers(f"q_{name}", places) for name in ("full", "empty"))
        #: Steps of the tiles that a block has done.
        self.done = tirx.decl_buffer((1,), "int32", "done", scope="local")
        #: A row's sum of weights when its last weights are known.
        self.ended = tirx.decl_buffer((2,), "float32", "ended", scope="local")
        self.turns = tirx.Var("turns", "int32")
        self.alternates = plan.alternates

    def _barriers(self) -> list[tuple[Any, int]]:
        return [*super()._barriers(), (self.q_empty, self.plan.consumers)]

    def _place(self) -> list[Any]:
        """Count the tiles of the block."""
        blocks, parts = self.plan.resident, self.plan.parts + tirx.const(0, "int32")
        whole, left = parts // blocks, parts % blocks
        turns = whole + tirx.Cast("int32", self._position(whole) < left)
        return [tirx.AllocBuffer(self.done), tirx.Bind(self.turns, turns)]

    def _position(self, turn: Any) -> Any:
        """Which tile of a turn the block takes."""
        other = self.plan.resident - 1 - self.block
        if not self.alternates:
            return self.block
        return tirx.Select((turn % 2).equal(0), self.block, other)

    def _roles(self) -> Any:
        roles = super()._roles()
        return roles if isinstance(self.plan.parts, int) else when(self.turns > 0, roles)

    def _turn(self, turn: Any, before: Any) -> tuple[QueryTile, list[Any]]:
        """The tile of a turn, behind so many steps, and statements that name it."""
        number, places = tirx.Var("number", "int32"), self.plan.places_of_q
        tile = QueryTile.of(self.plan, number, before, turn % places, phase(turn, places))
        at = turn * self.plan.resident + self._position(turn)
        return tile, [tirx.Bind(number, at), *tile.bind(self.plan)]

    def _each_turn(self, turn: Any, tile: QueryTile, body: list[Any]) -> list[Any]:
        steps = tirx.BufferStore(self.done, tile.step(tile.end), [0])
        whole = sequence([*body, steps])
        loop = tirx.For(turn, 0, self.turns, tirx.ForKind.SERIAL, whole, None, {})
        return [tirx.BufferStore(self.done, 0, [0]), loop]

    def _copy(self) -> list[Any]:
        turn = tirx.Var("turn", "int32")
        self.tile, named = self._turn(turn, self.done[0])
        parity = T.bitwise_xor(self.tile.q_phase, 1)
        free = asynchronous.wait_barrier(self.q_empty, self.tile.q, parity)
        return self._each_turn(turn, self.tile, [*named, free, *super()._copy()])

    def _multiply(self) -> list[Any]:
        turn = tirx.Var("turn", "int32")
        tile, named = self._turn(turn, self.done[0])
        if not self.plan.overlaps:
            self.tile = tile
            return self._each_turn(turn, tile, [*named, *super()._multiply()])
        self.tile, named_first = self._turn(tirx.const(0, "int32"), 0)
        begun = [tirx.AllocBuffer(self.ended), *named_first, *self._begin()]
        following, named_next = self._turn(turn + 1, self.done[0] + (tile.end - tile.first))
        self.tile = tile
        body = [*named, *self._go_on(), *named_next, *self._pass_over(turn, tile, following)]
        return [*begun, *self._each_turn(turn, tile, body)]

    def _finish(self) -> list[Any]:
        return [*super()._finish(), release(self.thread, self.q_empty, self.tile.q)]

    def _pass_over(self, turn: Any, tile: QueryTile, following: QueryTile) -> list[Any]:
        """End a tile, and begin the next one meanwhile.

        Behind the last tile its last scores are computed again: products under a condition would
        be issued one by one.
        """
        plan, rows, bars = self.plan, self.rows, self.bars
        more = turn + 1 < self.turns
        it, last, place = (tirx.Var(name, "int32") for name in ("next_step", "last_step", "place"))
        stage, before = it % plan.stages, last % plan.stages
        made = [
            tirx.Bind(last, tile.step(tile.end - 1)),
            tirx.Bind(it, tirx.Select(more, last + 1, last)),
            tirx.Bind(place, tirx.Select(more, following.q, tile.q)),
            when(
                more,
                asynchronous.wait_barrier(self.q_full, place, following.q_phase),
                asynchronous.wait_barrier(bars.k[0], stage, phase(it, plan.stages)),
            ),
            *self._take_turn(),
            asynchronous.fence_sums(),
            *self._scores(it, place),
            asynchronous.commit_products(),
            asynchronous.wait_barrier(bars.v[0], before, phase(last, plan.stages)),
            asynchronous.fence_sums(),
            *self._means(last, tile.end - 1 > tile.first),
            asynchronous.commit_products(),
            *self._pass_turn(),
            asynchronous.wait_products(1),
            *(tirx.BufferStore(self.ended, rows.sums[half], [half]) for half in range(2)),
        ]
        self.tile = following
        begun = self._start()
        weighed = self._weigh(following.first, it, following.reach.first_is_masked)
        free = self._release_k(it, rows.summed())
        self.tile = tile
        return [
            *made,
            when(more, *begun, *weighed, free),
            asynchronous.wait_products(0),
            release(self.thread, bars.v[1], before),
            *rows.finish(self.ended, plan.hides_rows),
            *self._finish(),
            *rows.pack(plan.dtype),
        ]
