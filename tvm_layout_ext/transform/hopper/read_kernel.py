"""Read what a schedule for warpgroups asks for: operands, tile, loops, and what becomes of sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import sym, tirx
from tvm.s_tir import SBlockRealize

from ...analysis.contraction import term_of
from ...errors import ScheduleError
from ...gpu.warpgroups import (
    MAP_PITCH_BYTES,
    MOST_STEP,
    MOST_TMA_DIMS,
    PANEL_BYTES,
    WARPGROUP_ROWS,
    window_run,
)
from ...intrin.warpgroups import WarpgroupInstruction, warpgroup_instruction, widened
from ...ir import ops
from ...ir.annotations import (
    ADD_UP,
    ASYNC_COPY,
    CLUSTER,
    MULTICAST,
    NUM_STAGES,
    PERSISTENT,
    PINGPONG,
    PRODUCERS,
    RASTERIZE,
    WARPGROUP,
)
from ...ir.conditions import conjuncts, is_zero, step_of
from ...ir.queries import blocks_in, loads_in, size_of, substitute, thread_tag, uses
from .groups import Groups, take_groups
from .members import Members, are_read, member_side, numbered, same_place, values_of
from .windows import Digits, Halo, Windows, best_box, counted, places, ranges, read_window


@dataclass(frozen=True)
class BoxedBuffer:
    """A buffer in global memory of which boxes are copied."""

    buffer: Any
    #: Where a box begins, in the variable ``batch`` of the kernel and the two of ``moving``.
    indices: tuple[Any, ...]
    #: For an operand its row (or column) of the product and its place along K; for the result row
    #: and column. Pixels of a convolution have several variables in the place of a row.
    moving: tuple[Any, ...]
    extents: tuple[Any, ...]  #: How far the buffer is read or written; zeros fill tiles up
    #: What its shape is taken for where one variable counts through neighbouring dims.
    folded: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[Any, ...]:
        """Elements along each dim of ``indices``."""
        return self.folded or tuple(map(size_of, self.buffer.shape))

    def box(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Elements of a box along each dim, the innermost first, by those of ``moving``."""
        found = []
        for index in reversed(self.indices):
            along = [n for var, n in zip(self.moving, sizes, strict=True) if uses(index, var)]
            found.append(along[0] if along else 1)
        return tuple(found)

    @property
    def steps(self) -> tuple[int, ...]:
        """From element to element of a box along each dim, the innermost first."""
        found = []
        for index in reversed(self.indices):
            along = [step_of(index, var) for var in self.moving if uses(index, var)]
            found.append(along[0] if along and along[0] else 1)
        return tuple(found)

    def steps_along(self, variables: Sequence[Any]) -> list[int]:
        """How many elements apart those are that a step of each variable reads."""
        return [
            step
            for var in variables
            for index, step in zip(self.indices, reversed(self.steps), strict=True)
            if uses(index, var)
        ]

    def ends_with(self, column: Any) -> bool:
        """Whether the innermost dim is counted by a variable alone: TMA stops where it ends."""
        return bool(self.indices[-1].same_as(column))

    def place(self, values: dict[Any, Any]) -> list[Any]:
        """Where a box begins, the innermost dim first."""
        return [tirx.Cast("int32", substitute(at, values)) for at in reversed(self.indices)]

    @property
    def problem(self) -> str | None:
        """Why TMA cannot move boxes of it, or None."""
        buffer = self.buffer
        for index in self.indices:
            along = [step_of(index, var) or 0 for var in self.moving if uses(index, var)]
            most = 1 if index.same_as(self.indices[-1]) else MOST_STEP
            if len(along) > 1 or any(not 1 <= step <= most for step in along):
                return f"Buffer {buffer.name} is indexed by {index}, along which TMA has no boxes"
        if len(self.indices) > MOST_TMA_DIMS:
            return f"Buffer {buffer.name} has {len(self.indices)} dims; TMA has {MOST_TMA_DIMS}"
        if not isinstance(self.shape[-1], int):
            return f"Buffer {buffer.name} is {self.shape}; its innermost dim may not be symbolic"
        if len(buffer.ty.strides):
            return f"Buffer {buffer.name} has strides of its own, which TMA is not told here"
        pitch = self.shape[-1] * np.dtype(str(buffer.dtype)).itemsize
        if pitch % MAP_PITCH_BYTES:
            return (
                f"Rows of {buffer.name} are {pitch:,} bytes apart; TMA needs a multiple of "
                f"{MAP_PITCH_BYTES}"
            )
        return None


