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
from ...ir.queries import are_equal, blocks_in, loads_in, thread_tag, uses


@dataclass(frozen=True)
class Operand:
    """A factor of the product: the buffer in global memory, and whether its rows lie along K."""

    buffer: Any
    k_major: bool
    stages: int


@dataclass(frozen=True)
class Result:
    """What becomes of a sum: ``buffer[indices] = value``, in the variables ``row``, ``column``."""

    store: Any
    sums: Any
    row: Any
    column: Any

    @property
    def is_plain(self) -> bool:
        """Whether the result lies by rows and columns as the sums do."""
        return len(self.store.indices) == 2 and all(
            at.same_as(var) for at, var in zip(self.store.indices, (self.row, self.column))
        )

    @property
    def reads_more(self) -> bool:
        """Whether it depends on elements of other buffers."""
        return any(not one.source.same_as(self.sums) for one in loads_in(self.store.value))


@dataclass(frozen=True)
class Kernel:
    """A product that warpgroups compute, as its schedule has it."""

    instruction: WarpgroupInstruction
    a: Operand
    b: Operand
    result: Result
    consumers: int
    pieces: int
    group: int
    persistent: bool
    sizes: tuple[int, int, int]


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
            inside = [one for one in stmt.seq if _multiplies(one)]
            return self._descend(inside[0])
        if isinstance(stmt, SBlockRealize) and WARPGROUP in stmt.block.annotations:
            return stmt
        raise ScheduleError(
            "A tile of wgmma stands inside another block or a condition; only loops may be around "
            "it."
        )

    def read(self) -> Kernel:
        one = warpgroup_instruction(str(self.block.annotations[WARPGROUP]))
        loops = self._roles()
        regions = {True: None, False: None}
        rows, columns, depth = (one.var for one in self.block.iter_vars[-3:])
        for region in self.block.reads:
            if not region.source.same_as(self.block.writes[0].source):
                regions[any(uses(at.min, rows) for at in region.region)] = region
        a, b = (self._operand(regions[is_a], depth) for is_a in (True, False))
        result = self._result()
        m, n = (side.buffer.shape[0 if side.k_major else 1] for side in (a, b))
        k = a.buffer.shape[1 if a.k_major else 0]
        row_loop, _, group, _, piece = loops
        return Kernel(
            one,
            a,
            b,
            result,
            consumers=1 if group is None else int(group.extent),
            pieces=1 if piece is None else int(piece.extent),
            group=int(self._annotation(RASTERIZE, 1)),
            persistent=bool(self._annotation(PERSISTENT, 0)),
            sizes=(int(m), int(n), int(k)),
        )

    def _annotation(self, key: str, default: int) -> int:
        found = [int(loop.annotations[key]) for loop in self.loops if key in loop.annotations]
        return found[0] if found else default

    def _roles(self) -> tuple[Any, ...]:
        """The loops of rows, columns, warpgroups, steps along K, and pieces of a warpgroup."""
        by_tag = {thread_tag(loop): loop for loop in self.loops if thread_tag(loop)}
        serial = [loop for loop in self.loops if not thread_tag(loop)]
        m, n, k = self.realize.iter_values[-3:]
        rows, columns, group = (
            by_tag.get(tag) for tag in ("blockIdx.y", "blockIdx.x", "threadIdx.y")
        )
        if rows is None or columns is None:
            raise ScheduleError(
                f"{self.name} is computed by warpgroups; bind its loops of rows and columns to "
                "blockIdx.y and blockIdx.x, as sch.rasterize does."
            )
        if group is None or PRODUCERS not in group.annotations:
            raise ScheduleError(
                f"{self.name} multiplies by wgmma, which needs warpgroups of their own for the "
                "copies: call sch.specialize_warps on the loop over its warpgroups."
            )
        steps = next((loop for loop in serial if uses(k, loop.loop_var)), None)
        piece = next((loop for loop in serial if uses(m, loop.loop_var)), None)
        unknown = [one for one in self.loops if all(one is not x for x in by_tag.values())]
        unknown = [one for one in unknown if one is not steps and one is not piece]
        if any(int(loop.extent) > 1 for loop in unknown):
            raise ScheduleError(
                f"Loop {unknown[0].loop_var.name} around {self.name} is none of rows, columns, "
                "warpgroups and steps."
            )
        self._check_values((m, n, k), rows, columns, group, steps, piece)
        return rows, columns, group, steps, piece

    def _check_values(self, values: Any, rows: Any, columns: Any, group: Any, *serial: Any) -> None:
        """Check that tiles follow each other as blocks, warpgroups and pieces do."""
        analyzer = sym.Analyzer()
        for loop in self.loops:
            analyzer.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent))
        steps, piece = serial
        wanted = rows.loop_var * group.extent + group.loop_var
        if piece is not None:
            wanted = wanted * piece.extent + piece.loop_var
        depth = 0 if steps is None else steps.loop_var
        for what, value, expected in zip(
            ("rows", "columns", "K"), values, (wanted, columns.loop_var, depth), strict=True
        ):
            if not analyzer.can_prove_equal(value, expected):
                raise ScheduleError(
                    f"{self.name} counts its tiles of {what} as {value}; warpgroups compute tiles "
                    f"{expected}."
                )

    def _operand(self, region: Any, depth: Any) -> Operand:
        shared = region.source
        k_major = uses(region.region[-1].min, depth)
        (copy,) = (
            one for one in blocks_in(self.nest) if one.writes and one.writes[0].source.same_as(shared)
        )
        store = copy.body
        value = store.value
        if isinstance(value, tvm.ir.Call) and value.op.name == ops.CHOICE:
            value = value.args[1]
        is_copy = isinstance(value, tvm.ir.TensorLoad) and are_equal_lengths(
            value.indices, store.indices
        )
        if not is_copy or value.source.scope() not in ("", "global"):
            raise ScheduleError(
                f"Block {copy.name_hint} computes what it copies, and TMA copies boxes of a "
                "buffer as they are; compute it before, or multiply by mma.sync."
            )
        if copy.annotations.get(ASYNC_COPY, None) == 0:
            raise ScheduleError(
                f"Block {copy.name_hint} shall not copy asynchronously, and wgmma reads only what "
                "TMA copies here."
            )
        return Operand(value.source, k_major, int(copy.annotations.get(NUM_STAGES, 1)))

    def _result(self) -> Result:
        sums = self.block.writes[0].source
        readers = [
            one
            for one in blocks_in(self.nest)
            if not uses_as_product(one, self.block) and _reads(one, sums)
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
                f"Block {readers[0].name_hint} reads {load}; rows and columns of the sums must be "
                "iterators."
            )
        return Result(store, sums, *load.indices)


def are_equal_lengths(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Whether two lists of indices are the same."""
    return len(first) == len(second) and are_equal(first, second)


def uses_as_product(block: Any, product: Any) -> bool:
    """Whether a block is the product, or a part of it."""
    return any(one.same_as(block) for one in blocks_in(product))


def _reads(block: Any, buffer: Any) -> bool:
    return any(one.source.same_as(buffer) for one in block.reads)


def _multiplies(stmt: Any) -> bool:
    return any(WARPGROUP in block.annotations for block in blocks_in(stmt))
