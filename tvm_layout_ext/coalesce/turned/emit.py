"""The kernel of turned tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

from tvm import s_tir, tirx

from ...gpu.hardware import WARP_SIZE
from ...ir.annotations import INSTRUCTIONS
from ...ir.rebuild import on_threads, sequence, unrolled, vectorized, whole_region
from ..rows.traffic import unravel
from .move import valued
from .plan import TurnedTile

#: Instructions beside accesses of a vector that is loaded, of one that is stored, and of each of
#: its elements, more where rows of the result begin anywhere.
_STEP, _UNIT, _ELEMENT = 30, 20, (1, 3)


def _load(buffer: Any, *at: Any) -> Any:
    return tirx.BufferLoad(buffer, list(at))


def _store(buffer: Any, value: Any, *at: Any) -> Any:
    return tirx.BufferStore(buffer, value, list(at))


class TurnedKernel:
    """Writes the kernel of a tile."""

    def __init__(self, tile: TurnedTile) -> None:
        self.tile, self.turn, self.plan = tile, tile.turn, tile.plan
        self.thread, self.grid = tirx.Var("thread", "int32"), tirx.Var("block", "int32")
        turn, plan = self.turn, self.plan
        most = max(prod(int(n) for n in x.shape) for x in (turn.source, turn.target))
        # Tiles reach over the ends of both.
        beyond = 2 * max(tile.columns * turn.column.load, plan.row * turn.row.store)
        self.kind = "int32" if most + beyond < 1 << 31 else turn.kind
        first, at_row, at_column = unravel(self.grid, tile.grid)
        places = unravel(first, [dim.extent for dim in turn.outer])
        self.row = at_row * plan.row
        self.column = at_column * plan.column
        start, put = (self._wide(x) for x in turn.starts)
        for dim, at in zip(turn.outer, places, strict=True):
            start, put = start + self._wide(at) * dim.load, put + self._wide(at) * dim.store
        first_column = self._wide(self.column - tile.margin)
        #: Elements of source and result before those of a row, where the tile begins.
        self.start = start + self._wide(self.row) + first_column * turn.column.load
        self.put = put + self._wide(self.row) * turn.row.store + self._wide(self.column)
        #: How far into a vector the tile begins.
        self.shift = tirx.floormod(self.start, turn.load_vector).astype("int32")
        names = (
            ("tile", (tile.elements,), "shared"),
            ("own", (self.steps, turn.load_vector), "local"),
        )
        self.held, self.own = (
            tirx.decl_buffer(
                shape,
                turn.source.dtype,
                f"{turn.source.name}_{name}",
                scope=scope,
                data_alignment=16,
                layout=None,
            )
            for name, shape, scope in names
        )
        name = f"{turn.target.name}_out"
        self.out = tirx.decl_buffer(
            (turn.store_vector,), turn.target.dtype, name, scope="local", layout=None
        )

    def _wide(self, value: Any) -> Any:
        """A number of elements; in the type of the iterators only where 32 bits do not reach."""
        return tirx.const(value, self.kind) if isinstance(value, int) else value.astype(self.kind)

    @property
    def steps(self) -> int:
        """Vectors that a thread loads."""
        return -(-self.tile.columns * self.tile.vectors // self.plan.threads)

    @property
    def units(self) -> int:
        """Vectors that a thread stores."""
        return -(-self.plan.row * self.tile.along // self.plan.threads)

    @property
    def instructions(self) -> int:
        """Of a thread, about, as nvcc 13.0 has them."""
        element = _ELEMENT[self.turn.stores_askew]
        return _STEP * self.steps + self.units * (_UNIT + element * self.turn.store_vector)

    def _flat(self, buffer: Any, first: Any, v: Any) -> list[Any]:
        zeros = [tirx.const(0, self.turn.kind)] * (len(buffer.shape) - 1)
        return [*zeros, first.astype(self.turn.kind) + v]

    # Loads.

    def _place(self, column: Any) -> Any:
        """Where an element of the first row lies in the tile."""
        steps = (
            tirx.floordiv(column, self.turn.store_vector) * self.tile.step if self.tile.step else 0
        )
        return self.shift + column * self.tile.pitch + steps

    def _each(self, body: Callable[..., Any], loop: Callable[..., Any] = unrolled) -> Any:
        """Do something for each vector of a thread: by its number, column, first element, place."""
        tile, vector = self.tile, self.turn.load_vector

        def step(n: Any) -> Any:
            number = n * self.plan.threads + self.thread
            column, along = unravel(number, (tile.columns, tile.vectors))
            start = self.start + self._wide(column) * self.turn.column.load
            first = tirx.floordiv(start, vector) * vector + self._wide(along * vector)
            place = tirx.floordiv(self._place(column), vector) * vector + along * vector
            inside = []
            if tile.columns * tile.vectors % self.plan.threads:
                inside.append(number < tile.columns * tile.vectors)
            at = self.column - tile.margin + column
            if tile.margin:
                inside.append(at >= 0)
            if tile.margin or self.turn.column.extent % self.plan.column:
                inside.append(at < self.turn.column.extent)
            if self.turn.row.extent % self.plan.row or self.turn.loads_askew:
                end = start + self._wide(tirx.const(self.turn.row.extent, "int32") - self.row)
                inside.append(first < end)
            return body(n, first, place, inside)

        return loop(self.steps, step)

    def _when(self, conditions: list[Any], done: Any) -> Any:
        return tirx.IfThenElse(tirx.all(*conditions), done, None) if conditions else done

    def _loads(self) -> Iterator[Any]:
        source, vector = self.turn.source, self.turn.load_vector
        size = prod(int(n) for n in source.shape)

        def load(n: Any, first: Any, _: Any, inside: list[Any]) -> Any:
            whole = [first + vector <= size] if size % vector else []
            return self._when(
                [*inside, *whole],
                vectorized(
                    vector,
                    lambda v: _store(self.own, _load(source, *self._flat(source, first, v)), n, v),
                ),
            )

        def put(n: Any, _: Any, place: Any, inside: list[Any]) -> Any:
            return self._when(
                inside,
                vectorized(vector, lambda v: _store(self.held, _load(self.own, n, v), place + v)),
            )

        yield self._each(load)
        yield self._each(put)
        if size % vector:
            yield self._last(size)

    def _last(self, size: int) -> Any:
        """Load what the source has after its last whole vector; one block of all has it."""
        vector, source = self.turn.load_vector, self.turn.source
        end = size // vector * vector

        def serial(extent: int, body: Callable[[Any], Any]) -> Any:
            var = tirx.Var("i", "int32")
            return tirx.For(var, 0, extent, tirx.ForKind.SERIAL, body(var))

        def copy(_: Any, first: Any, place: Any, inside: list[Any]) -> Any:
            each = unrolled(
                size % vector,
                lambda v: _store(
                    self.held, _load(source, *self._flat(source, first, v)), place + v
                ),
            )
            return self._when([*inside, tirx.EQ(first, self._wide(end))], each)

        tile = self.tile
        reach = self.start + self._wide(
            tirx.const(tile.columns * self.turn.column.load + tile.vectors * vector, self.turn.kind)
        )
        return tirx.IfThenElse(reach >= end, self._each(copy, serial), None)

    # Stores.

    def _stores(self) -> Any:
        tile, plan, turn = self.tile, self.plan, self.turn
        vector, along = turn.store_vector, tile.along
        lanes, others = tile.lanes, WARP_SIZE // max(1, tile.lanes)
        units = plan.row * along
        in_patches = lanes and units % WARP_SIZE == 0 and plan.row % others == 0

        def unit(n: Any) -> Any:
            number = n * plan.threads + self.thread
            if in_patches:
                patch, lane = tirx.floordiv(number, WARP_SIZE), tirx.floormod(number, WARP_SIZE)
                near = along // lanes
                place = tirx.floormod(patch, near) * lanes + tirx.floormod(lane, lanes)
                row = tirx.floordiv(patch, near) * others + tirx.floordiv(lane, lanes)
            else:
                row, place = unravel(number, (plan.row, along))
            inside = [number < units] if units % plan.threads else []
            if turn.row.extent % plan.row:
                inside.append(self.row + row < turn.row.extent)
            return self._when(inside, self._unit(row, place * vector))

        return unrolled(self.units, unit)

    def _unit(self, row: Any, first: Any) -> Any:
        """Store one vector of a row of the result."""
        tile, turn = self.tile, self.turn
        vector, target, extent = turn.store_vector, turn.target, turn.column.extent
        put = self.put + self._wide(row) * turn.row.store
        skew: Any = tirx.const(0, "int32")
        if turn.stores_askew:
            skew = tirx.floormod(put, turn.unit).astype("int32")
        begin = first - skew + tile.margin
        fill = unrolled(
            vector,
            lambda v: _store(
                self.out,
                valued(turn.value, turn.load, _load(self.held, self._place(begin + v) + row)),
                v,
            ),
        )
        at, column = put + self._wide(first - skew), self.column + first - skew

        def element(v: Any) -> Any:
            return _store(target, _load(self.out, v), *self._flat(target, at, v))

        whole = vectorized(vector, element)
        if not turn.cuts_vectors:
            ends = [column >= 0] if turn.stores_askew else []
            if turn.stores_askew or extent % self.plan.column:
                ends.append(column < extent)
            return sequence([fill, self._when(ends, whole)])
        parts = unrolled(
            vector,
            lambda v: tirx.IfThenElse(
                tirx.And(column + v >= 0, column + v < extent), element(v), None
            ),
        )
        is_whole = tirx.And(column >= 0, column + vector <= extent)
        return sequence([fill, tirx.IfThenElse(is_whole, whole, parts)])

    def write(self, name: str, notes: dict[str, Any]) -> Any:
        """Write loads and stores into a block, and bind its loops."""
        body = sequence([*self._loads(), self._stores()])
        reads, writes = ([whole_region(x)] for x in (self.turn.source, self.turn.target))
        buffers = [self.held, self.own, self.out]
        notes = {**notes, INSTRUCTIONS: self.instructions}
        block = s_tir.SBlock([], reads, writes, name, body, None, buffers, [], notes)
        axes = (
            (self.thread, self.plan.threads, "threadIdx.x"),
            (self.grid, prod(self.tile.grid), "blockIdx.x"),
        )
        return on_threads(block, axes)
