"""The kernel of a chain of rows: sweeps along the row, and between them sums over its threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import tvm
from tvm import s_tir, tirx

from ...analysis.nest import element_bytes
from ...gpu.hardware import WARP_SIZE
from ...ir import ops
from ...ir.queries import is_number, substitute, uses
from ...ir.rebuild import sequence, whole_region
from .chain import RowBlock, RowChain, RowLoad, RowStore
from .plan import _TOGETHER, RowPlan, RowTraffic, unravel

_UNROLLED, _VECTORIZED = tirx.ForKind.UNROLLED, tirx.ForKind.VECTORIZED


@dataclass
class _Part:
    """Steps of a row that are kept in one place; ``batch`` of them are loaded together."""

    place: str
    first: int
    steps: int
    batch: int
    #: Registers by the name of the load or the store.
    tiles: dict[Any, Any]
    shared: dict[Any, Any]


class RowKernel:
    """Writes the kernel of one chain."""

    def __init__(self, chain: RowChain, plan: RowPlan) -> None:
        self.chain, self.plan = chain, plan
        self.traffic = RowTraffic(chain)
        self.type = chain.type
        self.buffers: list[Any] = []
        self.lane, self.side, self.grid = (
            tirx.Var(name, "int32") for name in ("lane", "row_of_block", "block")
        )
        #: Results of rows, a register for each of a thread's rows.
        self.results: dict[Any, Any] = {}
        self.is_ragged = plan.steps * plan.lanes * plan.vector != chain.length
        self.row_count = reduce(lambda a, b: a * b, chain.rows, tirx.const(1, self.type))
        self.row_count = tvm.sym.Analyzer().simplify(self.row_count)
        at_once = plan.rows * plan.each
        self.cuts_rows = not tvm.sym.Analyzer().can_prove_equal(
            tirx.floormod(self.row_count, at_once), 0
        )
        self.blocks = tvm.sym.Analyzer().simplify(
            tirx.floordiv(self.row_count + (at_once - 1), at_once)
        )
        self.parts = self._parts()

    def _parts(self) -> list[_Part]:
        plan = self.plan
        again = plan.steps - plan.registers - plan.shared
        parts, first = [], 0
        for place, steps in (("registers", plan.registers), ("shared", plan.shared), ("", again)):
            if not steps:
                continue
            batch = steps
            if place != "registers":
                batch = next(n for n in range(min(_TOGETHER, steps), 0, -1) if steps % n == 0)
            part = _Part(place, first, steps, batch, {}, {})
            first += steps
            held = self.traffic.held if place == "registers" else []
            for one in [*self.traffic.kept, *held]:
                part.tiles[one.name] = self._buffer(one, (plan.each, batch, plan.vector))
            if place == "shared":
                for load in self.traffic.kept:
                    shape = (plan.each, steps, plan.rows, plan.lanes, plan.vector)
                    part.shared[load.name] = self._buffer(load, shape, "shared.dyn")
            parts.append(part)
        return parts

    def _buffer(self, one: Any, shape: Sequence[int], scope: str = "local") -> Any:
        return self._new(f"{one.buffer.name}_row", shape, str(one.buffer.dtype), scope)

    def _new(self, name: str, shape: Sequence[int], dtype: str, scope: str = "local") -> Any:
        buffer = tirx.decl_buffer(tuple(shape), dtype, name, scope=scope, layout=None)
        self.buffers.append(buffer)
        return buffer

    # -- places -----------------------------------------------------------------------------

    def _row(self, j: Any, *, clamped: bool) -> Any:
        plan = self.plan
        row = (self.grid * plan.each + j) * plan.rows + self.side
        row = row.astype(self.type)
        return tirx.min(row, self.row_count - 1) if clamped and self.cuts_rows else row

    def _group(self, step: Any) -> Any:
        return (step * self.plan.lanes + self.lane).astype(self.type)

    def _env(self, j: Any, column: Any) -> dict[Any, Any]:
        chain = self.chain
        rows = unravel(self._row(j, clamped=True), chain.rows)
        env = dict(zip(chain.row_vars, rows, strict=True))
        if column is not None:
            env |= dict(zip(chain.column_vars, unravel(column, chain.columns), strict=True))
        env |= {name: tirx.BufferLoad(buffer, [j]) for name, buffer in self.results.items()}
        return env

    def _guarded(self, step: Any, body: Any) -> Any:
        if not self.is_ragged:
            return body
        return tirx.IfThenElse(
            self._group(step) < self.chain.length // self.plan.vector, body, None
        )

    def _stored_rows(self, j: Any, body: Any) -> Any:
        if not self.cuts_rows:
            return body
        return tirx.IfThenElse(self._row(j, clamped=False) < self.row_count, body, None)

    # -- sweeps -----------------------------------------------------------------------------

    def _level(self, level: int) -> list[Any]:
        blocks = [block for block in self.chain.blocks if block.level == level]
        done = [stmt for b in blocks if b.kind == "row" for stmt in self._row_block(b)]
        blocks = [block for block in blocks if block.kind != "row"]
        if not blocks:
            return done
        sums = [block for block in blocks if block.kind == "sum"]
        for block in sums:
            done += self._starts(block)
        loads = [x for x in self.chain.loads if self._is_used(x.name, blocks)]
        for part in self.parts:
            done += self._sweep(part, level, blocks, loads)
        for block in sums:
            done += self._combine(block)
        return done

    def _is_used(self, name: Any, blocks: Sequence[RowBlock]) -> bool:
        """Whether a name is asked for, also through elements that are computed anew."""
        for block in blocks:
            for store in block.stores:
                if uses(self._expanded(store.value, held=()), name):
                    return True
        return False

    def _expanded(self, value: Any, held: Sequence[Any]) -> Any:
        """Put the values of elements in the place of their names, but for those that are held."""
        for block in reversed(self.chain.blocks):
            if block.kind == "elements":
                for store in block.stores:
                    if not any(store.name.same_as(name) for name in held):
                        value = substitute(value, {store.name: store.value})
        return value

    def _sweep(self, part: _Part, level: int, blocks: Any, loads: Sequence[RowLoad]) -> list[Any]:
        chunk = tirx.Var("chunk", "int32")
        is_loop = part.place != "registers"
        base = part.first + (chunk * part.batch if is_loop else 0)
        rows = [x for x in loads if x.by_row]
        if part.place == "registers":
            rows = [x for x in rows if self._first_use(x) == level]
        done = [stmt for x in rows for stmt in self._fill(part, x, base, level)]
        done.append(self._compute(part, base, level, blocks, [x for x in loads if not x.by_row]))
        body = sequence(done)
        if not is_loop:
            return [body]
        return [tirx.For(chunk, 0, part.steps // part.batch, tirx.ForKind.SERIAL, body)]

    def _first_use(self, load: RowLoad) -> int:
        levels = range(self.chain.levels)
        of = ([b for b in self.chain.blocks if b.level == n and b.kind != "row"] for n in levels)
        return next(n for n, blocks in enumerate(of) if self._is_used(load.name, blocks))

    def _fill(self, part: _Part, load: RowLoad, base: Any, level: int) -> list[Any]:
        """Load a batch; of shared memory, what an earlier sweep has put there."""
        j, b = (tirx.Var(name, "int32") for name in ("j", "b"))
        tile, step = part.tiles[load.name], base + b
        shared = part.shared.get(load.name)
        first = self._first_use(load) == level
        at = [j, step - part.first, self.side, self.lane]
        if shared is not None and not first:
            width = self._narrowed(shared)
            copy = self._vectors(
                width,
                lambda v: tirx.BufferStore(tile, tirx.BufferLoad(shared, [*at, v]), [j, b, v]),
            )
            return [self._rows_steps(j, b, part.batch, self._guarded(step, copy))]
        fill = self._load(load, tile, [j, b], j, step)
        done = [self._rows_steps(j, b, part.batch, self._guarded(step, fill))]
        if shared is not None:
            j, b = (tirx.Var(name, "int32") for name in ("j", "b"))
            step = base + b
            at = [j, step - part.first, self.side, self.lane]
            width = self._narrowed(shared)
            keep = self._vectors(
                width,
                lambda v: tirx.BufferStore(shared, tirx.BufferLoad(tile, [j, b, v]), [*at, v]),
            )
            done.append(self._rows_steps(j, b, part.batch, self._guarded(step, keep)))
        return done

    def _narrowed(self, buffer: Any) -> int:
        """Elements of one access of shared memory or registers."""
        return min(self.plan.vector, 16 // element_bytes(buffer))

    def _load(self, load: RowLoad, tile: Any, at: list[Any], j: Any, step: Any) -> Any:
        width = self.traffic.width(load.buffer, load.indices, self.plan.vector)

        def one(v: Any) -> Any:
            env = self._env(j, self._group(step) * self.plan.vector + v)
            indices = [substitute(index, env) for index in load.indices]
            return tirx.BufferStore(tile, tirx.BufferLoad(load.buffer, indices), [*at, v])

        return self._vectors(width, one)

    def _vectors(self, width: int, one: Any) -> Any:
        """Do something for every element of a step, so many at a time."""
        outer, inner = (tirx.Var(name, "int32") for name in ("part", "v"))
        if width == 1:
            return tirx.For(outer, 0, self.plan.vector, _UNROLLED, one(outer))
        if width == self.plan.vector:
            return tirx.For(inner, 0, width, _VECTORIZED, one(inner))
        body = tirx.For(inner, 0, width, _VECTORIZED, one(outer * width + inner))
        return tirx.For(outer, 0, self.plan.vector // width, _UNROLLED, body)

    def _rows_steps(self, j: Any, b: Any, steps: int, body: Any) -> Any:
        inner = tirx.For(b, 0, steps, _UNROLLED, body)
        return tirx.For(j, 0, self.plan.each, _UNROLLED, inner)

    def _compute(
        self, part: _Part, base: Any, level: int, blocks: Any, loads: Sequence[RowLoad]
    ) -> Any:
        """Compute what a level makes of the elements of a batch."""
        j, b, v = (tirx.Var(name, "int32") for name in ("j", "b", "v"))
        step = base + b
        temps = {
            x.name: self._new(f"{x.buffer.name}_part", [self.plan.vector], str(x.buffer.dtype))
            for x in loads
        }
        done = [self._load(x, temps[x.name], [], j, step) for x in loads]
        env = self._env(j, self._group(step) * self.plan.vector + v)
        env |= {name: tirx.BufferLoad(tile, [v]) for name, tile in temps.items()}
        env |= {name: tirx.BufferLoad(tile, [j, b, v]) for name, tile in part.tiles.items()}
        made = [s for s in self.traffic.held if s.name in part.tiles]
        per_element: list[Any] = []
        stored: list[tuple[RowStore, Any, list[Any]]] = []
        for block in blocks:
            for store in block.stores:
                own = block.kind == "elements"
                held = [s.name for s in made if not s.name.same_as(store.name)]
                value = substitute(self._expanded(store.value, held), env)
                if own and any(s.name.same_as(store.name) for s in made):
                    tile, at = part.tiles[store.name], [j, b]
                    per_element.append(tirx.BufferStore(tile, value, [*at, v]))
                elif own and self.chain.is_output(store):
                    tile, at = (
                        self._new(
                            f"{store.buffer.name}_part", [self.plan.vector], str(store.buffer.dtype)
                        ),
                        [],
                    )
                    per_element.append(tirx.BufferStore(tile, value, [v]))
                else:
                    continue
                if self.chain.is_output(store):
                    stored.append((store, tile, at))
            if block.kind == "sum":
                held = [s.name for s in made]
                parts = [substitute(self._expanded(s.value, held), env) for s in block.stores]
                per_element += self._update(block, j, parts)
        if per_element:
            done.append(tirx.For(v, 0, self.plan.vector, _UNROLLED, sequence(per_element)))
        done += [self._put(store, tile, at, j, step) for store, tile, at in stored]
        return self._rows_steps(j, b, part.batch, self._guarded(step, sequence(done)))

    def _put(self, store: RowStore, tile: Any, at: list[Any], j: Any, step: Any) -> Any:
        width = self.traffic.width(store.buffer, store.indices, self.plan.vector)

        def one(v: Any) -> Any:
            env = self._env(j, self._group(step) * self.plan.vector + v)
            indices = [substitute(index, env) for index in store.indices]
            return tirx.BufferStore(store.buffer, tirx.BufferLoad(tile, [*at, v]), indices)

        return self._stored_rows(j, self._vectors(width, one))

    # -- results of rows --------------------------------------------------------------------

    def _row_block(self, block: RowBlock) -> list[Any]:
        j = tirx.Var("j", "int32")
        env, done = self._env(j, None), []
        for store in block.stores:
            value = substitute(store.value, env)
            buffer = self._new(str(store.buffer.name), [self.plan.each], str(store.buffer.dtype))
            done.append(tirx.BufferStore(buffer, value, [j]))
            self.results[store.name] = buffer
        done += self._leave(block, j)
        return [tirx.For(j, 0, self.plan.each, _UNROLLED, sequence(done))]

    def _leave(self, block: RowBlock, j: Any) -> list[Any]:
        """Store results that leave the kernel, from the first lane of a row."""
        env, done = self._env(j, None), []
        for store in block.stores:
            if self.chain.is_output(store):
                at = [substitute(index, env) for index in store.indices]
                value = tirx.BufferLoad(self.results[store.name], [j])
                done.append(tirx.BufferStore(store.buffer, value, at))
        if not done:
            return []
        stored = self._stored_rows(j, sequence(done))
        is_first = tirx.EQ(self.lane, tirx.const(0, "int32"))
        return [stored if self.plan.lanes == 1 else tirx.IfThenElse(is_first, stored, None)]

    def _starts(self, block: RowBlock) -> list[Any]:
        j = tirx.Var("j", "int32")
        done = []
        for store, start in zip(block.stores, block.reducer.starts, strict=True):
            buffer = self._new(str(store.buffer.name), [self.plan.each], str(store.buffer.dtype))
            self.results[store.name] = buffer
            done.append(tirx.BufferStore(buffer, start, [j]))
        return [tirx.For(j, 0, self.plan.each, _UNROLLED, sequence(done))]

    def _update(self, block: RowBlock, j: Any, others: Sequence[Any]) -> list[Any]:
        """Combine results with others."""
        own = [self.results[store.name] for store in block.stores]
        left = [tirx.BufferLoad(buffer, [j]) for buffer in own]
        if len(own) == 1:
            (value,) = block.reducer.combine(left, others)
            return [tirx.BufferStore(own[0], value, [j])]
        named = [tirx.Var("with", buffer.dtype) for buffer in own]
        after = [tirx.Var("then", buffer.dtype) for buffer in own]
        done: list[Any] = [tirx.Bind(n, x) for n, x in zip(named, others, strict=True)]
        values = block.reducer.combine(left, named)
        done += [tirx.Bind(n, x) for n, x in zip(after, values, strict=True)]
        return done + [tirx.BufferStore(b, n, [j]) for b, n in zip(own, after, strict=True)]

    def _combine(self, block: RowBlock) -> list[Any]:
        """Combine what the lanes of a row have: by shuffles, and of warps in shared memory."""
        plan = self.plan
        done = self._shuffled(block, min(plan.lanes, WARP_SIZE))
        warps = plan.lanes // WARP_SIZE
        if warps > 1:
            done += self._across(block, warps)
            done += self._shuffled(block, warps)
        j = tirx.Var("j", "int32")
        leaving = self._leave(block, j)
        if leaving:
            done.append(tirx.For(j, 0, plan.each, _UNROLLED, sequence(leaving)))
        return done

    def _shuffled(self, block: RowBlock, lanes: int) -> list[Any]:
        done = []
        distance = lanes // 2
        while distance:
            j = tirx.Var("j", "int32")
            others = [
                _shuffle(tirx.BufferLoad(self.results[s.name], [j]), distance) for s in block.stores
            ]
            body = sequence(self._update(block, j, others))
            done.append(tirx.For(j, 0, plan_each(self.plan), _UNROLLED, body))
            distance //= 2
        return done

    def _across(self, block: RowBlock, warps: int) -> list[Any]:
        """Let every warp have what each warp of the row found, a lane each."""
        plan, j = self.plan, tirx.Var("j", "int32")
        puts, gets = [], []
        k = tirx.Var("k", "int32")
        for store in block.stores:
            shape = (plan.each, plan.rows, warps)
            name, own = f"{store.buffer.name}_warps", self.results[store.name]
            board = self._new(name, shape, str(store.buffer.dtype), "shared")
            warp = tirx.floordiv(self.lane, WARP_SIZE)
            puts.append(tirx.BufferStore(board, tirx.BufferLoad(own, [j]), [j, self.side, warp]))
            at = [k, self.side, tirx.floormod(self.lane, warps)]
            gets.append(tirx.BufferStore(own, tirx.BufferLoad(board, at), [k]))
        is_first = tirx.EQ(tirx.floormod(self.lane, WARP_SIZE), tirx.const(0, "int32"))
        put = tirx.For(j, 0, plan.each, _UNROLLED, sequence(puts))
        return [
            tirx.IfThenElse(is_first, put, None),
            tirx.For(k, 0, plan.each, _UNROLLED, sequence(gets)),
        ]

    # -- the whole --------------------------------------------------------------------------

    def write(self, name: str) -> Any:
        """The kernel as one statement."""
        done = [stmt for level in range(self.chain.levels) for stmt in self._level(level)]
        stores = [s for b in self.chain.blocks for s in b.stores if self.chain.is_output(s)]
        reads = {x.buffer.__chandle__(): x.buffer for x in self.chain.loads}
        block = s_tir.SBlock(
            [],
            [whole_region(buffer) for buffer in reads.values()],
            [whole_region(store.buffer) for store in stores],
            name,
            sequence(done),
            None,
            self.buffers,
            [],
            {},
        )
        stmt: Any = s_tir.SBlockRealize([], tirx.const(True, "bool"), block)
        for var, extent, tag in (
            (self.lane, self.plan.lanes, "threadIdx.x"),
            (self.side, self.plan.rows, "threadIdx.y"),
            (self.grid, self.blocks, "blockIdx.x"),
        ):
            thread = tirx.IterVar(None, tirx.Var("", "int32"), tirx.IterVar.ThreadIndex, tag)
            kind = tirx.ForKind.THREAD_BINDING
            stmt = tirx.For(var, 0, extent, kind, stmt, thread)
        return stmt


def plan_each(plan: RowPlan) -> int:
    return plan.each


def _shuffle(value: Any, distance: int) -> Any:
    """What the lane at a distance has."""
    mask = tirx.const(0xFFFFFFFF, "uint32")
    return tirx.call_intrin(
        value.ty, ops.CUDA___SHFL_XOR_SYNC, mask, value, tirx.const(distance, "int32"),
        tirx.const(WARP_SIZE, "int32"),
    )  # fmt: skip
