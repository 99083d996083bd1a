"""Read what a schedule for warpgroups asks for: operands, tile, loops, and what becomes of sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import sym, tirx
from tvm.s_tir import SBlockRealize

from ...errors import ScheduleError
from ...intrin.warpgroups import WarpgroupInstruction, warpgroup_instruction
from ...ir import ops
from ...ir.annotations import ASYNC_COPY, NUM_STAGES, PERSISTENT, PRODUCERS, RASTERIZE, WARPGROUP
from ...ir.conditions import conjuncts, is_zero
from ...ir.queries import are_equal, blocks_in, loads_in, thread_tag, uses


@dataclass(frozen=True)
class TiledOperand:
    """A factor of the product: the matrix in global memory, and whether its rows lie along K.

    ``extents`` are those of the part that is read, zeros around it filling tiles up.
    """

    buffer: Any
    extents: tuple[int, int]
    k_major: bool
    stages: int

    @property
    def sizes(self) -> tuple[int, int]:
        """Rows or columns of the product, and K."""
        return self.extents if self.k_major else (self.extents[1], self.extents[0])


@dataclass(frozen=True)
class SumsReader:
    """What becomes of a sum: a store of a value, in the variables ``row`` and ``column``."""

    store: Any
    sums: Any
    row: Any
    column: Any

    @property
    def is_plain(self) -> bool:
        """Whether the result lies by rows and columns as the sums do."""
        return _same(self.store.indices, (self.row, self.column))

    @property
    def reads_more(self) -> bool:
        """Whether it depends on elements of other buffers."""
        return any(not one.source.same_as(self.sums) for one in loads_in(self.store.value))


@dataclass(frozen=True)
class Kernel:
    """A product that warpgroups compute, as its schedule has it.

    ``pieces`` counts the 64 rows that one of the ``consumers`` has of a tile; ``sizes`` are M, N
    and K without what fills tiles up.
    """

    instruction: WarpgroupInstruction
    a: TiledOperand
    b: TiledOperand
    result: SumsReader
    consumers: int
    pieces: int
    group: int
    persistent: bool
    sizes: tuple[int, int, int]


@dataclass(frozen=True)
class _Loops:
    """The loops around a tile."""

    rows: Any
    columns: Any
    warpgroups: Any
    steps: Any
    pieces: Any


def multiplies(stmt: Any) -> bool:
    """Whether a statement holds a tile of a warpgroup."""
    return any(WARPGROUP in block.annotations for block in blocks_in(stmt))


def read_kernel(nest: Any) -> Kernel:
    """Read the loop nest of a kernel.

    Raises
    ------
    ScheduleError
        If the nest has another form than ``use_tensor_core(block, "wgmma")`` and the primitives
        after it make.
    """
    return _Reader(nest).read()


class _Reader:
    def __init__(self, nest: Any) -> None:
        self.nest = nest
        self.loops: list[Any] = []
        self.realize = self._descend(nest)
        self.block = self.realize.block
        self.name = f"Block {self.block.name_hint}"

    def _descend(self, stmt: Any) -> Any:
        """Find the product, and the loops around it."""
        if isinstance(stmt, tirx.For):
            self.loops.append(stmt)
            return self._descend(stmt.body)
        if isinstance(stmt, tirx.SeqStmt):
            return self._descend(next(one for one in stmt.seq if multiplies(one)))
        if isinstance(stmt, SBlockRealize) and WARPGROUP in stmt.block.annotations:
            return stmt
        raise ScheduleError(
            "A tile of wgmma stands inside another block or a condition; only loops may be around "
            "it."
        )

    def read(self) -> Kernel:
        loops = self._roles()
        row, _, depth = (one.var for one in self.block.iter_vars[-3:])
        sums = self.block.writes[0].source
        factors = [one for one in self.block.reads if not one.source.same_as(sums)]
        factors.sort(key=lambda one: not any(uses(at.min, row) for at in one.region))
        a, b = (self._operand(one, depth) for one in factors)
        (m, k), (n, _) = a.sizes, b.sizes
        return Kernel(
            warpgroup_instruction(str(self.block.annotations[WARPGROUP])),
            a,
            b,
            self._result(sums, (m, n)),
            consumers=int(loops.warpgroups.extent),
            pieces=1 if loops.pieces is None else int(loops.pieces.extent),
            group=self._annotation(RASTERIZE, 1),
            persistent=bool(self._annotation(PERSISTENT, 0)),
            sizes=(m, n, k),
        )

    def _annotation(self, key: str, default: int) -> int:
        found = [int(loop.annotations[key]) for loop in self.loops if key in loop.annotations]
        return found[0] if found else default

    def _roles(self) -> _Loops:
        by_tag = {thread_tag(loop): loop for loop in self.loops if thread_tag(loop)}
        serial = [loop for loop in self.loops if not thread_tag(loop)]
        m, n, k = self.realize.iter_values[-3:]
        grid = [by_tag.get(f"blockIdx.{axis}") for axis in "yx"]
        if None in grid:
            raise ScheduleError(
                f"{self.name} is computed by warpgroups; bind its loops of rows and columns to "
                "blockIdx.y and blockIdx.x, as sch.rasterize does."
            )
        group = by_tag.get("threadIdx.y")
        if group is None or PRODUCERS not in group.annotations:
            raise ScheduleError(
                f"{self.name} multiplies by wgmma, and copies need a warpgroup of their own: "
                "call sch.specialize_warps on the loop over its warpgroups."
            )
        steps, pieces = (
            next((loop for loop in serial if uses(value, loop.loop_var)), None) for value in (k, m)
        )
        found = _Loops(*grid, group, steps, pieces)
        used = [loop for loop in vars(found).values() if loop is not None]
        for loop in self.loops:
            if int(loop.extent) > 1 and not any(loop.same_as(one) for one in used):
                raise ScheduleError(
                    f"Loop {loop.loop_var.name} around {self.name} is none of rows, columns, "
                    "warpgroups, steps along K and 64 rows of a warpgroup."
                )
        self._check_values((m, n, k), found)
        return found

    def _check_values(self, values: Sequence[Any], loops: _Loops) -> None:
        """Check that tiles follow each other as blocks, warpgroups and pieces do."""
        analyzer = sym.Analyzer()
        for loop in self.loops:
            analyzer.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent))
        rows = loops.rows.loop_var * loops.warpgroups.extent + loops.warpgroups.loop_var
        if loops.pieces is not None:
            rows = rows * loops.pieces.extent + loops.pieces.loop_var
        depth = 0 if loops.steps is None else loops.steps.loop_var
        wanted = (rows, loops.columns.loop_var, depth)
        for what, value, expected in zip(("rows", "columns", "K"), values, wanted, strict=True):
            if not analyzer.can_prove_equal(value, expected):
                raise ScheduleError(
                    f"{self.name} counts its tiles of {what} as {value}; warpgroups take "
                    f"{expected}."
                )

    def _operand(self, region: Any, depth: Any) -> TiledOperand:
        blocks = blocks_in(self.nest)
        copies = [
            one for one in blocks if one.writes and one.writes[0].source.same_as(region.source)
        ]
        if len(copies) != 1:
            raise ScheduleError(
                f"Buffer {region.source.name} is filled by {len(copies)} blocks inside the kernel "
                f"of {self.name}; one copy must fill it there: use sch.compute_at."
            )
        (copy,) = copies
        source, extents = _copied(copy)
        if copy.annotations.get(ASYNC_COPY, None) == 0:
            raise ScheduleError(
                f"Block {copy.name_hint} shall not copy asynchronously, but wgmma reads what TMA "
                "copied."
            )
        k_major = uses(region.region[-1].min, depth)
        return TiledOperand(source, extents, k_major, int(copy.annotations.get(NUM_STAGES, 1)))

    def _result(self, sums: Any, sizes: tuple[int, int]) -> SumsReader:
        inside = blocks_in(self.block)
        readers = [
            one
            for one in blocks_in(self.nest)
            if not any(one.same_as(part) for part in inside)
            and any(region.source.same_as(sums) for region in one.reads)
        ]
        if len(readers) != 1 or not isinstance(readers[0].body, tirx.BufferStore):
            raise ScheduleError(
                f"The sums of {self.name} are read by {len(readers)} blocks inside its kernel; one "
                "statement must read them there: use sch.reverse_compute_at."
            )
        store = readers[0].body
        load = next(one for one in loads_in(store.value) if one.source.same_as(sums))
        if len(load.indices) != 2 or not all(isinstance(at, tirx.Var) for at in load.indices):
            raise ScheduleError(
                f"Block {readers[0].name_hint} reads {load}; warpgroups compute matrices, whose "
                "rows and columns are iterators."
            )
        every = {one.var.__chandle__(): int(one.dom.extent) for one in readers[0].iter_vars}
        found = tuple(every.pop(at.__chandle__()) for at in load.indices)
        if found != sizes or any(extent > 1 for extent in every.values()):
            raise ScheduleError(
                f"Block {readers[0].name_hint} reads {found} of the sums, which are {sizes}; it "
                "must read each of them once."
            )
        return SumsReader(store, sums, *load.indices)


def _copied(copy: Any) -> tuple[Any, tuple[int, int]]:
    """What a block copies: a matrix, and how much of it; zeros may be around.

    Raises
    ------
    ScheduleError
        If it is no such copy.
    """
    store = copy.body
    extents = {
        at.__chandle__(): int(n) for at, n in zip(store.indices, store.buffer.shape, strict=True)
    }
    value, bounds = store.value, []
    if isinstance(value, tvm.ir.Call) and value.op.name == ops.CHOICE and is_zero(value.args[2]):
        bounds, value = conjuncts(value.args[0]), value.args[1]
    plain = (
        isinstance(value, tvm.ir.TensorLoad)
        and value.source.scope() in ("", "global")
        and _same(value.indices, store.indices)
    )
    for bound in bounds:
        plain = plain and isinstance(bound, tirx.LT) and isinstance(bound.b, tirx.IntImm)
        plain = plain and bound.a.__chandle__() in extents
        if plain:
            extents[bound.a.__chandle__()] = int(bound.b)
    if not plain or len(extents) != 2:
        raise ScheduleError(
            f"Block {copy.name_hint} copies {store.value}; TMA copies boxes of a matrix as they "
            "are, so compute it before, or multiply by mma.sync."
        )
    first, second = extents.values()
    return value.source, (first, second)


def _same(first: Sequence[Any], second: Sequence[Any]) -> bool:
    return len(first) == len(second) and are_equal(first, second)