@dataclass(frozen=True)
class TiledOperand:
    """A factor of the product, whether its rows lie along K, and versions of its tiles.

    ``others`` are those of further members, where each has a buffer of its own.
    """

    source: BoxedBuffer
    sizes: tuple[int, int]
    k_major: bool
    stages: int
    others: tuple[BoxedBuffer, ...] = ()

    @property
    def problem(self) -> str | None:
        """Why TMA cannot copy its tiles, or None."""
        inner = self.source.indices[-1]
        if not uses(inner, self.source.moving[-1 if self.k_major else 0]):
            return f"Neighbours in {self.source.buffer.name} are none in its tile"
        return next((one.problem for one in (self.source, *self.others) if one.problem), None)


@dataclass(frozen=True)
class SumsReader:
    """What becomes of a sum: a store of a value, in ``batch`` and the variables of ``target``."""

    store: Any
    sums: Any
    target: BoxedBuffer

    @property
    def is_boxed(self) -> bool:
        """Whether TMA can store the result: it lies by rows and columns, columns innermost."""
        return self._lies_by(self.target.moving)

    @property
    def is_turned(self) -> bool:
        """Whether TMA can store its transpose: it lies by columns and rows, rows innermost."""
        row, *_, column = self.target.moving
        return len(self.target.moving) == 2 and self._lies_by((column, row))

    def _lies_by(self, order: Sequence[Any]) -> bool:
        """Whether variables count dims in this order, the last one the innermost."""
        indices = self.target.indices
        found = [var for index in indices for var in order if index.same_as(var)]
        others = [one for one in indices if not any(one.same_as(var) for var in order)]
        fixed = not any(uses(one, var) for one in others for var in order)
        same = len(found) == len(order) and all(map(tirx.Var.same_as, found, order))
        return same and fixed and indices[-1].same_as(order[-1]) and self.target.problem is None

    @property
    def reads_more(self) -> bool:
        """Whether it depends on elements of other buffers."""
        return any(not one.source.same_as(self.sums) for one in loads_in(self.store.value))


@dataclass(frozen=True)
class ScaledSums:
    """Sums of a step of a batch that are added up, as blocks of fp8 with scales of their own."""

    #: What is added, in the two variables of ``place`` and in ``step``, a number of the batch.
    term: Any
    sums: Any  #: Sums of a step, of which ``term`` reads one
    place: tuple[Any, Any]
    step: Any


