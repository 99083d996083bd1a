"""The kernel of a chain of rows: sweeps along the row, and between them sums over its threads.

A sweep does all blocks of a level. It goes over the row's parts: what is in registers, what is in
shared memory, in a place of each thread's own, and what is read again. Lanes of a row have vectors
side by side, and a step of all lanes goes before the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.script import tirx as T

from ...analysis.nest import element_bytes
from ...gpu.hardware import MAX_ACCESS_BYTES, WARP_SIZE
from ...ir import ops
from ...ir.annotations import ASYNC_SCOPE, CLUSTER, MIN_BLOCKS
from ...ir.queries import substitute
from ...ir.rebuild import on_threads, sequence, unrolled, vectorized, whole_region
from .chain import RowBlock, RowChain, RowLoad, RowStore
from .exchange import Exchange
from .plan import TOGETHER, RowPlan
from .traffic import RowTraffic, unravel

#: Threads of a block from which on a register too many may cost half of the blocks.
LARGE_BLOCK = 512


@dataclass
class _Part:
    """Steps of a row that are kept in one place; ``batch`` of them are loaded together."""

    place: str
    first: int
    steps: int
    batch: int
    #: Elements that are computed once and kept.
    held: list[RowStore]
    #: Registers, and shared memory, by the name of the load or of the elements in it.
    tiles: dict[Any, Any] = field(default_factory=dict)
    shared: dict[Any, Any] = field(default_factory=dict)


def _store(buffer: Any, value: Any, *at: Any) -> Any:
    return tirx.BufferStore(buffer, value, list(at))


def _load(buffer: Any, *at: Any) -> Any:
    return tirx.BufferLoad(buffer, list(at))


class RowKernel:
    """Writes the kernel of a chain by a plan."""

    def __init__(self, chain: RowChain, plan: RowPlan) -> None:
        self.chain, self.plan, self.traffic = chain, plan, RowTraffic(chain)
        self.buffers: list[Any] = []
        #: Registers of the results of a row.
        self.results: dict[Any, Any] = {}
        names = ("lane", "side", "block")
        self.lane, self.side, self.grid = (tirx.Var(name, "int32") for name in names)
        self.exchange = Exchange(chain, plan, self.lane, self.grid) if plan.cluster > 1 else None
        number = self.grid * plan.rows + self.side
        if plan.cluster > 1:
            number = tirx.floordiv(self.grid, plan.cluster)
        self.row = number.astype(chain.type)
        analyzer, one = tvm.sym.Analyzer(), tirx.const(1, chain.type)
        self.rows = analyzer.simplify(reduce(lambda a, b: a * b, chain.rows, one))
        self.cuts_rows = not analyzer.can_prove_equal(tirx.floormod(self.rows, plan.rows), 0)
        self.cuts_steps = plan.steps(chain) * plan.across * plan.vector != chain.length
        #: Elements between a row's start and the multiple of a vector at or before it.
        self.shift: Any = None
        if plan.vector > self.traffic.whole:
            self.start = substitute(self.traffic.start, self._values())
            self.shift = tirx.floormod(self.start, plan.vector)
        self.parts = list(self._parts())
        #: Places of what all rows share, a thread's own each, if it is copied ahead.
        self.ahead: dict[Any, Any] = {}
        if plan.ahead > 1:
            shape = plan.steps(chain), plan.rows, plan.lanes, plan.vector
            common = [load for load in chain.loads if not load.by_row]
            self.ahead = {x.name: self._new(x.buffer, "shared", *shape) for x in common}
        #: Loads that are copied and not yet waited for.
        self.flying: list[RowLoad] = []
        #: Registers of what all rows share, if it is loaded beside the row.
        self.early = {x.name: self._new(x.buffer, "early", plan.vector) for x in self._beside()}

    def _beside(self) -> Iterator[RowLoad]:
        """What all rows share and a later sweep asks for, if a thread has one vector of it.

        Behind the sums of a row it would be waited for again, as long as for the row.
        """
        if self.plan.steps(self.chain) == 1 and self.plan.registers and not self.ahead:
            for load in self.chain.loads:
                if not load.by_row and 0 not in self.traffic.levels_of(load.name):
                    yield load

    def _parts(self) -> Iterator[_Part]:
        plan, first, kept = self.plan, 0, self.traffic.kept
        again = plan.steps(self.chain) - plan.registers - plan.shared
        for place, steps in (("registers", plan.registers), ("shared", plan.shared), ("", again)):
            if not steps:
                continue
            is_loop = place != "registers"
            most = min(TOGETHER, steps) if is_loop else steps
            batch = next(n for n in range(most, 0, -1) if steps % n == 0)
            held = [] if is_loop or not plan.hold else [store for _, store in self.traffic.dear]
            part = _Part(place, first, steps, batch, held)
            ones: list[RowLoad | RowStore] = [*kept, *held]
            part.tiles = {x.name: self._new(x.buffer, "row", batch, plan.vector) for x in ones}
            if place == "shared":
                shape = steps, plan.rows, plan.lanes, plan.vector
                part.shared = {x.name: self._new(x.buffer, place, *shape) for x in kept}
            first += steps
            yield part

    def _new(self, of: Any, use: str, *shape: int) -> Any:
        """Allot registers to what a buffer holds, or shared memory, static for boards of warps."""
        at = {"shared": "shared.dyn", "warps": "shared"}.get(use, "local")
        made = tirx.decl_buffer(shape, str(of.dtype), f"{of.name}_{use}", scope=at, layout=None)
        self.buffers.append(made)
        return made

    # Where rows and elements are.

    def _group(self, step: Any) -> Any:
        lane = self.lane if self.exchange is None else self.exchange.lane_of_row
        return (step * self.plan.across + lane).astype(self.chain.type)

    def _column(self, step: Any, v: Any = 0) -> Any:
        """Element of its row; before the first or after the last where rows share vectors."""
        column = self._group(step) * self.plan.vector + v
        return column if self.shift is None else column - self.shift

    def _is_own(self, step: Any, v: Any, done: Any) -> Any:
        """Do something with an element only if it is one of the row."""
        if self.shift is None:
            return done
        column = self._column(step, v)
        return tirx.IfThenElse(tirx.And(column >= 0, column < self.chain.length), done, None)

    def _values(self, step: Any = None, v: Any = 0) -> dict[Any, Any]:
        """Values of the names that a row, and an element of it, is described by.

        Threads beside the last row go along with it, and store nothing.
        """
        chain = self.chain
        row = tirx.min(self.row, self.rows - 1) if self.cuts_rows else self.row
        values = dict(zip(chain.row_vars, unravel(row, chain.rows), strict=True))
        if step is not None:
            column = unravel(self._column(step, v), chain.columns)
            values |= dict(zip(chain.column_vars, column, strict=True))
        return values | {name: _load(held, 0) for name, held in self.results.items()}

    def _stored_row(self, body: Any) -> Any:
        return tirx.IfThenElse(self.row < self.rows, body, None) if self.cuts_rows else body

    def _each_step(self, part: _Part, base: Any, body: Callable[[Any, Any], Any]) -> Any:
        """Do something for a batch of steps: ``body`` takes the place in it, and the step."""

        def step(b: Any) -> Any:
            done = body(b, base + b)
            is_inside = self._column(base + b) < self.chain.length
            return tirx.IfThenElse(is_inside, done, None) if self.cuts_steps else done

        return unrolled(part.batch, step)

    def _vectors(self, width: int, body: Callable[[Any], Any]) -> Any:
        """Do something for each element of a step, so many at a time."""

        def vector(group: Any) -> Any:
            return vectorized(width, lambda v: body(group * width + v))

        return unrolled(self.plan.vector // width, vector if width > 1 else body)

    def _moved(self, one: RowLoad | RowStore, tile: Any, place: Any, step: Any) -> Any:
        """Load a step's elements into registers, or store them from there."""
        if self.shift is not None:
            assert isinstance(one, RowLoad)
            return self._aligned(one, tile, place, step)

        def element(v: Any) -> Any:
            values = self._values(step, v)
            at = [substitute(index, values) for index in one.indices]
            if isinstance(one, RowLoad):
                return _store(tile, _load(one.buffer, *at), *place, v)
            return _store(one.buffer, _load(tile, *place, v), *at)

        return self._vectors(self.traffic.width(one, self.plan.vector), element)

    def _aligned(self, load: RowLoad, tile: Any, place: Any, step: Any) -> Any:
        """Load an aligned vector; where the buffer ends in it, what there is of it."""
        vector, size = self.plan.vector, reduce(lambda a, b: a * b, load.buffer.shape)
        base = tirx.floordiv(self.start, vector) * vector + self._group(step) * vector
        zeros = [tirx.const(0, base.ty)] * (len(load.buffer.shape) - 1)

        def element(v: Any) -> Any:
            return _store(tile, _load(load.buffer, *zeros, base + v), *place, v)

        whole = self._vectors(vector, element)
        if tvm.sym.Analyzer().can_prove_equal(tirx.floormod(size, vector), 0):
            return whole
        last = unrolled(vector, lambda v: tirx.IfThenElse(base + v < size, element(v), None))
        return tirx.IfThenElse(base + vector <= size, whole, last)

    # Sweeps.

    def _loaded_early(self) -> Iterator[Any]:
        for load in (x for x in self.chain.loads if x.name in self.early):
            tile = self.early[load.name]

            def step(_: Any, at: Any, load: RowLoad = load, tile: Any = tile) -> Any:
                return self._moved(load, tile, (), at)

            yield self._each_step(self.parts[0], 0, step)

    def _level(self, level: int) -> Iterator[Any]:
        blocks = [block for block in self.chain.blocks if block.level == level]
        along = [block for block in blocks if block.kind != "row"]
        sums = [block for block in along if block.kind == "sum"]
        yield from (self._row_block(block) for block in blocks if block.kind == "row")
        for block in sums:
            assert block.reducer is not None
            for store, start in zip(block.stores, block.reducer.starts, strict=True):
                yield _store(self._result(store), substitute(start, self._values()), 0)
        # What was read last is likely still in the cache: every other sweep goes backwards.
        asked = [x for x in self.flying if level in self.traffic.levels_of(x.name)]
        if any(not load.by_row for load in asked):
            yield self._wait()
        for part in self.parts[:: -1 if level % 2 else 1] if along else ():
            if self.flying and asked and part.place == "shared":
                yield self._wait()
            chunk, chunks = tirx.Var("chunk", "int32"), part.steps // part.batch
            if part.place == "registers":
                yield self._sweep(part, part.first, level, along)
                continue
            base = part.first + (chunks - 1 - chunk if level % 2 else chunk) * part.batch
            body = self._sweep(part, base, level, along)
            yield tirx.For(chunk, 0, chunks, tirx.ForKind.SERIAL, body)
        if self.ahead and level == 0:
            yield from self._copied(0, self.plan.steps(self.chain), self.ahead)
        yield from self._combined(level, sums)

    def _copied(self, first: int, steps: int, places: dict[Any, Any]) -> Iterator[Any]:
        """Begin to copy some steps of loads into shared memory, each thread into its own place."""
        for load in (x for x in self.chain.loads if x.name in places):

            def element(at: Any, step: Any, load: RowLoad = load) -> Callable[[Any], Any]:
                def put(v: Any) -> Any:
                    values = self._values(at, v)
                    value = _load(load.buffer, *(substitute(i, values) for i in load.indices))
                    return _store(places[load.name], value, step, self.side, self.lane, v)

                return put

            step = tirx.Var("step", "int32")
            width = self.traffic.width(load, self.plan.vector)
            copy: Any = self._vectors(width, element(first + step, step))
            copy = tirx.AttrStmt(0, ASYNC_SCOPE, 0, copy)
            if self.cuts_steps:
                is_inside = self._column(first + step) < self.chain.length
                copy = tirx.IfThenElse(is_inside, copy, None)
            yield tirx.For(step, 0, steps, tirx.ForKind.SERIAL, copy)
            self.flying.append(load)
        yield tirx.Evaluate(T.ptx["cp.async.commit_group"]())

    def _wait(self) -> Any:
        self.flying.clear()
        return tirx.Evaluate(T.ptx["cp.async.wait_group"](0))

    def _sweep(self, part: _Part, base: Any, level: int, blocks: Sequence[RowBlock]) -> Any:
        """Compute what a level makes of a batch of steps."""
        names = [store.name for store in part.held]
        levels = {x.name: self.traffic.levels_of(x.name, names) for x in self.chain.loads}
        loads = [x for x in self.chain.loads if level in levels[x.name]]
        done: list[Any] = []
        for load in loads:
            if load.by_row and (part.place != "registers" or level == levels[load.name][0]):
                done += self._filled(part, load, base, level, levels[load.name])
        common = {
            x.name: (x, self._new(x.buffer, "part", self.plan.vector))
            for x in loads
            if not x.by_row and x.name not in self.early
        }
        stored = {}
        for store in (s for block in blocks if block.kind == "elements" for s in block.stores):
            if store.name in names:
                stored[store.name] = part.tiles[store.name]
            elif self.chain.is_output(store):
                stored[store.name] = self._new(store.buffer, "part", self.plan.vector)

        def step(b: Any, at: Any) -> Any:
            def element(v: Any) -> Any:
                values = self._values(at, v)
                values |= {name: _load(tile, v) for name, (_, tile) in common.items()}
                values |= {name: _load(tile, v) for name, tile in self.early.items()}
                values |= {name: _load(tile, b, v) for name, tile in part.tiles.items()}
                done = sequence(self._element(part, blocks, stored, values, b, v))
                return self._is_own(at, v, done)

            steps = [self._common(x, tile, at) for x, tile in common.values()]
            steps.append(unrolled(self.plan.vector, element))
            for store in (s for block in blocks for s in block.stores if s.name in stored):
                if self.chain.is_output(store):
                    place = (b,) if store.name in part.tiles else ()
                    moved = self._moved(store, stored[store.name], place, at)
                    steps.append(self._stored_row(moved))
            return sequence(steps)

        return sequence([*done, self._each_step(part, base, step)])

    def _common(self, load: RowLoad, tile: Any, at: Any) -> Any:
        """Load a step of what all rows share, from where it was copied to."""
        place = self.ahead.get(load.name)
        if place is None:
            return self._moved(load, tile, (), at)
        width = min(self.plan.vector, MAX_ACCESS_BYTES // element_bytes(tile))
        own = at, self.side, self.lane
        return self._vectors(width, lambda v: _store(tile, _load(place, *own, v), v))

    def _filled(
        self, part: _Part, load: RowLoad, base: Any, level: int, levels: list[int]
    ) -> Iterator[Any]:
        """Load a batch; into shared memory what is asked for again, and from there again."""
        tile, kept = part.tiles[load.name], part.shared.get(load.name)
        width = min(self.plan.vector, MAX_ACCESS_BYTES // element_bytes(tile))
        is_copied = kept is not None and self.plan.ahead > 0
        is_first = level == levels[0] and not is_copied

        def shared(b: Any, at: Any) -> Any:
            def element(v: Any) -> Any:
                place = at - part.first, self.side, self.lane, v
                if is_first:
                    return _store(kept, _load(tile, b, v), *place)
                return _store(tile, _load(kept, *place), b, v)

            return self._vectors(width, element)

        if is_first or kept is None:
            yield self._each_step(part, base, lambda b, at: self._moved(load, tile, (b,), at))
        if kept is not None and (levels[-1] > levels[0] or is_copied):
            yield self._each_step(part, base, shared)

    def _element(
        self, part: _Part, blocks: Any, stored: Any, values: Any, b: Any, v: Any
    ) -> Iterator[Any]:
        """Compute what blocks make of one element."""
        held = [store.name for store in part.held]
        for block in blocks:
            expanded = (self.traffic.expanded(store.value, held) for store in block.stores)
            worth = [substitute(value, values) for value in expanded]
            if block.kind == "sum":
                yield from self._updated(block, worth)
                continue
            for store, value in zip(block.stores, worth, strict=True):
                if store.name in stored:
                    at = (b, v) if store.name in part.tiles else (v,)
                    yield _store(stored[store.name], value, *at)

    # Results of rows.

    def _result(self, store: RowStore) -> Any:
        self.results[store.name] = self._new(store.buffer, "result", 1)
        return self.results[store.name]

    def _row_block(self, block: RowBlock) -> Any:
        values = self._values()
        done = [_store(self._result(s), substitute(s.value, values), 0) for s in block.stores]
        return sequence([*done, *self._left(block)])

    def _left(self, block: RowBlock) -> Iterator[Any]:
        """Store results that leave the kernel, from the first lane of a row."""
        values = self._values()
        for store in block.stores:
            if self.chain.is_output(store):
                at = [substitute(index, values) for index in store.indices]
                put = _store(store.buffer, _load(self.results[store.name], 0), *at)
                lane = self.lane if self.exchange is None else self.exchange.lane_of_row
                yield tirx.IfThenElse(tirx.EQ(lane, 0), self._stored_row(put), None)

    def _updated(self, block: RowBlock, others: Sequence[Any]) -> list[Any]:
        """Combine results with others."""
        assert block.reducer is not None
        own = [self.results[store.name] for store in block.stores]
        old = [_load(result, 0) for result in own]
        if len(own) == 1:
            return [_store(own[0], block.reducer.combine(old, others)[0], 0)]
        given, both = ([tirx.Var(n, result.dtype) for result in own] for n in ("given", "both"))
        done = [tirx.Bind(name, value) for name, value in zip(given, others, strict=True)]
        combined = block.reducer.combine(old, given)
        done += [tirx.Bind(name, value) for name, value in zip(both, combined, strict=True)]
        return done + [_store(result, value, 0) for result, value in zip(own, both, strict=True)]

    def _combined(self, level: int, blocks: Sequence[RowBlock]) -> Iterator[Any]:
        """Combine what the lanes of a row have: by shuffles, of warps through shared memory."""
        for block in blocks:
            yield from self._shuffled(block, min(self.plan.lanes, WARP_SIZE))
        if self.exchange is not None and blocks:
            yield from self._exchanged(level, blocks)
        elif self.plan.lanes > WARP_SIZE:
            for block in blocks:
                yield from self._of_warps(block)
        for block in blocks:
            yield from self._left(block)

    def _of_warps(self, block: RowBlock) -> Iterator[Any]:
        """Combine what the warps of a row found, which lanes of every warp get, one each."""
        warps, own = self.plan.lanes // WARP_SIZE, [self.results[s.name] for s in block.stores]
        boards = [self._new(s.buffer, "warps", self.plan.rows, warps) for s in block.stores]
        pairs = list(zip(boards, own, strict=True))
        warp, other = tirx.floordiv(self.lane, WARP_SIZE), tirx.floormod(self.lane, warps)
        put = [_store(board, _load(result, 0), self.side, warp) for board, result in pairs]
        is_first = tirx.EQ(tirx.floormod(self.lane, WARP_SIZE), 0)
        yield tirx.IfThenElse(is_first, sequence(put), None)
        yield from (_store(result, _load(x, self.side, other), 0) for x, result in pairs)
        yield from self._shuffled(block, warps)

    def _exchanged(self, level: int, blocks: Sequence[RowBlock]) -> Iterator[Any]:
        """The same of the warps of a cluster, whose lanes get several where there are more."""
        assert self.exchange is not None
        found = [(b, [_load(self.results[s.name], 0) for s in b.stores]) for b in blocks]
        yield from self.exchange.send(level, found)
        yield self.exchange.wait(level)
        lanes = min(self.exchange.warps, WARP_SIZE)
        first = tirx.floormod(self.lane, lanes)
        for block in blocks:
            own = [self.results[store.name] for store in block.stores]
            taken = self.exchange.of_warp(block, first)
            yield from (_store(result, x, 0) for result, x in zip(own, taken, strict=True))
            for warp in range(lanes, self.exchange.warps, lanes):
                yield from self._updated(block, self.exchange.of_warp(block, first + warp))
            yield from self._shuffled(block, lanes)

    def _shuffled(self, block: RowBlock, lanes: int) -> Iterator[Any]:
        for power in reversed(range(lanes.bit_length() - 1)):
            own = [_load(self.results[store.name], 0) for store in block.stores]
            yield from self._updated(block, [of_lane(value, 1 << power) for value in own])

    def write(self, name: str) -> Any:
        """Write the sweeps into a block, and bind its loops."""
        chain, plan = self.chain, self.plan
        copied = [
            stmt
            for part in self.parts
            if part.shared and plan.ahead
            for stmt in self._copied(part.first, part.steps, part.shared)
        ]
        sweeps = [x for level in range(chain.levels) for x in self._level(level)]
        done = [*copied, *self._loaded_early(), *sweeps]
        if self.exchange is not None:
            done, self.buffers = (
                [*self.exchange.begin(), *done],
                self.buffers + self.exchange.buffers,
            )
        stores = [s for block in chain.blocks for s in block.stores if chain.is_output(s)]
        touched = ({one.buffer.name: one.buffer for one in x} for x in (chain.loads, stores))
        reads, writes = ([whole_region(buffer) for buffer in x.values()] for x in touched)
        block = s_tir.SBlock([], reads, writes, name, sequence(done), None, self.buffers, [], {})
        blocks = tvm.sym.Analyzer().simplify(tirx.ceildiv(self.rows, plan.rows)).astype("int32")
        bound = {MIN_BLOCKS: plan.resident} if plan.threads >= LARGE_BLOCK else {}
        if plan.cluster > 1:
            blocks, bound = blocks * plan.cluster, {**bound, f"{CLUSTER}x": plan.cluster}
        axes = (
            (self.lane, plan.lanes, "threadIdx.x"),
            (self.side, plan.rows, "threadIdx.y"),
            (self.grid, blocks, "blockIdx.x"),
        )
        return on_threads(block, axes, bound)


def of_lane(value: Any, distance: int) -> Any:
    """What the lane at a distance has."""
    numbers = tirx.const(distance, "int32"), tirx.const(WARP_SIZE, "int32")
    mask = tirx.const(0xFFFFFFFF, "uint32")
    return tirx.call_intrin(value.ty, ops.CUDA___SHFL_XOR_SYNC, mask, value, *numbers)
