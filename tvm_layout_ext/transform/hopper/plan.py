"""Decide the numbers of a kernel of warpgroups: stages, places in shared memory, launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any

import numpy as np

from ...errors import ScheduleError
from ...gpu.hardware import MULTIPROCESSORS, Architecture
from ...gpu.warpgroups import (
    BOX_ELEMENTS,
    PANEL_BYTES,
    REGISTERS,
    WARPGROUP_ROWS,
    WARPGROUP_THREADS,
    most_sums,
    shares_of,
    whole_patterns,
)
from ...ir.queries import uses
from ..pipeline.record import PipelineRecord, PipelineStep, VersionedBuffer
from .halos import with_halos
from .members import MemberRows
from .pieces import STEP_BYTES
from .read_kernel import Kernel

#: Rows of a chunk of results, which one bulk store takes, and chunks that a warpgroup has room for.
_CHUNK_ROWS, _CHUNKS = WARPGROUP_ROWS, 2
#: Columns of a group of sums, which eight rows of the swizzle's pattern take where they are turned.
_GROUP = 8
#: Sums that a thread has room for beyond these where each step has its own: ptxas gives 64 beside
#: 128 totals their registers without a spill.
_BESIDE = 16
#: Bytes of an mbarrier; behind them the dynamic part is rounded up.
_BARRIER_BYTES = 8


@dataclass(frozen=True)
class Plan:
    """A kernel and its numbers."""

    kernel: Kernel
    stages: int
    stores_by_box: bool
    grid: Any
    keeps_b: bool = False  #: Whether B is copied in a block's first tile, and stays for the others.

    @property
    def tile(self) -> tuple[int, int, int]:
        """Rows, columns and depth of a tile: a block's, or that of a warpgroup in its turn."""
        rows, _, depth = self.kernel.instruction.shape
        return rows * self.sharing * self.kernel.pieces, self.kernel.columns, depth

    @property
    def sharing(self) -> int:
        """Warpgroups that share a tile."""
        return 1 if self.kernel.pingpong else self.kernel.consumers

    @property
    def arrivals(self) -> int:
        """Warpgroups that give a stage back, of all blocks that copy into it."""
        return self.sharing * self.blocks

    @property
    def tiles(self) -> tuple[Any, int]:
        """Tiles along rows and columns; of groups of rows the most that there can be."""
        sizes = self.kernel.rows, self.kernel.sizes[1]
        rows, columns = (
            (size + (tile * blocks - 1)) // (tile * blocks) * blocks
            for size, tile, blocks in zip(sizes, self.tile, self.kernel.cluster, strict=False)
        )
        if self.kernel.groups is not None:
            rows = self.kernel.groups.most_tiles(self.kernel.rows, self.tile[0])
        return rows, columns

    @property
    def ragged(self) -> tuple[bool, bool]:
        """Whether tiles reach beyond the last row and the last column."""
        rows, columns = (
            not isinstance(size, int) or count * tile > size
            for count, tile, size in zip(
                self.tiles, self.tile, (self.kernel.rows, self.kernel.sizes[1]), strict=False
            )
        )
        return rows, columns

    @property
    def blocks(self) -> int:
        """Blocks that share what they copy."""
        return prod(self.kernel.cluster)

    @property
    def shared(self) -> str:
        """The operand of which each block of a cluster copies a part for all."""
        return "" if self.blocks == 1 else "b" if self.kernel.cluster[0] > 1 else "a"

    @property
    def steps(self) -> int:
        """Steps along K of a block."""
        kernel = self.kernel
        whole = ceil(kernel.sizes[2] / self.tile[2])
        return ceil((whole if kernel.windows is None else _window_steps(kernel)) / kernel.slices)

    @property
    def shares(self) -> int:
        """Parts of a tile, each finished by a block of its own of those that add slices up."""
        return _shares(self.kernel)

    @property
    def turns(self) -> Any:
        """Tiles that a block takes at most."""
        return (self.count + (self.grid - 1)) // self.grid if self.kernel.persistent else 1

    @property
    def count(self) -> Any:
        """Tiles of all products, and slices of them."""
        return self.tiles[0] * self.tiles[1] * self.kernel.products * self.kernel.slices

    @property
    def a_bytes(self) -> int:
        """Bytes of a tile of A."""
        return self.sharing * self.kernel.held * self.piece_bytes * self.kernel.runs

    @property
    def b_bytes(self) -> int:
        """Bytes of a tile of B."""
        return whole_patterns(b_rows(self.kernel) * self.kernel.row_bytes * self.b_runs)

    @property
    def piece_bytes(self) -> int:
        """Bytes from a piece of 64 rows of A, of a box along K, to the next one."""
        halo = self.kernel.halo
        rows = WARPGROUP_ROWS if halo is None else halo.rows
        return whole_patterns(rows * self.kernel.row_bytes)

    @property
    def b_runs(self) -> int:
        """Boxes of B of a step along K, one behind the other in shared memory."""
        windows = self.kernel.windows
        return self.kernel.runs if windows is None or windows.halo is None else windows.places

    @property
    def loaded(self) -> tuple[int, int]:
        """Bytes that come to a tile of A and of B, without what keeps the next one aligned."""
        kernel = self.kernel
        if kernel.halo is None:
            return self.a_bytes, self.b_bytes
        a = self.sharing * kernel.held * kernel.halo.rows * kernel.row_bytes
        return a, b_rows(kernel) * kernel.row_bytes * self.b_runs

    @property
    def slices(self) -> list[tuple[int, int]]:
        """Bytes into a piece of A, and into B, that each product of a step reads."""
        return list(zip(self._slices("a"), self._slices("b"), strict=True))

    def _slices(self, side: str) -> list[int]:
        kernel = self.kernel
        operand = kernel.a if side == "a" else kernel.b
        if not operand.k_major:
            return [i * 16 * PANEL_BYTES for i in range(PANEL_BYTES // STEP_BYTES)]
        runs = kernel.runs if side == "a" else self.b_runs
        each = (self.a_bytes if side == "a" else self.b_bytes) // runs
        starts = [i * each for i in range(runs)]
        used = kernel.row_bytes
        if kernel.windows is not None and kernel.halo is not None:
            if side == "a":
                starts = [rows * kernel.row_bytes for rows in kernel.halo.offsets]
            else:
                starts = [i * b_rows(kernel) * kernel.row_bytes for i in range(runs)]
            # Behind the last channel, of fewer than a row has, all are zeros.
            channels = min(kernel.windows.terms.extents[-1], kernel.run)
            used = used * channels // kernel.run
        return [start + at for start in starts for at in range(0, used, STEP_BYTES)]

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage: a tile of A, and one of B unless that stays."""
        return self.a_bytes + (0 if self.keeps_b else self.b_bytes)

    def b_at(self, stage: Any, k: Any) -> Any:
        """Where the tile of B of a step begins in shared memory."""
        if self.keeps_b:
            return self.stages * self.stage_bytes + k * self.b_bytes
        return stage * self.stage_bytes + self.a_bytes

    @property
    def turned(self) -> bool:
        """Whether what is stored by boxes is the transpose of the sums."""
        return self.stores_by_box and not self.kernel.result.is_boxed

    @property
    def chunk_columns(self) -> int:
        """Columns of sums in a chunk of results: a row's, or 64 at most that are its rows.

        Of 160 rows three chunks have 56 each, and 8 are stored twice; with 64 it would be 32.
        """
        if not self.turned:
            return self.chunk_row_bytes // result_bytes(self.kernel)
        chunks = ceil(self.kernel.columns / _CHUNK_ROWS)
        return ceil(self.kernel.columns / chunks / _GROUP) * _GROUP

    @property
    def chunk_row_bytes(self) -> int:
        """Bytes of a row of a chunk, by whose swizzle it lies in shared memory."""
        row = self.kernel.columns * result_bytes(self.kernel)
        return row if row == PANEL_BYTES // 2 and not self.turned else PANEL_BYTES

    @property
    def chunk_starts(self) -> list[int]:
        """First columns of the chunks of sums; the last one may lie over the one before."""
        columns = self.kernel.columns
        return [
            min(at, columns - self.chunk_columns) for at in range(0, columns, self.chunk_columns)
        ]

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk of results."""
        return _CHUNK_ROWS * self.chunk_row_bytes

    @property
    def chunks(self) -> int:
        """Chunks that a warpgroup has room for."""
        return _CHUNKS if self.stores_by_box else 0

    @property
    def results_at(self) -> int:
        """Where results begin in shared memory."""
        kept = self.steps * self.b_bytes if self.keeps_b else 0
        return self.stages * self.stage_bytes + kept

    @property
    def arena_bytes(self) -> int:
        """Bytes of dynamic shared memory."""
        return self.results_at + self.kernel.consumers * self.chunks * self.chunk_bytes

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory, barriers included."""
        return self.arena_bytes + 2 * self.stages * _BARRIER_BYTES

    def parts(self, side: str) -> Iterator[MemberRows]:
        """The rows of a factor that come to a tile of ``a`` or ``b``: those of each member."""
        kernel, tile = self.kernel, self.tile["ab".index(side)]
        members = kernel.members
        if members is None or members.side != side:
            yield MemberRows(0, 0, tile, {}, side)
            return
        own = kernel.pieces * WARPGROUP_ROWS
        # Each warpgroup has the rows of all members behind each other, as its sums are.
        groups = [(0, tile)] if side == "b" else [(i * own, own) for i in range(kernel.consumers)]
        for start, rows in groups:
            for number in range(members.count):
                at = start * members.count + number * rows
                yield MemberRows(at, start, rows, members.values(number), self.maps(side)[number])

    def maps(self, side: str) -> list[str]:
        """Names of the tensor maps of a factor, by the number of a member."""
        kernel = self.kernel
        others = getattr(kernel, side).others
        if others:
            return [side, *(f"{side}{i + 1}" for i in range(len(others)))]
        return [side] * (kernel.members.count if kernel.members else 1)

    @property
    def member_sums(self) -> int:
        """Sums that a thread has of each member, behind which those of the next are."""
        kernel = self.kernel
        if kernel.members is None or kernel.members.side == "a":
            return kernel.pieces * kernel.instruction.shape[1] // 2
        return kernel.columns // 2

    @property
    def threads(self) -> int:
        """Threads of a block: those of the consumers, and of the warpgroup that copies."""
        return (self.kernel.consumers + 1) * WARPGROUP_THREADS

    def told(self) -> str:
        """Describe it in a line."""
        m, n, k = self.tile
        blocks = "persistent blocks" if self.kernel.persistent else "blocks"
        out = "TMA" if self.stores_by_box else "each thread"
        out += ", turned" if self.turned else ""
        windows = self.kernel.windows
        rows = "" if windows is None else f"boxes of {'x'.join(map(str, windows.box))} pixels, "
        if windows is not None and windows.halo is not None:
            rows += f"each once with its {'x'.join(map(str, windows.halo.box))} neighbours, "
        if self.kernel.runs > 1:
            rows += f"{self.kernel.runs} runs of {self.kernel.run} channels a step, "
        if self.shared:
            blocks += f" in clusters of {self.blocks} that share {self.shared.upper()}"
        if self.kernel.slices > 1:
            blocks += f" in clusters of {self.kernel.slices} that share the steps along K"
        turns = "in turns " if self.kernel.pingpong else ""
        if self.kernel.scaled:
            rows += "sums of each step scaled, "
        if self.kernel.groups:
            rows += f"rows of {self.kernel.groups.count} groups, "
        if self.kernel.members:
            rows += f"sums of {self.kernel.members.count} products, "
        if self.keeps_b:
            rows += "B copied once a block, "
        return (
            f"{self.kernel.instruction.name} on tiles of {m}x{n}x{k}, {rows}{self.stages} stages "
            f"by TMA, {self.kernel.consumers} warpgroups that multiply {turns}and 1 that copies, "
            f"{self.grid} {blocks}, results stored by {out}"
        )


def recorded(plan: Plan) -> PipelineRecord:
    """The steps of a tile as reports draw them.

    A stage is given back one product late, but where the sums of each are waited for.
    """
    kernel, ahead = plan.kernel, plan.stages - 1
    versions = (plan.stages, plan.steps if plan.keeps_b else plan.stages)
    buffers = tuple(
        VersionedBuffer(str(one.source.buffer.name), "shared.dyn", count, size)
        for one, count, size in zip(
            (kernel.a, kernel.b), versions, (plan.a_bytes, plan.b_bytes), strict=True
        )
    )
    names = tuple(one.name for one in buffers)
    last = kernel.consumers
    copy_role = f"warpgroup {last}"
    role = "warpgroup 0" if last == 1 else f"warpgroups 0 to {last - 1}"
    role += " in turns" if kernel.pingpong else ""
    copies = (
        PipelineStep(f"copy {name}", place, ahead, True, name, (), copy_role)
        for place, name in enumerate(names[: 1 if plan.keeps_b else 2])
    )
    steps = (PipelineStep(kernel.instruction.name, 2, 0, False, None, names, role), *copies)
    given_back = "after its products" if kernel.scaled else "one iteration after its products"
    loaded = plan.loaded[0] if plan.keeps_b else sum(plan.loaded)
    channels: tuple[str, ...] = (
        f"full[version]: {loaded:,} bytes, waited for by {role}.",
        f"empty[version]: {plan.arrivals} arrivals, {given_back}, waited for by {copy_role}.",
    )
    if plan.keeps_b:
        channels += (f"{names[1]} comes with the steps of a block's first tile, and stays.",)
    return PipelineRecord("k", str(plan.steps), ahead, steps, buffers, None, None, False, channels)


def b_rows(kernel: Kernel) -> int:
    """Rows of 128 bytes of a tile of B; whole panels where its neighbours lie along N."""
    _, columns, depth = kernel.instruction.shape
    return columns if kernel.b.k_major else ceil(columns / depth) * depth


def result_bytes(kernel: Kernel) -> int:
    """Bytes of an element of the result."""
    return np.dtype(str(kernel.result.store.buffer.dtype)).itemsize


def make_plan(kernel: Kernel, gpu: Architecture) -> Plan:
    """Work the numbers out.

    Raises ScheduleError if the GPU, TMA, the registers or shared memory do not allow the kernel.
    """
    _check_gpu(kernel, gpu)
    _check_registers(kernel)
    _check_groups(kernel)
    _check_pingpong(kernel)
    _check_members(kernel)
    stages = max(kernel.a.stages, kernel.b.stages)
    by_box = _stores_by_box(kernel)
    for haloed in with_halos(kernel):
        # A stage is of another size than the schedule knows.
        for fewer in range(stages, 1, -1):
            plan = _numbered(haloed, fewer, gpu, by_box)
            if _fits(plan, gpu):
                return plan
    plan = _numbered(kernel, stages, gpu, by_box)
    if (plan.turned or plan.chunk_row_bytes < PANEL_BYTES) and not _fits(plan, gpu):
        plan = _numbered(kernel, stages, gpu, by_box=False)
    for side, extent in (("A", plan.tile[0]), ("B", plan.tile[1])):
        operand = kernel.a if side == "A" else kernel.b
        boxed = side == "B" or kernel.windows is None
        if operand.k_major and boxed and extent > BOX_ELEMENTS:
            raise ScheduleError(
                f"A tile of {side} has {extent} rows; a box of TMA has {BOX_ELEMENTS} at most."
            )
    if not _fits(plan, gpu):
        raise ScheduleError(
            f"{stages} stages of {plan.stage_bytes:,} bytes and the results take "
            f"{plan.shared_bytes:,} bytes of shared memory; {gpu.name} has "
            f"{gpu.shared_per_block:,} for a block."
        )
    return plan


def _numbered(kernel: Kernel, stages: int, gpu: Architecture, by_box: bool) -> Plan:
    """The numbers of a kernel of so many stages, whether these fit or not."""
    plan = Plan(kernel, stages, by_box, 1)
    most = MULTIPROCESSORS // plan.blocks * plan.blocks
    few = isinstance(plan.count, int) and plan.count < most
    plan = replace(plan, grid=most if kernel.persistent and not few else plan.count)
    _check_cluster(plan)
    kept = replace(plan, keeps_b=True)
    return kept if _may_keep(plan) and _fits(kept, gpu) else plan


def _fits(plan: Plan, gpu: Architecture) -> bool:
    """Whether a block's shared memory, rounded up, is there."""
    return whole_patterns(plan.shared_bytes) <= gpu.shared_per_block


def _may_keep(plan: Plan) -> bool:
    """Whether all tiles of a block multiply by the same columns of the same B."""
    kernel = plan.kernel
    same = kernel.batch is None or not any(
        uses(index, kernel.batch) for index in kernel.b.source.indices
    )
    again = not isinstance(plan.turns, int) or plan.turns > 1
    alone = plan.blocks == kernel.slices == plan.tiles[1] == 1
    return alone and again and same and kernel.groups is None and kernel.scaled is None


def _check_groups(kernel: Kernel) -> None:
    """Refuse what needs to know how many tiles there are."""
    if kernel.groups is None:
        return
    blocks = prod(kernel.cluster) * kernel.slices
    if blocks > 1:
        raise ScheduleError(
            f"{blocks} blocks of a cluster share tiles of {kernel.groups.count} groups of rows, "
            "which are counted on the GPU; only clusters of 1 are legal."
        )
    if kernel.windows is not None:
        raise ScheduleError(
            f"The rows of {kernel.groups.count} groups are pixels of a convolution; only rows of a "
            "matrix can be grouped."
        )


def _check_pingpong(kernel: Kernel) -> None:
    """Refuse warpgroups in turns where there is no next tile, or none to take turns with."""
    problem = None
    if not kernel.pingpong:
        return
    if not kernel.persistent:
        problem = "each block has a single tile; call sch.persistent on the loop of its rows"
    elif kernel.groups is not None:
        problem = "tiles of groups of rows are counted on the GPU"
    elif kernel.scaled is not None:
        problem = "it scales the sums of each step while the other multiplies already"
    elif kernel.members is not None:
        problem = f"a tile has the sums of {kernel.members.count} products"
    if problem:
        raise ScheduleError(f"Two warpgroups shall multiply in turns (pingpong), but {problem}.")


def _check_members(kernel: Kernel) -> None:
    """Refuse what counts the sums of a thread otherwise than members have them."""
    if kernel.members is None:
        return
    count, blocks = kernel.members.count, prod(kernel.cluster) * kernel.slices
    if blocks > 1:
        raise ScheduleError(
            f"{blocks} blocks of a cluster share tiles with the sums of {count} products; only "
            "clusters of 1 are legal."
        )
    panel = kernel.instruction.shape[2]
    if kernel.members.side == "b" and not kernel.b.k_major and kernel.columns % panel:
        raise ScheduleError(
            f"A tile has {kernel.columns} columns of each of {count} products, whose neighbours in "
            f"memory lie along N; multiples of {panel} are legal."
        )
    if kernel.windows is not None:
        raise ScheduleError(
            f"Tiles with the sums of {count} products have pixels of a convolution for rows; only "
            "rows of a matrix are legal."
        )


def _check_cluster(plan: Plan) -> None:
    """Refuse parts of a tile that would not begin where the swizzle's pattern does."""
    _check_slices(plan)
    if not plan.shared:
        return
    operand = getattr(plan.kernel, plan.shared)
    extent = plan.tile["ab".index(plan.shared)] if operand.k_major else plan.tile[2]
    boxed = plan.shared == "a" and plan.kernel.windows is not None
    least = (WARPGROUP_ROWS if boxed else 8) * plan.blocks
    if extent % least:
        raise ScheduleError(
            f"{plan.blocks} blocks of a cluster share {extent} rows of a tile; multiples of "
            f"{least} are legal."
        )


def _sums_of_others(kernel: Kernel) -> int:
    """Bytes of the sums that a block of a cluster gets from the others, of its share of a tile."""
    each = kernel.pieces * kernel.instruction.registers // _shares(kernel)
    return 4 * each * (kernel.slices - 1) * kernel.consumers * WARPGROUP_THREADS


def _window_steps(kernel: Kernel) -> int:
    """Steps of all slices together of a convolution."""
    assert kernel.windows is not None
    if kernel.halo is not None:
        return kernel.windows.runs // kernel.windows.places
    return ceil(kernel.windows.runs / kernel.runs)


def _check_slices(plan: Plan) -> None:
    kernel = plan.kernel
    problem = None
    if kernel.slices == 1:
        return
    if plan.shared:
        problem = f"its blocks share {plan.shared.upper()} already; leave one of the two out"
    elif kernel.scaled is not None:
        problem = "it scales the sums of each step"
    elif kernel.windows is not None and (rest := _window_steps(kernel) % kernel.slices):
        # Behind the last place of a window are no zeros that would fill the slices up.
        problem = f"{_window_steps(kernel)} steps of a window leave {rest} over"
    elif kernel.persistent:
        problem = "persistent blocks copy ahead into the memory where sums are added up"
    elif (kept := _sums_of_others(kernel)) > plan.results_at:
        problem = (
            f"{kept:,} bytes of sums do not fit where {plan.results_at:,} bytes of stages were"
        )
    elif kernel.instruction.sums == "float16":
        problem = "its sums of float16 lie two in a register"
    if problem:
        raise ScheduleError(f"A cluster of {kernel.slices} adds up slices of K, but {problem}.")


def _check_gpu(kernel: Kernel, gpu: Architecture) -> None:
    if gpu.name != "sm_90a":
        raise ScheduleError(
            f"The kernel was scheduled for {kernel.instruction.name}, an instruction of sm_90a "
            f"alone; it is lowered for {gpu.name}."
        )


def _check_registers(kernel: Kernel) -> None:
    if kernel.consumers not in REGISTERS:
        raise ScheduleError(
            f"{kernel.consumers} warpgroups multiply; {min(REGISTERS)} to {max(REGISTERS)} share "
            "the registers of a multiprocessor with one that copies."
        )
    # Sums of a step that are scaled lie beside their totals.
    sums = (kernel.held + bool(kernel.scaled)) * kernel.instruction.shape[1] // 2
    most = most_sums(kernel.consumers) + (_BESIDE if kernel.scaled else 0)
    if sums > most:
        raise ScheduleError(
            f"A thread would hold {sums} sums; of {kernel.consumers} warpgroups that multiply each "
            f"thread has registers for {most}."
        )


def _stores_by_box(kernel: Kernel) -> bool:
    """Whether TMA can store the result: it lies as the sums do or turned, in rows of TMA's."""
    return (
        (kernel.result.is_boxed or _may_turn(kernel))
        and result_bytes(kernel) in ((2,) if kernel.members else (2, 4))
        and _has_whole_rows(kernel)
        and _shares_are_whole(kernel)
    )


def _has_whole_rows(kernel: Kernel) -> bool:
    """Whether columns fill rows of 128 bytes, or rows of 64 by 16 bits each.

    By each thread, 1769472x32 results of 32 terms took 188 us, where moving all takes 54 (H200).
    """
    row = kernel.columns * result_bytes(kernel)
    short = row == PANEL_BYTES // 2 and result_bytes(kernel) == 2
    alone = kernel.result.is_boxed and kernel.groups is None and kernel.members is None
    return row >= PANEL_BYTES or (short and alone)


def _may_turn(kernel: Kernel) -> bool:
    """Whether the transpose of the sums is stored by boxes, as ``stmatrix`` can turn 16 bits."""
    others = kernel.groups, kernel.members, kernel.scaled, kernel.windows
    alone = all(one is None for one in others)
    return alone and kernel.result.is_turned and result_bytes(kernel) == 2


def _shares_are_whole(kernel: Kernel) -> bool:
    """Whether the blocks that add up a tile have whole chunks of it."""
    return kernel.slices == 1 or _whole_chunks(kernel) % _shares(kernel) == 0


def _whole_chunks(kernel: Kernel) -> int:
    """Chunks of results of a warpgroup; 1 where the last of a row is shorter than others."""
    chunks, rest = divmod(kernel.columns, PANEL_BYTES // result_bytes(kernel))
    return 1 if rest else chunks * kernel.pieces


def _shares(kernel: Kernel) -> int:
    sums = kernel.pieces * kernel.instruction.registers
    return shares_of(kernel.slices, sums, _whole_chunks(kernel))
