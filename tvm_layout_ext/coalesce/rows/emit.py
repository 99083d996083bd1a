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
from ...ir.annotations import MIN_BLOCKS
from ...ir.queries import substitute
from ...ir.rebuild import sequence, whole_region
from .chain import RowBlock, RowChain, RowLoad, RowStore
from .plan import TOGETHER, RowPlan
from .traffic import RowTraffic, unravel

#: Threads of a block from which on a register too many may cost half of the blocks.
_LARGE_BLOCK = 512


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


def _unrolled(extent: int, body: Callable[[Any], Any]) -> Any:
    var = tirx.Var("i", "int32")
    return tirx.For(var, 0, extent, tirx.ForKind.UNROLLED, body(var))


def _load(buffer: Any, *at: Any) -> Any:
    return tirx.BufferLoad(buffer, list(at))


def _store(buffer: Any, value: Any, *at: Any) -> Any:
    return tirx.BufferStore(buffer, value, list(at))


class RowKernel:
    """Writes the kernel of a chain by a plan."""

    def __init__(self, chain: RowChain, plan: RowPlan) -> None:
        self.chain, self.plan, self.traffic = chain, plan, RowTraffic(chain)
        self.steps = plan.steps(chain)
        self.buffers: list[Any] = []
        #: Registers of the results of a row.
        self.results: dict[Any, Any] = {}
        self.lane, self.side, self.grid = (
            tirx.Var(name, "int32") for name in ("lane", "side", "block")
        )
        self.row = (self.grid * plan.rows + self.side).astype(chain.type)
        analyzer, one = tvm.sym.Analyzer(), tirx.const(1, chain.type)
        self.rows = analyzer.simplify(reduce(lambda a, b: a * b, chain.rows, one))
        self.cuts_rows = not analyzer.can_prove_equal(tirx.floormod(self.rows, plan.rows), 0)
        self.cuts_steps = self.steps * plan.lanes * plan.vector != chain.length
        self.held = [store for _, store in self.traffic.dear if plan.hold]
        self.parts = list(self._parts())

    def _parts(self) -> Any:
        plan, first = self.plan, 0
        again = self.steps - plan.registers - plan.shared
        for place, steps in (("registers", plan.registers), ("shared", plan.shared), ("", again)):
            if not steps:
                continue
            batches = range(steps if place == "registers" else min(TOGETHER, steps), 0, -1)
            part = _Part(place, first, steps, next(n for n in batches if steps % n == 0))
            for one in [*self.traffic.kept, *(self.held if place == "registers" else [])]:
                part.tiles[one.name] = self._new(one.buffer, "row", part.batch, plan.vector)
            for load in self.traffic.kept if place == "shared" else []:
                shape = steps, plan.rows, plan.lanes, plan.vector
                part.shared[load.name] = self._new(load.buffer, "kept", *shape, at="shared.dyn")
            first += steps
            yield part

    def _new(self, of: Any, use: str, *shape: int, at: str = "local") -> Any:
        """Allot registers or shared memory to what a buffer holds."""
        made = tirx.decl_buffer(shape, str(of.dtype), f"{of.name}_{use}", scope=at, layout=None)
        self.buffers.append(made)
        return made

    # Where rows and elements are.

    def _group(self, step: Any) -> Any:
        return (step * self.plan.lanes + self.lane).astype(self.chain.type)

    def _values(self, step: Any = None, v: Any = 0) -> dict[Any, Any]:
        """Values of the names that a row, and an element of it, is described by.

        Threads beside the last row go along with it, and store nothing.
        """
        chain = self.chain
        row = tirx.min(self.row, self.rows - 1) if self.cuts_rows else self.row
        values = dict(zip(chain.row_vars, unravel(row, chain.rows), strict=True))
        if step is not None:
            column = unravel(self._group(step) * self.plan.vector + v, chain.columns)
            values |= dict(zip(chain.column_vars, column, strict=True))
        return values | {name: _load(held, 0) for name, held in self.results.items()}

    def _stored_row(self, body: Any) -> Any:
        return tirx.IfThenElse(self.row < self.rows, body, None) if self.cuts_rows else body

    def _each_step(self, part: _Part, base: Any, body: Callable[[Any, Any], Any]) -> Any:
        """Do something for a batch of steps: ``body`` takes the place in it, and the step."""

        def step(b: Any) -> Any:
            done = body(b, base + b)
            groups = self.chain.length // self.plan.vector
            inside = self._group(base + b) < groups
            return tirx.IfThenElse(inside, done, None) if self.cuts_steps else done

        return _unrolled(part.batch, step)

    def _vectors(self, width: int, body: Callable[[Any], Any]) -> Any:
        """Do something for each element of a step, so many at a time."""

        def vector(group: Any) -> Any:
            var = tirx.Var("v", "int32")
            return tirx.For(var, 0, width, tirx.ForKind.VECTORIZED, body(group * width + var))

        return _unrolled(self.plan.vector // width, vector if width > 1 else body)

    def _moved(self, one: RowLoad | RowStore, tile: Any, place: Any, step: Any) -> Any:
        """Load a step's elements into registers, or store them from there."""

        def element(v: Any) -> Any:
            values = self._values(step, v)
            at = [substitute(index, values) for index in one.indices]
            if isinstance(one, RowLoad):
                return _store(tile, _load(one.buffer, *at), *place, v)
            return _store(one.buffer, _load(tile, *place, v), *at)

        return self._vectors(self.traffic.width(one, self.plan.vector), element)

    # Sweeps.

    def _level(self, level: int) -> list[Any]:
        blocks = [block for block in self.chain.blocks if block.level == level]
        done = [self._row_block(block) for block in blocks if block.kind == "row"]
        along = [block for block in blocks if block.kind != "row"]
        sums = [block for block in along if block.kind == "sum"]
        done += [self._start(block) for block in sums]
        # What was read last is likely still in the cache: every other sweep goes backwards.
        parts = self.parts[::-1] if level % 2 else self.parts
        done += [self._sweep(part, level, along) for part in parts if along]
        for block in sums:
            done += self._combine(block)
        return done

    def _sweep(self, part: _Part, level: int, blocks: Sequence[RowBlock]) -> Any:
        chunk, chunks = tirx.Var("chunk", "int32"), part.steps // part.batch
        is_loop = part.place != "registers"
        at = (chunks - 1 - chunk if level % 2 else chunk) * part.batch if is_loop else 0
        base = part.first + at
        held = [store for store in self.held if store.name in part.tiles]
        names = [store.name for store in held]
        levels = {x.name: self.traffic.levels_of(x.name, names) for x in self.chain.loads}
        loads = [x for x in self.chain.loads if level in levels[x.name]]
        done = []
        for load in loads:
            is_first = levels[load.name][0] == level
            if load.by_row and (is_first or is_loop):
                is_again = levels[load.name][-1] > levels[load.name][0]
                kept = part.shared.get(load.name) if is_again else None
                done += self._fill(part, load, kept, base, is_first=is_first)
        temps = {
            x.name: self._new(x.buffer, "part", self.plan.vector) for x in loads if not x.by_row
        }
        stored = {}
        for store in (s for block in blocks if block.kind == "elements" for s in block.stores):
            if store.name in names:
                stored[store.name] = part.tiles[store.name]
            elif self.chain.is_output(store):
                stored[store.name] = self._new(store.buffer, "part", self.plan.vector)

        def step(b: Any, at: Any) -> Any:
            steps = [self._moved(x, temps[x.name], (), at) for x in loads if not x.by_row]
            steps.append(
                _unrolled(
                    self.plan.vector,
                    lambda v: sequence(self._element(part, blocks, stored, temps, b, at, v)),
                )
            )
            for store in (s for block in blocks for s in block.stores):
                if store.name in stored and self.chain.is_output(store):
                    place = (b,) if store.name in part.tiles else ()
                    steps.append(
                        self._stored_row(self._moved(store, stored[store.name], place, at))
                    )
            return sequence(steps)

        done.append(self._each_step(part, base, step))
        body = sequence(done)
        return tirx.For(chunk, 0, chunks, tirx.ForKind.SERIAL, body) if is_loop else body

    def _fill(
        self, part: _Part, load: RowLoad, kept: Any, base: Any, *, is_first: bool
    ) -> list[Any]:
        """Load a batch; from shared memory, what an earlier sweep has kept there."""
        tile = part.tiles[load.name]
        width = min(self.plan.vector, MAX_ACCESS_BYTES // element_bytes(tile))

        def shared(b: Any, at: Any) -> Any:
            place = at - part.first, self.side, self.lane
            if is_first:
                put = lambda v: _store(kept, _load(tile, b, v), *place, v)  # noqa: E731
            else:
                put = lambda v: _store(tile, _load(kept, *place, v), b, v)  # noqa: E731
            return self._vectors(width, put)

        def fresh(b: Any, at: Any) -> Any:
            return self._moved(load, tile, (b,), at)

        ways = ([fresh] if kept is None or is_first else []) + (
            [shared] if kept is not None else []
        )
        return [self._each_step(part, base, way) for way in ways]

    def _element(
        self, part: _Part, blocks: Any, stored: Any, temps: Any, b: Any, step: Any, v: Any
    ) -> list[Any]:
        """Compute what blocks make of one element."""
        values = self._values(step, v)
        values |= {name: _load(tile, v) for name, tile in temps.items()}
        values |= {name: _load(tile, b, v) for name, tile in part.tiles.items()}
        held = [store.name for store in self.held if store.name in part.tiles]
        done = []
        for block in blocks:
            worth = [
                substitute(self.traffic.expanded(store.value, held), values)
                for store in block.stores
            ]
            if block.kind == "sum":
                done += self._update(block, worth)
                continue
            for store, value in zip(block.stores, worth, strict=True):
                if store.name in stored:
                    at = (b, v) if store.name in part.tiles else (v,)
                    done.append(_store(stored[store.name], value, *at))
        return done

    # Results of rows.

    def _row_block(self, block: RowBlock) -> Any:
        values = self._values()
        done = [_store(self._result(s), substitute(s.value, values), 0) for s in block.stores]
        return sequence([*done, *self._leave(block)])

    def _result(self, store: RowStore) -> Any:
        self.results[store.name] = self._new(store.buffer, "result", 1)
        return self.results[store.name]

    def _leave(self, block: RowBlock) -> list[Any]:
        """Store results that leave the kernel, from the first lane of a row."""
        values = self._values()
        done = []
        for store in block.stores:
            if self.chain.is_output(store):
                at = [substitute(index, values) for index in store.indices]
                done.append(_store(store.buffer, _load(self.results[store.name], 0), *at))
        if not done:
            return []
        return [tirx.IfThenElse(self._is_first(), self._stored_row(sequence(done)), None)]

    def _is_first(self, lanes: int = 0) -> Any:
        lane = tirx.floormod(self.lane, lanes) if lanes else self.lane
        return tirx.EQ(lane, tirx.const(0, "int32"))

    def _start(self, block: RowBlock) -> Any:
        assert block.reducer is not None
        pairs = zip(block.stores, block.reducer.starts, strict=True)
        return sequence([_store(self._result(store), start, 0) for store, start in pairs])

    def _update(self, block: RowBlock, others: Sequence[Any]) -> list[Any]:
        """Combine results with others."""
        assert block.reducer is not None
        own = [self.results[store.name] for store in block.stores]
        old = [_load(result, 0) for result in own]
        if len(own) == 1:
            return [_store(own[0], block.reducer.combine(old, others)[0], 0)]
        given, new = ([tirx.Var(n, result.dtype) for result in own] for n in ("given", "new"))
        named = [*zip(given, others, strict=True)]
        named += zip(new, block.reducer.combine(old, given), strict=True)
        done = [tirx.Bind(name, value) for name, value in named]
        return done + [_store(result, value, 0) for result, value in zip(own, new, strict=True)]

    def _combine(self, block: RowBlock) -> list[Any]:
        """Combine what the lanes of a row have: by shuffles, and of warps in shared memory."""
        warps = self.plan.lanes // WARP_SIZE
        done = self._shuffle(block, min(self.plan.lanes, WARP_SIZE))
        if warps > 1:
            # Every warp has what each warp found, a lane each.
            own = [self.results[store.name] for store in block.stores]
            shape = self.plan.rows, warps
            boards = [self._new(s.buffer, "warps", *shape, at="shared") for s in block.stores]
            pairs = list(zip(boards, own, strict=True))
            warp, other = tirx.floordiv(self.lane, WARP_SIZE), tirx.floormod(self.lane, warps)
            put = [_store(board, _load(result, 0), self.side, warp) for board, result in pairs]
            done.append(tirx.IfThenElse(self._is_first(WARP_SIZE), sequence(put), None))
            done += [_store(result, _load(board, self.side, other), 0) for board, result in pairs]
            done += self._shuffle(block, warps)
        return [*done, *self._leave(block)]

    def _shuffle(self, block: RowBlock, lanes: int) -> list[Any]:
        done = []
        for power in reversed(range(lanes.bit_length() - 1)):
            own = [_load(self.results[store.name], 0) for store in block.stores]
            done += self._update(block, [_of_lane(value, 1 << power) for value in own])
        return done

    def write(self, name: str) -> Any:
        """Write the sweeps into a block, and bind its loops."""
        chain, plan = self.chain, self.plan
        done = [stmt for level in range(chain.levels) for stmt in self._level(level)]
        stores = [s for block in chain.blocks for s in block.stores if chain.is_output(s)]
        touched = ({one.buffer.name: one.buffer for one in x} for x in (chain.loads, stores))
        reads, writes = ([whole_region(buffer) for buffer in x.values()] for x in touched)
        block = s_tir.SBlock([], reads, writes, name, sequence(done), None, self.buffers, [], {})
        stmt: Any = s_tir.SBlockRealize([], tirx.const(True, "bool"), block)
        blocks = tvm.sym.Analyzer().simplify(tirx.ceildiv(self.rows, plan.rows)).astype("int32")
        bound = {MIN_BLOCKS: plan.resident} if plan.threads >= _LARGE_BLOCK else {}
        for var, extent, tag, notes in (
            (self.lane, plan.lanes, "threadIdx.x", {}),
            (self.side, plan.rows, "threadIdx.y", {}),
            (self.grid, blocks, "blockIdx.x", bound),
        ):
            thread = tirx.IterVar(None, tirx.Var("", "int32"), tirx.IterVar.ThreadIndex, tag)
            stmt = tirx.For(var, 0, extent, tirx.ForKind.THREAD_BINDING, stmt, thread, notes)
        return stmt


def _of_lane(value: Any, distance: int) -> Any:
    """What the lane at a distance has."""
    numbers = tirx.const(distance, "int32"), tirx.const(WARP_SIZE, "int32")
    mask = tirx.const(0xFFFFFFFF, "uint32")
    return tirx.call_intrin(value.ty, ops.CUDA___SHFL_XOR_SYNC, mask, value, *numbers)
