"""Decide the numbers of a kernel of attention: tiles, stages, places in shared memory, launch."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import ceil, prod
from typing import Any

import numpy as np

from ...analysis.attention import Attention
from ...errors import ScheduleError
from ...gpu.hardware import MULTIPROCESSORS, Architecture
from ...gpu.warpgroups import (
    BOX_ELEMENTS,
    PANEL_BYTES,
    REGISTERS,
    WARPGROUP_ROWS,
    WARPGROUP_THREADS,
)
from ...intrin.warpgroups import WarpgroupInstruction, choose_warpgroup
from ...ir.queries import USUAL_BATCH, size_of, uses
from ..hopper.read_kernel import BoxedBuffer, SumsReader
from ..launch.rasterize_blocks import grouped
from .reach import Bound, read_bounds

#: Elements of 16 bits of a panel's row, and terms of one instruction.
PANEL, STEP = 64, 16
#: Numbers that a thread can hold beside addresses and counters: scores, weights and means; of one
#: warpgroup that multiplies, of two and of three.
_HELD = {1: 220, 2: 200, 3: 132}
#: How long a row takes in a block of so many warpgroups: 8x12x384x64 took 15.7 us in two rounds by
#: three and 18.2 in three rounds by two, 32x12x197x64 34.6 and 26.8 in six each, 4x16x2048x64 165
#: and 175, 2x8x4096x40 150 and 180 (float16, H100); beside one, nothing hides its softmax.
_PER_ROW = {3: 1.0, 2: 1.18, 1: 1.64}
#: Keys of the smallest tile that is chosen.
_FEWEST_KEYS = 64
#: Bytes of K and V that the tiles at work at a time may share in L2.
_L2_BYTES = 32 << 20
#: Of a multiprocessor in a microsecond; of all in one, what parts leave and what reads it; the
#: microseconds of a second kernel.
_FLOPS, _BYTES, _SECOND_KERNEL = 4.0e6, 3.0e6, 3.0
#: Part of the whole time that sharing has to gain. Every loop then ends at a number that only the
#: block knows: 8x32x4096x128, which gains nothing else, takes 2.8% longer (float16, H100).
_WORTH = 0.04
#: Bytes for barriers, and for rounding the dynamic part up behind them.
_BARRIER_BYTES, _ALIGNED = 8, 1024


@dataclass(frozen=True)
class AttentionPlan:
    """Attention and the numbers of its kernel.

    A block has ``consumers`` warpgroups of 64 rows each, and goes over tiles of ``keys`` rows of K
    and V, of which it has room for ``stages``. Where ``splits`` is above 1 so many blocks share the
    keys of each tile of rows but the first ``whole`` ones, and another kernel puts their results
    together. Where ``resident`` is not 0 so many blocks take tiles in turns, with a second place
    for Q, so that a tile's first loads lie under the end of the one before.
    """

    attention: Attention
    keys: int
    stages: int
    consumers: int
    splits: int = 1
    whole: int = 0
    resident: int = 0

    def numbers(self) -> list[int]:
        """Write it for an annotation."""
        return [getattr(self, one.name) for one in fields(self)[1:]]

    @property
    def dtype(self) -> str:
        """Type of Q, K and V."""
        return str(self.attention.q.source.dtype)

    @property
    def rows(self) -> int:
        """Rows of Q of a block."""
        return self.consumers * WARPGROUP_ROWS

    @property
    def turns(self) -> bool:
        """Whether warpgroups issue their products one after the other.

        Of three, 4x16x2048x64 takes 169 us for 172, causal 100 for 103; two lose 1 to 3% (H100).
        """
        return self.consumers == 3

    @property
    def parts(self) -> Any:
        """Tiles that have a block each, and parts of the keys of the others."""
        return self.whole + (self.heads * self.tiles - self.whole) * self.splits

    @property
    def q(self) -> BoxedBuffer:
        """Q as TMA sees it."""
        one = self.attention
        return self._boxed(one.q.source, one.q.indices, (one.row, one.depth))

    @property
    def k(self) -> BoxedBuffer:
        """K as TMA sees it."""
        one = self.attention
        return self._boxed(one.k.source, one.k.indices, (one.key, one.depth))

    @property
    def v(self) -> BoxedBuffer:
        """V as TMA sees it."""
        one = self.attention
        return self._boxed(one.v.source, one.v.indices, (one.key, one.column))

    @property
    def result(self) -> SumsReader:
        """The result as TMA sees it."""
        one = self.attention
        target = self._boxed(one.store.buffer, one.store.indices, (one.row, one.column))
        return SumsReader(one.store, one.total, target)

    @property
    def panels(self) -> tuple[int, int]:
        """Panels of 64 columns of Q and K, and of V."""
        _, _, depth, width = self.attention.sizes
        return ceil(depth / PANEL), ceil(width / PANEL)

    @property
    def stores_by_box(self) -> bool:
        """Whether TMA can store the result, from the place that Q had."""
        _, _, depth, width = self.attention.sizes
        size = np.dtype(str(self.attention.store.buffer.dtype)).itemsize
        leaves = self.splits > 1 and not self.whole
        return not leaves and width <= depth and size == 2 and self.result.is_boxed

    @property
    def instructions(self) -> tuple[WarpgroupInstruction, WarpgroupInstruction]:
        """What multiplies Q by K, and weights by V."""
        width = self.attention.sizes[3]
        return (
            WarpgroupInstruction(self.dtype, "float32", self.keys),
            WarpgroupInstruction(self.dtype, "float32", width),
        )

    @property
    def q_bytes(self) -> int:
        """Bytes of a tile of Q."""
        return self.rows * PANEL_BYTES * self.panels[0]

    @property
    def stage_bytes(self) -> tuple[int, int]:
        """Bytes of a tile of K and of V."""
        k, v = (self.keys * PANEL_BYTES * panels for panels in self.panels)
        return k, v

    @property
    def places_of_q(self) -> int:
        """Tiles of Q in shared memory."""
        return 2 if self.resident else 1

    @property
    def arena_bytes(self) -> int:
        """Bytes of dynamic shared memory."""
        return self.places_of_q * self.q_bytes + self.stages * sum(self.stage_bytes)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block, barriers included."""
        barriers = 4 * self.stages + (2 * self.places_of_q if self.resident else 1)
        return -(-(self.arena_bytes + barriers * _BARRIER_BYTES) // _ALIGNED) * _ALIGNED

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (self.consumers + 1) * WARPGROUP_THREADS

    @property
    def heads(self) -> Any:
        """Attentions of the batch."""
        return prod(n for _, n in self.attention.batch)

    @property
    def usual_heads(self) -> int:
        """The same, where each extent that is symbolic is an usual one."""
        return prod(n if isinstance(n, int) else USUAL_BATCH for _, n in self.attention.batch)

    @property
    def hides_rows(self) -> bool:
        """Whether what is added to scores may hide all keys of a row."""
        return self.attention.scores.bias is not None

    @property
    def tiles(self) -> int:
        """Tiles of rows of one of them."""
        return ceil(self.attention.sizes[0] / self.rows)

    @property
    def group(self) -> int:
        """Attentions whose tiles are computed side by side."""
        _, keys, depth, width = self.attention.sizes
        most = max(1, _L2_BYTES // (2 * keys * (depth + width)))
        return min(self.heads, most) if isinstance(self.heads, int) else most

    def _boxed(self, buffer: Any, indices: Any, moving: tuple[Any, Any]) -> BoxedBuffer:
        """A buffer as TMA sees it; what lies behind the rows in use is zero."""
        one = self.attention
        used = dict(zip((one.row, one.key, one.depth, one.column), one.sizes, strict=True))
        extents = []
        for index, extent in zip(indices, buffer.shape, strict=True):
            limits = [n for var, n in used.items() if index.same_as(var)]
            extents.append(min([size_of(extent), *limits]) if limits else size_of(extent))
        return BoxedBuffer(buffer, indices=tuple(indices), moving=moving, extents=tuple(extents))

    @property
    def bounds(self) -> list[Bound]:
        """Which keys a row sees, and where the last tile of them ends."""
        return read_bounds(self.attention, self.keys)[0]

    def tile_of(self, number: Any) -> tuple[Any, Any]:
        """Head and tile of a number; those with the most keys are first."""
        head, turn = grouped(0, number, self.heads, self.tiles, self.group)
        grows = any(bound.is_upper and bound.slope > 0 for bound in self.bounds)
        return head, self.tiles - 1 - turn if grows else turn

    def _blocks_told(self) -> str:
        if self.resident:
            return f"{self.resident} blocks that take tiles in turns"
        if isinstance(self.heads, int):
            return f"{self.parts} blocks"
        return f"{self.tiles * self.splits} blocks for each head of any batch"

    def told(self) -> str:
        """Describe it in a line."""
        out = "TMA" if self.stores_by_box else "each thread"
        ends = f"results stored by {out}"
        if self.splits > 1:
            behind = f" behind the first {self.whole} tiles" if self.whole else ""
            ends = f"{self.splits} {'parts' if self.resident else 'of them'} for the keys of a row"
            ends += behind
        return (
            f"{self.rows} rows by tiles of {self.keys} keys, {self.stages} stages of K and V by "
            f"TMA, {self.consumers} warpgroups that multiply and 1 that copies, "
            f"{self._blocks_told()}, {ends}"
        )


def fit_attention(
    attention: Attention, gpu: Architecture, *, keys: int = 0, stages: int = 0, consumers: int = 0
) -> AttentionPlan:
    """Take the tiles that registers and shared memory have room for; 0 leaves a number open.

    Raises ScheduleError if the kernel is not legal.
    """
    _, count, depth, width = attention.sizes
    keys = keys or keys_of(depth, width, count)
    usual = [n for n in _PER_ROW if n < 3 or max(depth, width) <= PANEL]
    plans = [AttentionPlan(attention, keys, 2, n) for n in ([consumers] if consumers else usual)]
    best = min(plans, key=_waves)
    if best.consumers == 1:  # Nothing hides the way of the tiles but more of them.
        room = (gpu.shared_per_block - 2 * _ALIGNED - best.q_bytes) // sum(best.stage_bytes)
        best = replace(best, stages=min(3, room))
    best = replace(best, stages=stages or best.stages)
    splits, whole = _shared(best)
    best = replace(best, splits=splits, whole=whole)
    return checked(replace(best, resident=_resident(best, gpu)), gpu)


def keys_of(depth: int, width: int, count: int | None = None) -> int:
    """Keys of a tile, where nobody asks for others: ``count`` of them fill as many tiles evenly."""
    most = 128 if max(depth, width) <= 128 else 96 if max(depth, width) <= 192 else 64
    if count is None:
        return most
    even = ceil(count / ceil(count / most))
    return min(most, max(_FEWEST_KEYS, ceil(even / STEP) * STEP))


def _shared(plan: AttentionPlan) -> tuple[int, int]:
    """Blocks that share the keys of a tile, and how many tiles before those have a block each.

    They do where tiles leave most multiprocessors idle: all of them by one warpgroup, or those of
    the last round. Each block has at least two tiles of keys, and all but the last as many as one
    another.
    """
    bounds = plan.bounds
    if any(one.slope or not one.is_upper for one in bounds):
        return 1, 0
    tiles, count = plan.usual_heads * plan.tiles, ceil(plan.attention.sizes[1] / plan.keys)
    count = max(1, min([count, *(one.offset // plan.keys + 1 for one in bounds)]))
    left = tiles if tiles <= MULTIPROCESSORS else tiles % MULTIPROCESSORS
    most = max(1, count // 2)
    if plan.consumers == 1 and left == tiles:
        most = max(1, min(MULTIPROCESSORS // left, most))
        return ceil(count / ceil(count / most)), 0
    if left in (0, tiles) or not isinstance(plan.heads, int):
        return 1, 0
    ways = sorted({ceil(count / ceil(count / n)) for n in range(1, most + 1)})
    best = min(ways, key=lambda n: _last_round(plan, left, n))
    alone = _last_round(plan, left, 1)
    gain = alone - _last_round(plan, left, best)
    return (best, tiles - left) if gain > _WORTH * ceil(tiles / MULTIPROCESSORS) * alone else (1, 0)


def _last_round(plan: AttentionPlan, left: int, splits: int) -> float:
    """Microseconds of the tiles that are left for the last round, by blocks that share keys."""
    _, keys, depth, width = plan.attention.sizes
    alone = 2 * plan.rows * keys * (depth + width) / _FLOPS
    if splits == 1:
        return alone
    moved = 2 * left * splits * plan.rows * width * 4
    rounds = ceil(left * splits / MULTIPROCESSORS) / splits
    return alone * rounds + _SECOND_KERNEL + moved / _BYTES


def _resident(plan: AttentionPlan, gpu: Architecture) -> int:
    """Blocks that take tiles in turns: one for each multiprocessor, where there are more tiles.

    One warpgroup leaves room for several blocks, which hide each other's ends.
    """
    tiles = plan.usual_heads * plan.tiles
    count = plan.whole + (tiles - plan.whole) * plan.splits
    turned = replace(plan, resident=MULTIPROCESSORS)
    fits = turned.shared_bytes <= gpu.shared_per_block
    return MULTIPROCESSORS if plan.consumers > 1 and count > MULTIPROCESSORS and fits else 0


def _waves(plan: AttentionPlan) -> float:
    """How long the tiles take: rounds of blocks, which end together unless their keys differ."""
    waves = plan.usual_heads * plan.tiles / MULTIPROCESSORS
    differ = any(bound.slope for bound in plan.bounds)
    whole: float = waves + 0.5 if differ and waves > 2 else ceil(waves)
    splits, first = _shared(plan)
    if first:
        left = plan.usual_heads * plan.tiles - first
        whole += _last_round(plan, left, splits) / _last_round(plan, left, 1) - 1
    return whole * plan.rows * _PER_ROW.get(plan.consumers, 1.0)


def why_crowded(keys: int, width: int, consumers: int) -> str | None:
    """Why registers do not hold scores, weights and means of a tile, in a sentence, or None."""
    held = keys * 3 // 4 + width // 2
    if held <= _HELD[consumers]:
        return None
    return (
        f"A thread would hold {held} numbers; of {consumers} warpgroups that multiply each thread "
        f"has registers for {_HELD[consumers]}."
    )


def checked(plan: AttentionPlan, gpu: Architecture) -> AttentionPlan:
    """The same plan, if the GPU, TMA, registers and shared memory allow it.

    Raises
    ------
    ScheduleError
        If they do not.
    """
    _, extent, depth, _ = plan.attention.sizes
    check_room(plan, gpu)
    kinds = {
        str(one.source.dtype) for one in (plan.attention.q, plan.attention.k, plan.attention.v)
    }
    if len(kinds) > 1:
        raise ScheduleError(f"Q, K and V are {', '.join(sorted(kinds))}; all must agree.")
    for one in (plan.q, plan.k, plan.v):
        if one.problem:
            raise ScheduleError(f"{one.problem}.")
        if not uses(one.indices[-1], one.moving[1]):
            raise ScheduleError(
                f"Neighbours of {one.buffer.name} are no columns of a head; TMA and wgmma take "
                "these here."
            )
    for one in (plan.q, plan.k):
        if depth % STEP and not one.ends_with(plan.attention.depth):
            raise ScheduleError(
                f"Columns of {one.buffer.name} are read at {one.indices[-1]}; heads of {depth} "
                f"columns, no multiple of {STEP}, need a dim of their own, behind which TMA "
                "leaves zeros."
            )
    ragged = extent % plan.keys > 0
    for one in (plan.k, plan.v):
        along = next((at for at in one.indices if uses(at, plan.attention.key)), None)
        if ragged and (along is None or not along.same_as(plan.attention.key)):
            raise ScheduleError(
                f"Buffer {one.buffer.name} is read at {along}; {extent} keys are no multiple of "
                f"{plan.keys}, and what lies behind them would be read."
            )
    return plan


def check_room(plan: AttentionPlan, gpu: Architecture) -> None:
    """Refuse tiles that instructions, TMA, registers or shared memory do not take."""
    _, _, depth, width = plan.attention.sizes
    if plan.consumers not in REGISTERS:
        raise ScheduleError(f"{plan.consumers} warpgroups cannot multiply; 1 to 3 can.")
    for columns in (plan.keys, width):
        choose_warpgroup("wgmma", plan.dtype, "float32", columns, gpu)
    if plan.keys % STEP:
        raise ScheduleError(f"Tiles of {plan.keys} keys are no multiple of {STEP}.")
    if max(plan.rows, plan.keys) > BOX_ELEMENTS or depth > BOX_ELEMENTS:
        raise ScheduleError(
            f"A tile has {plan.rows} rows of {depth} and {plan.keys} keys; {BOX_ELEMENTS} are the "
            "most of each."
        )
    if crowded := why_crowded(plan.keys, width, plan.consumers):
        raise ScheduleError(crowded)
    if (needed := plan.shared_bytes) > gpu.shared_per_block:
        raise ScheduleError(
            f"A tile of Q and {plan.stages} stages of K and V take {needed:,} bytes of shared "
            f"memory; {gpu.name} has {gpu.shared_per_block:,} for a block."
        )
