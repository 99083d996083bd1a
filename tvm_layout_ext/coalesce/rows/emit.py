"""The kernel of a chain of rows: sweeps along the row, and between them sums over its threads.

A sweep does all blocks of a level. It goes over the row's parts: what is in registers, what is in
shared memory, in a place of each thread's own, and what is read again. Lanes of a row have vectors
side by side, and a step of all lanes goes before the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import tvm
from tvm import s_tir, tirx

from ...analysis.nest import element_bytes
from ...gpu.hardware import MAX_ACCESS_BYTES, WARP_SIZE
from ...ir import ops
from ...ir.queries import substitute
from ...ir.rebuild import sequence, whole_region
from .chain import RowBlock, RowChain, RowLoad, RowStore
from .plan import TOGETHER, RowPlan
from .traffic import RowTraffic, unravel


@dataclass
class _Part:
    """Steps of a row that are kept in one place; ``batch`` of them are loaded together."""

    place: str
    first: int
    steps: int
    batch: int
    #: Registers, and shared memory, by the name of the load or of the elements in it.
    tiles: dict[Any, Any] = field(default_factory=dict)
    shared: dict[Any, Any] = field(default_factory=dict)


def write_kernel(chain: RowChain, plan: RowPlan, name: str) -> Any:
    """Write the kernel of a chain as one statement."""
    return _Kernel(chain, plan).write(name)


def _unrolled(extent: int, body: Callable[[Any], Any]) -> Any:
    var = tirx.Var("i", "int32")
    return tirx.For(var, 0, extent, tirx.ForKind.UNROLLED, body(var))


def _vectors(total: int, width: int, body: Callable[[Any], Any]) -> Any:
    """Do something for each of some elements, so many at a time."""

    def vector(group: Any) -> Any:
        var = tirx.Var("v", "int32")
        return tirx.For(var, 0, width, tirx.ForKind.VECTORIZED, body(group * width + var))

    return _unrolled(total // width, vector if width > 1 else body)


class _Kernel:
    def __init__(self, chain: RowChain, plan: RowPlan) -> None:
        self.chain, self.plan, self.traffic = chain, plan, RowTraffic(chain)
        self.buffers: list[Any] = []
        #: Results of rows, a register for each row of a thread.
        self.results: dict[Any, Any] = {}
        self.lane, self.side, self.grid = (
            tirx.Var(name, "int32") for name in ("lane", "side", "block")
        )
        analyzer, at_once = tvm.sym.Analyzer(), plan.rows * plan.each
        product = reduce(lambda a, b: a * b, chain.rows, tirx.const(1, chain.type))
        self.rows = analyzer.simplify(product)
        self.blocks = analyzer.simplify(tirx.floordiv(self.rows + (at_once - 1), at_once))
        self.cuts_rows = not analyzer.can_prove_equal(tirx.floormod(self.rows, at_once), 0)
        self.cuts_steps = plan.steps * plan.lanes * plan.vector != chain.length
        self.parts = self._parts()

    def _parts(self) -> list[_Part]:
        plan, parts, first = self.plan, [], 0
        again = plan.steps - plan.registers - plan.shared
        for place, steps in (("registers", plan.registers), ("shared", plan.shared), ("", again)):
            if not steps:
                continue
            batches = range(steps if place == "registers" else min(TOGETHER, steps), 0, -1)
            part = _Part(place, first, steps, next(n for n in batches if steps % n == 0))
            first += steps
            for one in [*self.traffic.kept, *(self.traffic.held if place == "registers" else [])]:
                shape = (plan.each, part.batch, plan.vector)
                part.tiles[one.name] = self._new(one.buffer, "row", shape)
            for load in self.traffic.kept if place == "shared" else []:
                shape = (plan.each, steps, plan.rows, plan.lanes, plan.vector)
                part.shared[load.name] = self._new(load.buffer, "shared", shape, "shared.dyn")
            parts.append(part)
        return parts

    def _new(self, of: Any, use: str, shape: Sequence[int], scope: str = "local") -> Any:
        """Allot registers or shared memory to what a buffer holds."""
        dtype, name = str(of.dtype), f"{of.name}_{use}"
        made = tirx.decl_buffer(tuple(shape), dtype, name, scope=scope, layout=None)
        self.buffers.append(made)
        return made

    # Where rows and elements are.

    def _row(self, j: Any) -> Any:
        row = (self.grid * self.plan.each + j) * self.plan.rows + self.side
        return row.astype(self.chain.type)

    def _group(self, step: Any) -> Any:
        return (step * self.plan.lanes + self.lane).astype(self.chain.type)

    def _values(self, j: Any, step: Any = None, v: Any = 0) -> dict[Any, Any]:
        """Values of the names that a row, and an element of it, is described by.

        Threads beside the last row go along with it, and store nothing.
        """
        chain = self.chain
        row = tirx.min(self._row(j), self.rows - 1) if self.cuts_rows else self._row(j)
        values = dict(zip(chain.row_vars, unravel(row, chain.rows), strict=True))
        if step is not None:
            column = unravel(self._group(step) * self.plan.vector + v, chain.columns)
            values |= dict(zip(chain.column_vars, column, strict=True))
        return values | {n: tirx.BufferLoad(held, [j]) for n, held in self.results.items()}

    def _in_row(self, step: Any, body: Any) -> Any:
        if not self.cuts_steps:
            return body
        groups = self.chain.length // self.plan.vector
        return tirx.IfThenElse(self._group(step) < groups, body, None)

    def _in_rows(self, j: Any, body: Any) -> Any:
        return tirx.IfThenElse(self._row(j) < self.rows, body, None) if self.cuts_rows else body

    def _each_step(self, part: _Part, base: Any, body: Callable[[Any, Any, Any], Any]) -> Any:
        """Do something for all rows and a batch of steps of a thread."""

        def step(j: Any) -> Any:
            return _unrolled(part.batch, lambda b: self._in_row(base + b, body(j, b, base + b)))

        return _unrolled(self.plan.each, step)

    # Sweeps.

    def _level(self, level: int) -> list[Any]:
        blocks = [block for block in self.chain.blocks if block.level == level]
        done = [self._row_block(block) for block in blocks if block.kind == "row"]
        along = [block for block in blocks if block.kind != "row"]
        sums = [block for block in along if block.kind == "sum"]
        done += [self._start(block) for block in sums]
        if along:
            done += [self._sweep(part, level, along) for part in self.parts]
        for block in sums:
            done += self._combine(block)
        return done

    def _sweep(self, part: _Part, level: int, blocks: Sequence[RowBlock]) -> Any:
        chunk = tirx.Var("chunk", "int32")
        is_loop = part.place != "registers"
        base = chunk * part.batch + part.first if is_loop else part.first
        loads = self.traffic.loads_at(level)
        done = []
        for load in loads:
            is_first = self.traffic.first_level(load) == level
            if load.by_row and (is_first or is_loop):
                done += self._fill(part, load, base, is_first=is_first)
        common = [load for load in loads if not load.by_row]
        temps = {x.name: self._new(x.buffer, "part", [self.plan.vector]) for x in common}
        stored = self._stored(part, blocks)

        def step(j: Any, b: Any, at: Any) -> Any:
            steps = [self._load(load, temps[load.name], [], j, at) for load in common]
            steps.append(self._elements(part, blocks, stored, temps, j, b, at))
            steps += [
                self._put(store, tile, [j, b] if store.name in part.tiles else [], j, at)
                for store, tile in stored.items()
                if self.traffic.chain.is_output(store)
            ]
            return sequence(steps)

        done.append(self._each_step(part, base, step))
        body = sequence(done)
        if not is_loop:
            return body
        return tirx.For(chunk, 0, part.steps // part.batch, tirx.ForKind.SERIAL, body)

    def _fill(self, part: _Part, load: RowLoad, base: Any, *, is_first: bool) -> list[Any]:
        """Load a batch; of shared memory, what an earlier sweep has put there."""
        tile, shared = part.tiles[load.name], part.shared.get(load.name)
        vector = self.plan.vector

        def move(*, out: bool) -> Callable[[Any, Any, Any], Any]:
            def step(j: Any, b: Any, at: Any) -> Any:
                own, place = [j, b], [j, at - part.first, self.side, self.lane]

                def element(v: Any) -> Any:
                    if out:
                        kept = tirx.BufferLoad(tile, [*own, v])
                        return tirx.BufferStore(shared, kept, [*place, v])
                    return tirx.BufferStore(tile, tirx.BufferLoad(shared, [*place, v]), [*own, v])

                width = min(vector, MAX_ACCESS_BYTES // element_bytes(tile))
                return _vectors(vector, width, element)

            return step

        if shared is not None and not is_first:
            return [self._each_step(part, base, move(out=False))]
        done = [self._each_step(part, base, lambda j, b, at: self._load(load, tile, [j, b], j, at))]
        if shared is not None:
            done.append(self._each_step(part, base, move(out=True)))
        return done

    def _load(self, load: RowLoad, tile: Any, place: list[Any], j: Any, step: Any) -> Any:
        def element(v: Any) -> Any:
            values = self._values(j, step, v)
            at = [substitute(index, values) for index in load.indices]
            return tirx.BufferStore(tile, tirx.BufferLoad(load.buffer, at), [*place, v])

        width = self.traffic.width(load.buffer, load.indices, self.plan.vector)
        return _vectors(self.plan.vector, width, element)

    def _put(self, store: RowStore, tile: Any, place: list[Any], j: Any, step: Any) -> Any:
        def element(v: Any) -> Any:
            values = self._values(j, step, v)
            at = [substitute(index, values) for index in store.indices]
            return tirx.BufferStore(store.buffer, tirx.BufferLoad(tile, [*place, v]), at)

        width = self.traffic.width(store.buffer, store.indices, self.plan.vector)
        return self._in_rows(j, _vectors(self.plan.vector, width, element))

    def _stored(self, part: _Part, blocks: Sequence[RowBlock]) -> dict[RowStore, Any]:
        """Registers of the elements that a sweep computes for others than itself."""
        found = {}
        for block in blocks:
            for store in block.stores if block.kind == "elements" else ():
                if store.name in part.tiles:
                    found[store] = part.tiles[store.name]
                elif self.chain.is_output(store):
                    found[store] = self._new(store.buffer, "part", [self.plan.vector])
        return found

    def _elements(
        self, part: _Part, blocks: Any, stored: Any, temps: Any, j: Any, b: Any, step: Any
    ) -> Any:
        """Compute what blocks make of the elements of a step."""

        def element(v: Any) -> Any:
            values = self._values(j, step, v)
            values |= {name: tirx.BufferLoad(tile, [v]) for name, tile in temps.items()}
            values |= {n: tirx.BufferLoad(tile, [j, b, v]) for n, tile in part.tiles.items()}
            held = [store.name for store in self.traffic.held if store.name in part.tiles]
            done = []
            for block in blocks:
                worth = {store: self.traffic.expanded(store.value, held) for store in block.stores}
                if block.kind == "sum":
                    done += self._update(block, j, [substitute(x, values) for x in worth.values()])
                for store, value in worth.items():
                    if store in stored:
                        at = [j, b, v] if store.name in part.tiles else [v]
                        done.append(tirx.BufferStore(stored[store], substitute(value, values), at))
            return sequence(done)

        return _unrolled(self.plan.vector, element)

    # Results of rows.

    def _row_block(self, block: RowBlock) -> Any:
        def row(j: Any) -> Any:
            values = self._values(j)
            done = [
                tirx.BufferStore(self._result(store), substitute(store.value, values), [j])
                for store in block.stores
            ]
            return sequence([*done, *self._leave(block, j)])

        return _unrolled(self.plan.each, row)

    def _result(self, store: RowStore) -> Any:
        self.results[store.name] = self._new(store.buffer, "result", [self.plan.each])
        return self.results[store.name]

    def _leave(self, block: RowBlock, j: Any) -> list[Any]:
        """Store results that leave the kernel, from the first lane of a row."""
        values = self._values(j)
        done = [
            tirx.BufferStore(
                store.buffer,
                tirx.BufferLoad(self.results[store.name], [j]),
                [substitute(index, values) for index in store.indices],
            )
            for store in block.stores
            if self.chain.is_output(store)
        ]
        is_first = tirx.EQ(self.lane, tirx.const(0, "int32"))
        return [tirx.IfThenElse(is_first, self._in_rows(j, sequence(done)), None)] if done else []

    def _start(self, block: RowBlock) -> Any:
        assert block.reducer is not None
        pairs = list(zip(map(self._result, block.stores), block.reducer.starts, strict=True))
        return _unrolled(
            self.plan.each,
            lambda j: sequence(tirx.BufferStore(result, start, [j]) for result, start in pairs),
        )

    def _update(self, block: RowBlock, j: Any, others: Sequence[Any]) -> list[Any]:
        """Combine results with others."""
        assert block.reducer is not None
        own = [self.results[store.name] for store in block.stores]
        old = [tirx.BufferLoad(result, [j]) for result in own]
        if len(own) == 1:
            return [tirx.BufferStore(own[0], block.reducer.combine(old, others)[0], [j])]
        given, new = ([tirx.Var(n, result.dtype) for result in own] for n in ("given", "new"))
        named = [*zip(given, others, strict=True)]
        named += zip(new, block.reducer.combine(old, given), strict=True)
        done = [tirx.Bind(name, value) for name, value in named]
        return done + [tirx.BufferStore(r, value, [j]) for r, value in zip(own, new, strict=True)]

    def _combine(self, block: RowBlock) -> list[Any]:
        """Combine what the lanes of a row have: by shuffles, and of warps in shared memory."""
        warps = self.plan.lanes // WARP_SIZE
        done = self._shuffle(block, min(self.plan.lanes, WARP_SIZE))
        if warps > 1:
            done += [*self._spread(block, warps), *self._shuffle(block, warps)]
        if any(self.chain.is_output(store) for store in block.stores):
            done.append(_unrolled(self.plan.each, lambda j: sequence(self._leave(block, j))))
        return done

    def _shuffle(self, block: RowBlock, lanes: int) -> list[Any]:
        def row(j: Any, distance: int) -> Any:
            own = [tirx.BufferLoad(self.results[store.name], [j]) for store in block.stores]
            return sequence(self._update(block, j, [_of_lane(x, distance) for x in own]))

        distances = [1 << n for n in reversed(range(lanes.bit_length() - 1))]
        return [_unrolled(self.plan.each, lambda j, d=d: row(j, d)) for d in distances]

    def _spread(self, block: RowBlock, warps: int) -> list[Any]:
        """Let every warp have what each warp of the row found, a lane each."""
        shape = (self.plan.each, self.plan.rows, warps)
        boards = [
            (self._new(store.buffer, "warps", shape, "shared"), self.results[store.name])
            for store in block.stores
        ]
        warp, which = tirx.floordiv(self.lane, WARP_SIZE), tirx.floormod(self.lane, warps)
        put = _unrolled(
            self.plan.each,
            lambda j: sequence(
                tirx.BufferStore(board, tirx.BufferLoad(own, [j]), [j, self.side, warp])
                for board, own in boards
            ),
        )
        get = _unrolled(
            self.plan.each,
            lambda j: sequence(
                tirx.BufferStore(own, tirx.BufferLoad(board, [j, self.side, which]), [j])
                for board, own in boards
            ),
        )
        is_first = tirx.EQ(tirx.floormod(self.lane, WARP_SIZE), tirx.const(0, "int32"))
        return [tirx.IfThenElse(is_first, put, None), get]

    # The whole.

    def write(self, name: str) -> Any:
        """Write the sweeps into a block, and bind its loops."""
        chain = self.chain
        done = [stmt for level in range(chain.levels) for stmt in self._level(level)]
        stores = [s for block in chain.blocks for s in block.stores if chain.is_output(s)]
        reads, writes = (
            [whole_region(buffer) for buffer in {one.buffer.name: one.buffer for one in x}.values()]
            for x in (chain.loads, stores)
        )
        block = s_tir.SBlock(
            [], reads, writes, name, sequence(done), None, self.buffers, [], {}
        )  # fmt: skip
        stmt: Any = s_tir.SBlockRealize([], tirx.const(True, "bool"), block)
        for var, extent, tag in (
            (self.lane, self.plan.lanes, "threadIdx.x"),
            (self.side, self.plan.rows, "threadIdx.y"),
            (self.grid, self.blocks.astype("int32"), "blockIdx.x"),
        ):
            thread = tirx.IterVar(None, tirx.Var("", "int32"), tirx.IterVar.ThreadIndex, tag)
            stmt = tirx.For(var, 0, extent, tirx.ForKind.THREAD_BINDING, stmt, thread)
        return stmt


def _of_lane(value: Any, distance: int) -> Any:
    """What the lane at a distance has."""
    numbers = tirx.const(distance, "int32"), tirx.const(WARP_SIZE, "int32")
    mask = tirx.const(0xFFFFFFFF, "uint32")
    return tirx.call_intrin(value.ty, ops.CUDA___SHFL_XOR_SYNC, mask, value, *numbers)
