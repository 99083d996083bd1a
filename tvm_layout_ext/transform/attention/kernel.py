"""Write a kernel of attention: one warpgroup copies tiles of K and V, the others multiply.

The weights of a tile multiply V while the next tile's scores are computed: in each step a
warpgroup issues both products, and works on the scores when the first of them is done.

Each stage of K and V has two mbarriers: ``full`` ends a phase when its bytes have come, ``empty``
when every consuming warpgroup has read them. Step ``it`` of a tile uses stage ``it % stages`` in
phase ``it // stages``. Q comes once.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from ...gpu.warpgroups import PANEL_BYTES, WARPGROUP_THREADS
from ...intrin import asynchronous
from ...ir.queries import substitute
from ...ir.rebuild import sequence
from ..hopper.epilogue import column_of, row_of
from ..hopper.pieces import (
    PIECE_BYTES,
    STEP_BYTES,
    described,
    mbarriers,
    phase,
    registers,
    release,
    tiles_arena,
    when,
)
from .bias import BiasTile, words_of
from .parts import PartResults
from .plan import PANEL, STEP, AttentionPlan
from .reach import Span
from .softmax import RowRegisters, start, typed, weigh
from .tile import QueryTile

#: Steps of a panel along K.
_STEPS = PANEL // STEP
#: Number of the barrier at which the first warpgroup waits for its turn.
_TURNS = 4


@dataclass(frozen=True)
class TileBarriers:
    """The mbarriers: when a stage of K or V is full, and when it is empty."""

    k: tuple[Any, Any]
    v: tuple[Any, Any]

    @classmethod
    def of(cls, stages: int) -> TileBarriers:
        """Name the barriers."""
        return cls(
            *(
                (mbarriers(f"{side}_full", stages), mbarriers(f"{side}_empty", stages))
                for side in "kv"
            )
        )


class AttentionKernel:
    """Writes the roles of a kernel."""

    def __init__(
        self, plan: AttentionPlan, maps: dict[str, Any], parts: PartResults | None = None
    ) -> None:
        self.plan, self.maps, self.parts = plan, maps, parts
        self.block, self.thread = (tirx.Var(name, "int32") for name in ("block", "thread"))
        self.arena = tiles_arena(plan.arena_bytes)
        self.words = words_of(self.arena)
        self.q_full, self.bars = mbarriers("q_full", 1), TileBarriers.of(plan.stages)
        self.rows = RowRegisters.of(plan)
        self.tile = QueryTile.of(plan, self.block)

    def body(self) -> Any:
        """The kernel, without its launch."""
        every = self._barriers()
        init = [
            asynchronous.init_barrier(barrier, i, count)
            for barrier, count in every
            for i in range(int(barrier.shape[0]))
        ]
        return sequence(
            [
                *map(tirx.AllocBuffer, (self.arena, *(barrier for barrier, _ in every))),
                when(self.thread.equal(0), *init),
                *asynchronous.publish_barriers(),
                *self._place(),
                self._roles(),
            ]
        )

    def _barriers(self) -> list[tuple[Any, int]]:
        """The mbarriers, and how many arrive at each."""
        (k_full, k_empty), (v_full, v_empty) = self.bars.k, self.bars.v
        count = self.plan.consumers
        of_k = count * (WARPGROUP_THREADS if self.plan.bias else 1)
        return [(self.q_full, 1), (k_full, 1), (k_empty, of_k), (v_full, 1), (v_empty, count)]

    def _place(self) -> list[Any]:
        """Find out which tile the block has."""
        return self.tile.bind(self.plan)

    def _roles(self) -> Any:
        produces = self.thread >= self.plan.consumers * WARPGROUP_THREADS
        return tirx.IfThenElse(produces, self._produce(), self._consume())

    # The warpgroup that copies.

    @property
    def _warpgroup(self) -> Any:
        return self.thread // WARPGROUP_THREADS

    def _produce(self) -> Any:
        consumers = self.plan.consumers
        leads = self.thread.equal(consumers * WARPGROUP_THREADS)
        return sequence([*registers(consumers, 0), when(leads, *self._copy())])

    def _copy(self) -> list[Any]:
        """Load Q, and a tile of K and one of V a step."""
        plan, tile = self.plan, self.tile

        def step(j: Any) -> Any:
            it = tirx.Var("step", "int32")
            made = [tirx.Bind(it, tile.step(j))]
            at, key, stage = plan.places_of_q * plan.q_bytes, j * plan.keys, it % plan.stages
            for side, barriers, size, beside in (
                ("k", self.bars.k, plan.stage_bytes[0], plan.bias_bytes),
                ("v", self.bars.v, plan.stage_bytes[1], 0),
            ):
                full, empty = barriers
                parity = T.bitwise_xor(phase(it, self.plan.stages), 1)
                made += [
                    asynchronous.wait_barrier(empty, stage, parity),
                    asynchronous.expect_bytes(full, stage, size + beside),
                    *self._load(side, at + stage * size, (full, stage), key),
                ]
                if beside:
                    bias = plan.bias_at + stage * beside
                    made += self._load("bias", bias, (full, stage), tile.first_row, key)
                at += plan.stages * size
            return sequence(made)

        q = [
            asynchronous.expect_bytes(self.q_full, tile.q, plan.q_bytes),
            *self._load("q", tile.q * plan.q_bytes, (self.q_full, tile.q), tile.first_row),
        ]
        j = tirx.Var("j", "int32")
        count = tile.end - tile.first
        return [*q, tirx.For(j, tile.first, count, tirx.ForKind.SERIAL, step(j), None, {})]

    def _load(
        self, side: str, at: Any, barrier: tuple[Any, Any], first: Any, column: Any = 0
    ) -> list[Any]:
        """Copy all panels of a tile, from a row and a column on."""
        plan = self.plan
        boxed: Any = {"q": plan.q, "k": plan.k, "v": plan.v, "bias": plan.bias}[side]
        rows = plan.rows if side in ("q", "bias") else plan.keys
        panels = ceil(plan.keys / PANEL) if side == "bias" else plan.panels[side == "v"]
        made = []
        for panel in range(panels):
            place = dict(zip(boxed.moving, (first, column + panel * PANEL), strict=True))
            pointer = self.arena.access_ptr("w", offset=at + panel * rows * PANEL_BYTES)
            where = boxed.place(typed(place | self.tile.batch))
            made.append(asynchronous.load_box(pointer, self.maps[side], where, *barrier))
        return made

    # Those that multiply.

    def _consume(self) -> Any:
        made = [*registers(self.plan.consumers, 1), *self.rows.allocate(), *self._first_turn()]
        if self.plan.bias is not None:
            made.append(tirx.DeclBuffer(self.words, data=self.arena.data))
        return sequence([*made, *self._multiply()])

    def _multiply(self) -> list[Any]:
        return [*self._begin(), *self._go_on(), *self._end()]

    def _begin(self) -> list[Any]:
        """Compute the weights of a tile's first keys."""
        bars, rows, stages, tile = self.bars, self.rows, self.plan.stages, self.tile
        it = tile.step(tile.first)
        return [
            *self._start(),
            asynchronous.wait_barrier(self.q_full, tile.q, tile.q_phase + tirx.const(0, "int32")),
            asynchronous.wait_barrier(bars.k[0], it % stages, phase(it, stages)),
            asynchronous.fence_sums(),
            *self._scores(it, tile.q),
            asynchronous.commit_products(),
            asynchronous.wait_products(0),
            *([] if self.plan.bias else [self._release_k(it)]),
            *self._weigh(tile.first, it, tile.reach.first_is_masked),
            *([self._release_k(it)] if self.plan.bias else []),
            *rows.pack(self.plan.dtype),
        ]

    def _start(self) -> list[Any]:
        """Begin a tile of rows, of whose parts the first one has the sinks."""
        tile = self.tile
        place = {**self._first_row(), **tile.batch}
        is_first = tirx.const(True, "bool")
        if self.plan.splits > 1:
            is_first = tile.first.equal(tile.reach.first)
        return start(self.plan, self.rows, place, self.thread, is_first)

    def _release_k(self, it: Any, *known: Any) -> Any:
        """Give a stage of K back; each thread reads what is added to scores for itself."""
        stage = it % self.plan.stages
        if self.plan.bias is None:
            return release(self.thread, self.bars.k[1], stage, *known)
        return when(self.rows.summed(), asynchronous.arrive(self.bars.k[1], stage))

    def _go_on(self) -> list[Any]:
        """Go over the other keys."""
        return [self._over(span) for span in self.tile.reach.rest]

    def _end(self) -> list[Any]:
        """Multiply the last keys' weights by V, and store the result."""
        stages, tile, it = self.plan.stages, self.tile, tirx.Var("step", "int32")
        stage = it % stages
        return [
            tirx.Bind(it, tile.step(tile.end - 1)),
            asynchronous.wait_barrier(self.bars.v[0], stage, phase(it, stages)),
            *self._clean(stage),
            asynchronous.fence_sums(),
            *self._means(it, tile.end - 1 > tile.first),
            asynchronous.commit_products(),
            asynchronous.wait_products(0),
            release(self.thread, self.bars.v[1], stage),
            *self.rows.finish(self.rows.sums, self.plan.hides_rows),
            *self._finish(),
        ]

    def _clean(self, stage: Any) -> list[Any]:
        """Zero what lies behind the last key in a stage of V, where TMA leaves no zeros."""
        return []

    def _over(self, span: Span) -> Any:
        """Go over tiles of keys: scores of one and means of the one before, at a time."""
        j, it = (tirx.Var(name, "int32") for name in ("j", "step"))
        stages, bars, tile = self.plan.stages, self.bars, self.tile
        stage, before = it % stages, (it - 1) % stages
        body = [
            tirx.Bind(it, tile.step(j)),
            asynchronous.wait_barrier(bars.k[0], stage, phase(it, stages)),
            *self._take_turn(),
            asynchronous.fence_sums(),
            *self._scores(it, tile.q),
            asynchronous.commit_products(),
            asynchronous.wait_barrier(bars.v[0], before, phase(it - 1, stages)),
            asynchronous.fence_sums(),
            *self._means(it - 1, j - 1 > tile.first),
            asynchronous.commit_products(),
            *self._pass_turn(),
            asynchronous.wait_products(1),
            *self._weigh(j, it, span.masked),
            # Asks for the sums: ptxas would put the powers behind the wait for the means, and
            # nothing would go on beside these.
            self._release_k(it, self.rows.summed()),
            asynchronous.wait_products(0),
            release(self.thread, bars.v[1], before),
            *self.rows.rescale(),
            *self.rows.pack(self.plan.dtype),
        ]
        start, stop = span.start, span.stop
        if self.plan.splits > 1:
            start = tirx.max(tirx.min(start, tile.end), tile.first + 1)
            stop = tirx.max(tirx.min(stop, tile.end), start)
        return tirx.For(j, start, stop - start, tirx.ForKind.SERIAL, sequence(body), None, {})

    def _take_turn(self) -> list[Any]:
        """Wait until the warpgroup before this one has issued its products.

        So one computes weights while another one's products are under way.
        """
        if not self.plan.turns:
            return []
        return [asynchronous.named_barrier(_TURNS + self._warpgroup, 2 * WARPGROUP_THREADS)]

    def _pass_turn(self) -> list[Any]:
        """Let the next warpgroup issue its products."""
        if not self.plan.turns:
            return []
        following = (self._warpgroup + 1) % self.plan.consumers
        return [asynchronous.arrive_named(_TURNS + following, 2 * WARPGROUP_THREADS)]

    def _first_turn(self) -> list[Any]:
        """The first turn is the first warpgroup's."""
        if not self.plan.turns:
            return []
        is_last = self._warpgroup.equal(self.plan.consumers - 1)
        return [when(is_last, *self._pass_turn())]

    def _weigh(self, j: Any, it: Any, masked: bool) -> list[Any]:
        plan = self.plan
        group = self.thread // WARPGROUP_THREADS
        place = {**self._first_row(), plan.attention.key: j * plan.keys}
        tile = None
        if plan.bias is not None:
            begin = plan.bias_at + it % plan.stages * plan.bias_bytes + group * PIECE_BYTES
            tile = BiasTile(plan.bias, plan.rows, self.words, begin, self.thread)
        return weigh(plan, self.rows, place | self.tile.batch, self.thread, masked, tile)

    def _first_row(self) -> dict[Any, Any]:
        """Where the rows of a warpgroup begin."""
        group = self.thread // WARPGROUP_THREADS
        return {self.plan.attention.row: self.tile.first_row + group * 64}

    def _scores(self, it: Any, place: Any) -> list[Any]:
        """Multiply the Q of a place by a tile of K."""
        plan, rows = self.plan, self.rows
        product = plan.instructions[0]
        stage = plan.places_of_q * plan.q_bytes + it % plan.stages * plan.stage_bytes[0]
        q = place * plan.q_bytes
        group = self.thread // WARPGROUP_THREADS
        sums = [rows.scores[i] for i in range(plan.keys // 2)]
        made = []
        for step in range(ceil(plan.attention.sizes[2] / STEP)):
            panel, inside = divmod(step, _STEPS)
            q_at = q + panel * plan.rows * PANEL_BYTES + group * PIECE_BYTES + inside * STEP_BYTES
            k_at = stage + panel * plan.keys * PANEL_BYTES + inside * STEP_BYTES
            q_tile, k_tile = (described(self.arena, at, 0) for at in (q_at, k_at))
            adds = tirx.const(step > 0, "bool")
            made.append(asynchronous.multiply(product, sums, q_tile, k_tile, adds, (False, False)))
        return made

    def _means(self, it: Any, adds_up: Any) -> list[Any]:
        """Multiply the weights by a tile of V, and add that up behind the first one."""
        plan, rows = self.plan, self.rows
        product = plan.instructions[1]
        tile = plan.keys * PANEL_BYTES
        begin = plan.places_of_q * plan.q_bytes + plan.stages * plan.stage_bytes[0]
        stage = begin + it % plan.stages * plan.stage_bytes[1]
        sums = [rows.means[i] for i in range(plan.attention.sizes[3] // 2)]
        made = []
        for step in range(plan.keys // STEP):
            held = [rows.weights[4 * step + i] for i in range(4)]
            v = described(self.arena, stage + step * STEP * PANEL_BYTES, tile)
            adds = tirx.const(True, "bool") if step else adds_up
            made.append(asynchronous.multiply(product, sums, held, v, adds, (False, True)))
        return made

    # The result.

    def _finish(self) -> list[Any]:
        """Store the means of a whole row, or leave those of a part of its keys."""
        if self.parts is None:
            return self._put_all()
        left = self._leave(self.parts)
        if not self.plan.whole:
            return left
        is_whole = self.tile.number < self.plan.whole
        return [tirx.IfThenElse(is_whole, sequence(self._put_all()), sequence(left))]

    def _put_all(self) -> list[Any]:
        """Write the means: into the place of this warpgroup's rows of Q, or from registers."""
        plan = self.plan
        if not plan.stores_by_box:
            count = plan.attention.sizes[3] // 2
            return [part for i in range(0, count, 2) for part in self._put(i)]
        size = plan.places_of_q * plan.q_bytes // 2
        dtype = str(plan.attention.store.buffer.dtype)
        view = tirx.decl_buffer(
            (size,), dtype, "results", data=self.arena.data, elem_offset=0,
            scope="shared.dyn", data_alignment=PANEL_BYTES,
        )  # fmt: skip
        group = self.thread // WARPGROUP_THREADS
        leads = (self.thread % WARPGROUP_THREADS).equal(0)
        made: list[Any] = [tirx.DeclBuffer(view, data=self.arena.data)]
        made += [self._keep(view, i) for i in range(0, plan.attention.sizes[3] // 2, 2)]
        made += [asynchronous.fence_shared()]
        made += [asynchronous.named_barrier(group + 1, WARPGROUP_THREADS)]
        stores = []
        target = plan.result.target
        for panel in range(plan.panels[1]):
            at = self.tile.q * plan.q_bytes + panel * plan.rows * PANEL_BYTES
            pointer = self.arena.access_ptr("r", offset=at + group * PIECE_BYTES)
            place = dict(
                zip(target.moving, (self.tile.first_row + group * 64, panel * PANEL), strict=True)
            )
            where = target.place(typed(place | self.tile.batch))
            stores.append(asynchronous.store_box(pointer, self.maps["o"], where))
        stores += [asynchronous.commit_stores(), asynchronous.wait_stores(0, read=True)]
        return [*made, when(leads, *stores)]

    def _leave(self, parts: PartResults) -> list[Any]:
        """Store what a part of the keys gives, for another kernel."""
        made = []
        for number in range(0, self.plan.attention.sizes[3] // 2, 2):
            v = tirx.Var("v", "int32")
            row, column = self._named(number)
            mean = self.rows.means[number + v] * self.rows.factors[number // 2 % 2]
            store = tirx.BufferStore(parts.means, mean, [self.tile.part, row, column + v])
            made.append(tirx.For(v, 0, 2, tirx.ForKind.VECTORIZED, store, None, {}))
        known = []
        for half in range(2):
            row = self.thread // WARPGROUP_THREADS * 64 + row_of(self.thread, half)
            for i, value in enumerate((self.rows.shifts[half], self.rows.sums[half])):
                known.append(tirx.BufferStore(parts.rows, value, [self.tile.part, row, i]))
        return [*made, when((self.thread % 4).equal(0), *known)]

    def _named(self, number: int) -> tuple[Any, Any]:
        """Row of the tile and column of a register of the means."""
        group = self.thread // WARPGROUP_THREADS
        row = group * 64 + row_of(self.thread, number // 2 % 2)
        return row, number // 4 * 8 + column_of(self.thread, number % 2)

    def _keep(self, view: Any, number: int) -> Any:
        """Write two neighbours into a swizzled panel."""
        v = tirx.Var("v", "int32")
        row, column = self._named(number)
        panel, inside = divmod(number // 4 * 8, PANEL)
        turned = T.bitwise_xor(inside // 8, self.thread % 32 // 4)
        at = (panel * self.plan.rows + row) * PANEL + turned * 8 + self.thread % 4 * 2
        at += self.tile.q * (self.plan.q_bytes // 2)
        # Rows behind the last one are not copied out, but what is added to them would be read.
        place = tirx.min(self.tile.first_row + row, self.plan.attention.sizes[0] - 1)
        value = self._pair(number, v, place, column)
        store = tirx.BufferStore(view, value, [at + v])
        return tirx.For(v, 0, 2, tirx.ForKind.VECTORIZED, store, None, {})

    def _pair(self, number: int, v: Any, place: Any, column: Any) -> Any:
        one = self.plan.attention
        mean = self.rows.means[number + v] * self.rows.factors[number // 2 % 2]
        values = {one.row: place, one.column: column + v}
        return substitute(one.store.value, typed({**values, **self.tile.batch}) | {one.total: mean})

    def _put(self, number: int) -> list[Any]:
        """Store two neighbours from registers."""
        one = self.plan.attention
        v = tirx.Var("v", "int32")
        row, column = self._named(number)
        values = typed(
            {one.row: self.tile.first_row + row, one.column: column + v, **self.tile.batch}
        )
        indices = [substitute(at, values) for at in one.store.indices]
        value = self._pair(number, v, self.tile.first_row + row, column)
        store = tirx.BufferStore(one.store.buffer, value, indices)
        loop = tirx.For(v, 0, 2, tirx.ForKind.VECTORIZED, store, None, {})
        if self.plan.fills_tiles:
            return [loop]
        return [when(self.tile.first_row + row < one.sizes[0], loop)]