@dataclass(frozen=True)
class Kernel:
    """A product that warpgroups compute, as its schedule has it.

    ``pieces`` counts the 64 rows that one of the ``consumers`` has of a tile; ``sizes`` are M, N
    and K without what fills tiles up; ``batch`` is the variable of so many ``products``, or None.
    ``cluster`` counts the tiles along rows and columns whose blocks share what they copy, and
    ``slices`` the blocks that share the steps of a tile. Rows of ``windows`` are pixels. With
    ``scaled`` each step has sums of its own. Of ``groups`` of rows ``batch`` is the number. With
    ``pingpong`` each of two consumers has tiles of its own.
    With ``members`` a tile has so many products; columns of the instruction are those of all.
    ``meant`` has the sizes that numbers stand for in the shapes of other matrices.
    """

    instruction: WarpgroupInstruction
    a: TiledOperand
    b: TiledOperand
    result: SumsReader
    consumers: int
    pieces: int
    group: int
    persistent: bool
    sizes: tuple[Any, int, int]
    batch: Any
    products: Any
    cluster: tuple[int, int] = (1, 1)
    slices: int = 1
    windows: Windows | None = None
    scaled: ScaledSums | None = None
    groups: Groups | None = None
    pingpong: bool = False
    members: Members | None = None
    meant: Mapping[int, Any] = field(default_factory=dict)

    @property
    def held(self) -> int:
        """Pieces of 64 rows of sums that a warpgroup has, of all members."""
        return self.pieces * self._each("a")

    @property
    def columns(self) -> int:
        """Columns of a tile of results."""
        return self.instruction.shape[1] // self._each("b")

    def _each(self, side: str) -> int:
        return self.members.count if self.members and self.members.side == side else 1

    @property
    def run(self) -> int:
        """Terms that lie in a row of a tile in shared memory: those of a step, or half of them."""
        return self.instruction.shape[2] if self.windows is None else self.windows.run

    @property
    def halo(self) -> Halo | None:
        """What is copied around pixels, where a step has all places of a window."""
        return None if self.windows is None else self.windows.halo

    @property
    def runs(self) -> int:
        """Boxes of A of a step along K, one behind the other in shared memory."""
        return 1 if self.halo else self.instruction.shape[2] // self.run

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of a tile that lies along K."""
        return PANEL_BYTES * self.run // self.instruction.shape[2]

    @property
    def rows(self) -> Any:
        """Rows of all tiles, also those that fill boxes of pixels up."""
        return self.sizes[0] if self.windows is None else self.windows.boxes * WARPGROUP_ROWS


@dataclass(frozen=True)
class _KernelLoops:
    """The loops around a tile."""

    rows: Any
    columns: Any
    warpgroups: Any
    steps: Any
    pieces: Any
    batch: Any
    scaled: Any


def multiplies(stmt: Any) -> bool:
    """Whether a statement holds a tile of a warpgroup."""
    return any(WARPGROUP in block.annotations for block in blocks_in(stmt))


def read_kernel(nest: Any) -> Kernel:
    """Read the loop nest of a kernel.

    Raises ScheduleError if the nest has another form than ``use_tensor_core(block, "wgmma")`` and
    the primitives after it make.
    """
    return _Reader(nest).read()


@dataclass(frozen=True)
class _Copy:
    """What fills a tile of an operand, a load that is zero beyond bounds."""

    block: Any
    load: Any
    bounds: list[Any]
    k_major: bool
    groups: Groups | None
    others: tuple[Any, ...] = ()  #: Loads of further members, from buffers of their own

    @property
    def moving(self) -> dict[Any, int]:
        """The row (or column) of the product and its place along K, and how many there are."""
        store = self.block.body
        pairs = list(zip(store.indices[-2:], map(int, store.buffer.shape[-2:]), strict=True))
        return dict(pairs if self.k_major else reversed(pairs))

    @property
    def stages(self) -> int:
        """Versions of the tile."""
        return int(self.block.annotations.get(NUM_STAGES, 1))

    @property
    def is_window(self) -> bool:
        """Whether an index is more than a row, or a term, also where both count several dims."""
        _, indices = _folded(self.load)
        used = [(at, var) for at in indices for var in self.moving if uses(at, var)]
        return len({at.__chandle__() for at, _ in used}) < len(used) or any(
            step_of(at, var) != 1 for at, var in used
        )


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
        self.inside = loops.scaled
        sums = self.block.writes[0].source
        a, b, windows, groups = self._sides(sums)
        (m, k), (n, _) = a.sizes, b.sizes
        batch, step = loops.batch, loops.scaled
        if groups is not None:
            batch, step = self._number_of(groups, [batch, step]), None
        result, scaled = self._result(sums, (m, n), windows, step, groups)
        members = None
        if step is not None and scaled is None and are_read(result.store.value, sums):
            result, members = self._members(result, step, (a, b), batch)
        if step is not None and scaled is None and members is None:
            raise ScheduleError(
                f"{self.name} has a batch inside of its tiles, and nothing adds its sums up; bind "
                f"loop {step.loop_var.name} to blockIdx.z."
            )
        if scaled is not None:
            if windows is not None:
                raise ScheduleError(
                    f"{self.name} scales sums of a convolution's steps; only those of a product of "
                    "matrices can be scaled."
                )
            k = self._scaled_depth(k) * (1 if step is None else int(step.extent))
        instruction = warpgroup_instruction(str(self.block.annotations[WARPGROUP]))
        if members is not None and members.side == "b":
            instruction = widened(instruction, members.count)
        return Kernel(
            instruction,
            a,
            b,
            result,
            consumers=int(loops.warpgroups.extent),
            pieces=1 if loops.pieces is None else int(loops.pieces.extent),
            group=self._annotation(RASTERIZE, 1),
            persistent=bool(self._annotation(PERSISTENT, 0)),
            sizes=(m, n, k),
            batch=None if batch is None else batch.loop_var,
            products=1 if batch is None or groups else size_of(batch.extent),
            cluster=self._cluster(loops),
            slices=1 if loops.steps is None else int(loops.steps.annotations.get(ADD_UP, 1)),
            windows=windows,
            scaled=scaled,
            groups=groups,
            pingpong=PINGPONG in loops.warpgroups.annotations,
            members=members,
        )

    def _sides(self, sums: Any) -> tuple[TiledOperand, TiledOperand, Windows | None, Groups | None]:
        """Both operands, whose rows may be pixels or those of groups."""
        row, column, _ = (one.var for one in self.block.iter_vars[-3:])
        each = (one.var for one in self.block.iter_vars)
        once = (one for one in self.loops if size_of(one.extent) == 1 and not thread_tag(one))
        first = {one.loop_var: one.min for one in once}
        values = (substitute(value, first) for value in self.realize.iter_values)
        self.values = dict(zip(each, values, strict=True))
        factors = [one for one in self.block.reads if not one.source.same_as(sums)]
        factors.sort(key=lambda one: not any(uses(at.min, row) for at in one.region))
        copies = [self._copy(one, own) for one, own in zip(factors, (row, column), strict=True)]
        windows = None
        if copies[0].is_window:
            windows, a, b = self._windows(*copies)
        else:
            a, b = (self._operand(one) for one in copies)
        for one in (a, b):
            if one.problem:
                raise ScheduleError(
                    f"{one.problem}; multiply by mma.sync, which copies by cp.async."
                )
        return a, b, windows, copies[0].groups

    def _members(
        self, result: SumsReader, step: Any, sides: tuple[TiledOperand, TiledOperand], batch: Any
    ) -> tuple[SumsReader, Members]:
        """The products whose sums a tile has, and their reader, which takes them by number."""
        store, count = result.store, int(step.extent)
        value = numbered(self.name, store.value, result.sums, count)
        side = member_side(self.name, step.loop_var, *sides)
        if batch is not None and size_of(batch.extent) != 1:
            raise ScheduleError(
                f"{self.name} has {count} products inside of its tiles and a batch around them; "
                "one of the two is legal."
            )
        store = tirx.BufferStore(store.buffer, value, store.indices)
        return replace(result, store=store), Members(step.loop_var, count, side)

    def _scaled_depth(self, depth: int) -> int:
        """Terms of a step whose sums are scaled."""
        most = int(self.block.reads[0].region[-1].extent)
        if depth != most:
            raise ScheduleError(
                f"{self.name} scales the sums of {depth} terms each; a step of wgmma has {most}."
            )
        return depth

    def _cluster(self, loops: _KernelLoops) -> tuple[int, int]:
        """Tiles of a cluster along rows and columns."""
        if any(str(key).startswith(CLUSTER) for loop in self.loops for key in loop.annotations):
            raise ScheduleError(
                f"{self.name} is computed by warpgroups, whose clusters share tiles: say "
                "cluster(loop, size, multicast=True)."
            )
        along = loops.rows, loops.columns
        rows, columns = (int(one.annotations.get(MULTICAST, 1)) for one in along)
        if min(rows, columns) > 1:
            raise ScheduleError(
                f"{self.name} has clusters of {rows}x{columns} tiles; blocks share one operand, so "
                "a cluster lies along rows or along columns."
            )
        return rows, columns

    def _annotation(self, key: str, default: int) -> int:
        found = [int(loop.annotations[key]) for loop in self.loops if key in loop.annotations]
        return found[0] if found else default

    def _roles(self) -> _KernelLoops:
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
        rows, columns = grid
        others = self.realize.iter_values[:-3]
        inside = (one for one in serial if int(one.extent) > 1)
        scaled = next((one for one in inside if any(uses(v, one.loop_var) for v in others)), None)
        batch = by_tag.get("blockIdx.z")
        found = _KernelLoops(rows, columns, group, steps, pieces, batch, scaled)
        used = [loop for loop in vars(found).values() if loop is not None]
        for loop in self.loops:
            if size_of(loop.extent) != 1 and not any(loop.same_as(one) for one in used):
                raise ScheduleError(
                    f"Loop {loop.loop_var.name} around {self.name} is none of rows, columns, "
                    "warpgroups, steps along K, 64 rows of a warpgroup and a batch (blockIdx.z)."
                )
        self._check_values((m, n, k), found)
        return found

    def _check_values(self, values: Sequence[Any], loops: _KernelLoops) -> None:
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

    def _copy(self, region: Any, own: Any) -> _Copy:
        """Find what fills a tile of an operand.

        Raises ScheduleError if it does not copy elements as they are, and zeros around them.
        """
        copies = [
            one
            for one in blocks_in(self.nest)
            if one.writes and one.writes[0].source.same_as(region.source)
        ]
        if len(copies) != 1:
            raise ScheduleError(
                f"Buffer {region.source.name} is filled by {len(copies)} blocks inside the kernel "
                f"of {self.name}; one copy must fill it there: use sch.compute_at."
            )
        (copy,) = copies
        if copy.annotations.get(ASYNC_COPY, None) == 0:
            raise ScheduleError(
                f"Block {copy.name_hint} shall not copy asynchronously, but wgmma reads what TMA "
                "copied."
            )
        number = substitute(region.region[0].min, self.values)
        values = values_of(copy, number, self.inside)
        (load, bounds), *others = map(_bounded_load, values)
        known = all(isinstance(at, tirx.Var) for at in copy.body.indices)
        if not known or any(one is None for one in (load, *(one for one, _ in others))):
            raise ScheduleError(
                f"Block {copy.name_hint} copies {copy.body.value}; TMA copies boxes as they are, "
                "so compute it before, or multiply by mma.sync."
            )
        batch = {
            at: substitute(where.min, self.values)
            for at, where in zip(copy.body.indices[:-2], region.region[:-2], strict=True)
        }
        load, bounds = substitute(load, batch), [substitute(one, batch) for one in bounds]
        k_major = not uses(region.region[-1].min, own)
        rows = copy.body.indices[-2 if k_major else -1]
        groups = None
        for number in batch.values():
            if groups is None:
                groups, bounds = take_groups(bounds, rows, number)
        more = tuple(substitute(one, batch) for one, _ in others)
        return _Copy(copy, load, bounds, k_major, groups, more)

    def _windows(self, a: _Copy, b: _Copy) -> tuple[Windows, TiledOperand, TiledOperand]:
        """Read the operands of a convolution.

        Raises ScheduleError if rows of A are no pixels, or the terms are no places in a window and
        channels.
        """
        left, right = (
            read_window(one.load, one.bounds, one.moving, f"Block {one.block.name_hint}")
            for one in (a, b)
        )
        (row, term), (column, other) = a.moving, b.moving
        pixels, terms = counted(left, row, "nyx"), counted(left, term, "rsc")
        columns = counted(right, column, "f")
        ends = {prod(terms.extents[i:]) for i in range(1, len(terms.extents) + 1)}
        finer = {divisor for _, divisor, _ in right.digits(other)} - ends
        if left.sizes[term] != right.sizes[other] or len(columns.variables) > 1 or finer:
            raise ScheduleError(
                f"Buffer {right.buffer.name} is read by other terms, or by parts of its columns; "
                "multiply by mma.sync."
            )
        image = BoxedBuffer(
            left.buffer,
            places(left, {row: pixels, term: terms}),
            (*pixels.variables, terms.variables[-1]),
            left.extents,
        )
        weight = BoxedBuffer(
            right.buffer,
            places(right, {column: columns, other: terms}),
            (columns.variables[0], terms.variables[-1]),
            right.extents,
        )
        steps = image.steps_along(pixels.variables)
        image = _apart(image, terms.extents[-1])
        # Zeros of the weights hide what a box has of other channels, but for what is not finite.
        step = int(self.block.reads[0].region[-1].extent)
        *window, channels = terms.extents
        along_k = a.k_major and b.k_major
        run = window_run(prod(window), channels, step) if along_k else step
        box, reach = best_box(pixels.extents, steps), _reach(image, pixels, terms)
        windows = Windows(pixels, terms, box, run, reach)
        rest = channels % run or windows.runs % (step // run)
        if rest and not image.ends_with(terms.variables[-1]):
            raise ScheduleError(
                f"Buffer {left.buffer.name} is read by {image.indices[-1]}, of which boxes of "
                f"{run} channels, {step // run} a step, do not end with the {channels} of "
                "each place of a sum; multiply by mma.sync."
            )
        weight = _apart(weight, columns.extents[0], columns.variables[0])
        return (
            windows,
            TiledOperand(image, (left.sizes[row], left.sizes[term]), a.k_major, a.stages),
            TiledOperand(weight, (right.sizes[column], right.sizes[other]), b.k_major, b.stages),
        )

    def _operand(self, copy: _Copy) -> TiledOperand:
        """An operand whose rows lie one behind the other, and how many it has.

        Raises ScheduleError if zeros are anywhere else than around it.
        """
        store, load, bounds = copy.block.body, copy.load, copy.bounds
        shape, indices = _folded(load)
        inside = {
            at.__chandle__(): size_of(n)
            for at, n in zip(store.indices, store.buffer.shape, strict=True)
        }
        extents = []
        for index, extent in zip(indices, shape, strict=True):
            if not isinstance(extent, int):
                extents.append(extent)  # A batch has no other end.
                continue
            own = inside.get(index.__chandle__(), extent)
            limits = [int(one.b) for one in bounds if tvm_ffi.structural_equal(one.a, index)]
            extents.append(min([own, extent, *limits]))
            if limits and index.__chandle__() in inside:
                inside[index.__chandle__()] = extents[-1]
        source = BoxedBuffer(load.source, indices, tuple(copy.moving), tuple(extents), shape)
        for bound in bounds:
            at = bound.a if isinstance(bound, tirx.LT) else None
            if at is not None and any(tvm_ffi.structural_equal(at, one) for one in indices):
                continue
            if at is not None and at.__chandle__() in inside:  # Of the places in a group.
                inside[at.__chandle__()] = size = int(bound.b)
                source = _apart(source, size, at)
            if not any(one.same_as(at) for one in source.indices):
                raise ScheduleError(
                    f"Block {copy.block.name_hint} reads {load} under {bound}, which is no bound "
                    "of it; TMA leaves out only what lies outside of a buffer."
                )
        own, depth = (inside[at.__chandle__()] for at in copy.moving)
        for one in copy.others:
            if not same_place(one, load):
                raise ScheduleError(
                    f"Block {copy.block.name_hint} reads {load} for one product and {one} for "
                    "another; the same place in buffers of one shape is legal."
                )
        others = tuple(replace(source, buffer=one.source) for one in copy.others)
        return TiledOperand(source, (own, depth), copy.k_major, copy.stages, others)

    def _result(
        self, sums: Any, sizes: tuple[int, int], windows: Windows | None, steps: Any, groups: Any
    ) -> tuple[SumsReader, ScaledSums | None]:
        """What becomes of the sums, and what is added up of each step before."""
        block, place, fixed = self._reader(sums, sizes)
        scaled = None
        if groups is None and block.init is not None:
            step = tirx.Var("only", "int32") if steps is None else steps.loop_var
            scaled = self._scaled(block, sums, place, fixed, step)
            sums = block.body.buffer
            block, place, fixed = self._reader(sums, sizes)
        store, (row, column) = block.body, place
        if groups is not None:
            store = self._of_group(block)
        if windows is not None:
            fixed[row] = windows.pixels.number
            known = ranges([windows.pixels, Digits((column,), sizes[1:])])
            indices = tuple(known.simplify(substitute(index, fixed)) for index in store.indices)
            rows, value = windows.pixels.variables, known.simplify(substitute(store.value, fixed))
            target = BoxedBuffer(
                store.buffer, indices, (*rows, column), tuple(map(size_of, store.buffer.shape))
            )
            target = _apart(target, sizes[1])
            return SumsReader(tirx.BufferStore(store.buffer, value, indices), sums, target), scaled
        indices = tuple(substitute(index, fixed) for index in store.indices)
        shape, places = _folded(tirx.BufferLoad(store.buffer, list(indices)))
        extents = list(shape)
        for i, index in enumerate(places):
            if not isinstance(extents[i], int):
                continue
            for var, size in zip((row, column), sizes, strict=True):
                extents[i] = min(extents[i], size) if index.same_as(var) else extents[i]
        target = BoxedBuffer(store.buffer, places, (row, column), tuple(extents), shape)
        target = _apart(target, sizes[1])
        value = substitute(store.value, fixed)
        return SumsReader(tirx.BufferStore(store.buffer, value, indices), sums, target), scaled

    def _reader(
        self, sums: Any, sizes: tuple[int, int]
    ) -> tuple[Any, tuple[Any, Any], dict[Any, Any]]:
        """The block that reads sums, its row and column, and values of its other iterators."""
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
        (block,) = readers
        load = next(one for one in loads_in(block.body.value) if one.source.same_as(sums))
        every = {one.var.__chandle__(): one for one in block.iter_vars}
        together = block.init is None and are_read(block.body.value, sums)
        at = [
            tirx.Var("only", "int32") if is_zero(one) or (together and i == 0) else one
            for i, one in enumerate(load.indices)
        ]
        if not all(isinstance(one, tirx.Var) for one in at):
            raise ScheduleError(
                f"Block {block.name_hint} reads {load}; rows and columns of the sums must be "
                "iterators."
            )
        read = [every.pop(one.__chandle__(), None) for one in at]
        found = tuple(1 if one is None else int(one.dom.extent) for one in read[-2:])
        if found != sizes or any(int(one.dom.extent) > 1 for one in every.values()):
            raise ScheduleError(
                f"Block {block.name_hint} reads {found} of the sums, which are {sizes}; it must "
                "read each of them once."
            )
        written = self.block.writes[0].region[:-2]
        fixed = {one.var: one.dom.min for one in every.values()}
        for var, where in zip(at[:-2], written, strict=False):
            fixed[var] = substitute(where.min, self.values)
        return block, (at[-2], at[-1]), fixed

    def _number_of(self, groups: Groups, loops: Sequence[Any]) -> Any:
        """The loop over groups, None if there is one group."""
        found = [loop for loop in loops if loop is not None]
        extents = [int(loop.extent) for loop in found] or [1]
        if extents != [groups.count]:
            raise ScheduleError(
                f"{self.name} has batches of {extents} around rows of {groups.count} groups; "
                "one loop over all groups is legal."
            )
        return found[0] if found else None

    def _of_group(self, block: Any) -> Any:
        """The store of a result that adds up the products of all groups, of which one is not 0."""
        term = own = term_of(block, tirx.Add)
        while isinstance(own, tirx.Cast):
            own = own.value
        if not isinstance(own, tvm.ir.TensorLoad) or not is_zero(block.init.value):
            raise ScheduleError(
                f"Block {block.name_hint} reads the sums of groups of rows; it must add them up, "
                "cast or as they are, over all groups, from 0."
            )
        return tirx.BufferStore(block.body.buffer, term, block.body.indices)

    def _scaled(
        self, block: Any, sums: Any, place: tuple[Any, Any], fixed: dict[Any, Any], step: Any
    ) -> ScaledSums:
        """Read what a block adds up of the sums of each step."""
        term, store = term_of(block, tirx.Add), block.body
        indices = list(store.indices)
        same = len(indices) == 2 and all(map(tirx.Var.same_as, indices, place))
        types = {str(sums.dtype), str(store.buffer.dtype)}
        if term is None or not same or types != {"float32"} or not is_zero(block.init.value):
            raise ScheduleError(
                f"Block {block.name_hint} reads the sums of every step; it must add them up in "
                "float32, from 0, by their rows and columns."
            )
        return ScaledSums(substitute(term, fixed), sums, place, step)


def _reach(image: BoxedBuffer, pixels: Digits, terms: Digits) -> tuple[tuple[int, int], ...] | None:
    """Along which dim of pixels, and by how many, each variable of a place moves."""
    found = []
    for place in terms.variables[:-1]:
        moved = [index for index in image.indices if uses(index, place)]
        if len(moved) != 1:
            return None
        along = [i for i, one in enumerate(pixels.variables) if uses(moved[0], one)]
        step = step_of(moved[0], place) or 0
        if len(along) != 1 or step < 1:
            return None
        found.append((along[0], step))
    return tuple(found)


def _bounded_load(value: Any) -> tuple[Any, list[Any]]:
    """The load of a value that is zero beyond bounds, and the bounds; None if it is no such."""
    bounds = []
    while isinstance(value, tvm.ir.Call) and value.op.name == ops.CHOICE and is_zero(value.args[2]):
        bounds += conjuncts(value.args[0])
        value = value.args[1]
    is_load = isinstance(value, tvm.ir.TensorLoad) and value.source.scope() in ("", "global")
    return (value, bounds) if is_load else (None, [])


def _apart(boxed: BoxedBuffer, size: int, var: Any = None) -> BoxedBuffer:
    """A buffer with a dim of its own for a batch's members that share one, or no more than one's.

    As channels of a group are: ``A[n, y, x, g * 112 + c]`` is ``A[n, y, x, g, c]``, whose boxes end
    with the group. ``var`` counts ``size`` of them, by default the last one of ``moving``.
    """
    var = boxed.moving[-1] if var is None else var
    at = next(i for i, index in enumerate(boxed.indices) if uses(index, var))
    index, analyzer = boxed.indices[at], sym.Analyzer()

    def split(dims: Sequence[Any], *parts: Any) -> tuple[Any, ...]:
        return (*dims[:at], *parts, *dims[at + 1 :])

    if index.same_as(var):
        end = boxed.extents[at]
        end = min(end, size) if isinstance(end, int) else end
        return replace(boxed, extents=split(boxed.extents, end))
    member = _simple(tirx.floordiv(index - var, size))
    if not analyzer.can_prove_equal(member * size + var, index):
        return boxed
    if not analyzer.can_prove_equal(boxed.shape[at] % size, 0):  # Some would be shorter.
        return boxed
    members = boxed.shape[at] // size
    return replace(
        boxed,
        indices=split(boxed.indices, member, var),
        extents=split(boxed.extents, members, size),
        folded=split(boxed.shape, members, size),
    )


def _folded(load: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Shape and indices of a load, dims joined which one variable counts through.

    As rows of several images are one after the other: ``A[m // 56, m % 56, k]`` is ``A[m, k]``.
    """
    shape: list[Any] = []
    indices: list[Any] = []
    for extent, index in zip(map(size_of, load.source.shape), load.indices, strict=True):
        joined = _simple(indices[-1] * extent + index) if indices else index
        if indices and isinstance(indices[-1], tirx.FloorDiv) and _counts(joined):
            shape[-1], indices[-1] = shape[-1] * extent, joined
        else:
            shape.append(extent)
            indices.append(index)
    return tuple(shape), tuple(indices)


def _counts(index: Any) -> bool:
    """Whether an index is a variable, or all but its last digits."""
    return isinstance(index, tirx.Var) or (
        isinstance(index, tirx.FloorDiv) and isinstance(index.a, tirx.Var)
    )


def _simple(expr: Any) -> Any:
    return sym.Analyzer().simplify(expr)
