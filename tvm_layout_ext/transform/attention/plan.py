"""Numbers of a kernel of attention: tiles, stages, places in shared memory, launch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from math import ceil, prod
from typing import Any

import numpy as np
from tvm import sym, tirx
from tvm.ir import Range

from ...analysis.attention import Attention
from ...errors import ScheduleError
from ...gpu.hardware import MULTIPROCESSORS, Architecture
from ...gpu.warpgroups import (
    BOX_ELEMENTS,
    MOST_TMA_DIMS,
    PANEL_BYTES,
    REGISTERS,
    WARPGROUP_ROWS,
    WARPGROUP_THREADS,
)
from ...intrin.warpgroups import WarpgroupInstruction, choose_warpgroup
from ...ir.queries import USUAL_BATCH, loads_in, size_of, substitute, uses, variables
from ..hopper.read_kernel import BoxedBuffer, SumsReader
from ..launch.rasterize_blocks import grouped
from .reach import Bound, is_ragged, reach, read_bounds, read_conditions
from .turns import Heads, order_of

#: Elements of 16 bits of a panel's row, and terms of one instruction.
PANEL, STEP = 64, 16
#: Numbers that a thread can hold beside addresses and counters: scores, weights and means; of one
#: warpgroup that multiplies, of two and of three.
_HELD = {1: 220, 2: 200, 3: 132}
#: How long a row takes in a block of so many warpgroups: 4x16x2048x64 took 165 us by three and 175
#: by two, 2x8x4096x40 150 and 180 (float16, H100); beside one, nothing hides its softmax.
PER_ROW = {3: 1.0, 2: 1.18, 1: 1.64}
#: Bytes of K and V that the tiles at work at a time may share in L2.
_L2_BYTES = 32 << 20
#: Rows that any number of them is taken for, as those of a prompt.
_USUAL_ROWS = 1024
#: Of a multiprocessor in a microsecond.
_FLOPS = 4.0e6
#: Bytes for barriers, and for rounding the dynamic part up behind them.
_BARRIER_BYTES, ALIGNED = 8, 1024


@dataclass(frozen=True)
class AttentionPlan:
    """Attention and the numbers of its kernel.

    A block has ``consumers`` warpgroups of 64 rows each, and goes over tiles of ``keys`` rows of K
    and V, of which it has room for ``stages``. Where ``splits`` is above 1 so many blocks share the
    keys of each tile of rows but the first ``whole`` ones, and another kernel puts their results
    together. Where ``resident`` is not 0 so many blocks take tiles in turns, with a second place
    for Q, so that a tile begins under the end of the one before. A symbolic number of rows is
    promised to be at most ``most_rows``, if that is not 0.
    """

    attention: Attention
    keys: int
    stages: int
    consumers: int
    splits: int = 1
    whole: int = 0
    resident: int = 0
    most_rows: int = 0

    def numbers(self) -> list[int]:
        """Write it for an annotation; ``most_rows`` is said where rows are symbolic."""
        found = [getattr(self, one.name) for one in fields(self)[1:]]
        return found[:-1] if self.knows_rows else found

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
    def overlaps(self) -> bool:
        """Whether a tile's first scores are computed beside the last means of the one before."""
        return self.consumers == 3

    @property
    def parts(self) -> Any:
        """Tiles that have a block each, and parts of the keys of the others."""
        return self.whole + (self.heads * self.tiles - self.whole) * self.splits

    @property
    def places_of_parts(self) -> Any:
        """Parts that memory has room for."""
        if self.knows_rows or not self.most_rows:
            return self.parts - self.whole
        return self.heads * ceil(self.most_rows / self.rows) * self.splits

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

    @cached_property
    def bias(self) -> BoxedBuffer | None:
        """What is added to scores as TMA sees it, beside K; None where lanes read it themselves.

        It is 16 bits of each row and key. T5's took 38 us of 4x12x512x64 read by lanes (H100).
        """
        one, moving = self.attention, (self.attention.row, self.attention.key)
        for load in () if one.scores.bias is None else loads_in(one.scores.bias):
            boxed = self._boxed(load.source, load.indices, moving)
            along = [any(index.same_as(var) for index in load.indices) for var in moving]
            narrow = np.dtype(str(load.source.dtype)).itemsize == 2
            fits = boxed.folded is None and boxed.problem is None
            if narrow and all(along) and boxed.ends_with(one.key) and fits:
                return boxed
        return None

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
    def bias_bytes(self) -> int:
        """Bytes of a tile of what is added to scores, if TMA brings it."""
        return self.rows * PANEL_BYTES * ceil(self.keys / PANEL) if self.bias else 0

    @property
    def bias_at(self) -> int:
        """Where these tiles begin in shared memory."""
        return self.places_of_q * self.q_bytes + self.stages * sum(self.stage_bytes)

    @property
    def places_of_q(self) -> int:
        """Tiles of Q in shared memory."""
        return 2 if self.resident else 1

    @property
    def arena_bytes(self) -> int:
        """Bytes of dynamic shared memory."""
        return self.bias_at + self.stages * self.bias_bytes

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block, barriers included."""
        barriers = 4 * self.stages + (2 * self.places_of_q if self.resident else 1)
        return -(-(self.arena_bytes + barriers * _BARRIER_BYTES) // ALIGNED) * ALIGNED

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

    @cached_property
    def hides_rows(self) -> bool:
        """Whether all keys of a row may be hidden, by conditions or what is added to scores."""
        rows = self.modelled_rows
        bounds, others = read_conditions(self.attention)
        known = all(isinstance(one.offset, int) for one in bounds)
        if not known or (not self.knows_rows and any(one.slope for one in bounds)):
            return True
        last, first = np.full(rows, self.modelled_keys - 1), np.zeros(rows, int)
        for one in bounds:
            end = np.arange(rows) * one.slope + one.offset
            if one.is_upper:
                last = np.minimum(last, end)
            else:
                first = np.maximum(first, end)
        return bool(others) or self.attention.scores.bias is not None or bool((first > last).any())

    @property
    def knows_rows(self) -> bool:
        """Whether the number of rows is known before the kernel is called."""
        return isinstance(self.attention.sizes[0], int)

    @property
    def knows_sizes(self) -> bool:
        """Whether batch, rows and keys are known before."""
        return isinstance(self.parts, int) and isinstance(self.attention.sizes[1], int)

    @property
    def fills_tiles(self) -> bool:
        """Whether there is no tile of which rows lie behind the last one."""
        return self.knows_rows and self.attention.sizes[0] % self.rows == 0

    @property
    def modelled_rows(self) -> int:
        """Rows, or as many as a symbolic number of them is taken for."""
        if self.knows_rows:
            return int(self.attention.sizes[0])
        return self._usual_rows

    @property
    def _usual_rows(self) -> int:
        return ceil(self.most_rows / 2) or _USUAL_ROWS

    @property
    def modelled_keys(self) -> int:
        """Keys, or as many as a symbolic number of them is taken for."""
        return self._modelled(self.attention.sizes[1])

    def _modelled(self, number: Any) -> int:
        """A number of symbolic sizes, each of which is taken for that of the rows."""
        if isinstance(number, int):
            return number
        at = {var: tirx.const(self._usual_rows, str(var.ty.dtype)) for var in variables(number)}
        return int(sym.Analyzer().simplify(substitute(number, at)))

    @property
    def modelled_tiles(self) -> int:
        """Tiles of these rows."""
        return ceil(self.modelled_rows / self.rows)

    @property
    def tiles(self) -> Any:
        """Tiles of rows of one of them."""
        if self.knows_rows:
            return self.modelled_tiles
        return (self.attention.sizes[0] + (self.rows - 1)) // self.rows

    @property
    def group(self) -> int:
        """Attentions whose tiles are computed side by side."""
        return order_of(self.in_turns, self.most).group if self.resident else self.most

    @property
    def alternates(self) -> bool:
        """Whether every other turn goes over the blocks the other way round."""
        return order_of(self.in_turns, self.most).alternates

    @property
    def most(self) -> int:
        """Attentions whose K and V L2 holds."""
        most = max(1, _L2_BYTES // self._shared_bytes)
        return min(self.heads, most) if isinstance(self.heads, int) else most

    @property
    def step_time(self) -> float:
        """Modelled microseconds of a block's tile of keys."""
        flops = 2 * self.rows * self.keys * sum(self.attention.sizes[2:])
        return flops / _FLOPS * PER_ROW.get(self.consumers, 1.0)

    @property
    def _shared_bytes(self) -> int:
        """Bytes of K and V a head of Q, of which several may share one."""
        keys, (depth, width) = self.modelled_keys, self.attention.sizes[2:]
        kept = prod(size_of(n) for n in self.attention.k.source.shape) // (keys * depth)
        known = isinstance(self.heads, int) and isinstance(kept, int)
        sharing = max(1, self.heads // max(1, kept)) if known else 1
        return 2 * keys * (depth + width) // sharing

    @property
    def in_turns(self) -> Heads:
        """The tiles of all heads, as the model of turns sees them."""
        first, steps = tirx.Var("first_row", "int32"), list[int]()
        seen = reach(self.attention, first, self.rows, self.keys)
        for tile in range(self.modelled_tiles):
            at = {first: tirx.const(tile * self.rows, "int32")}
            steps.append(self._modelled(substitute(seen.end - seen.first, at)))
        own = 2 * self.rows * sum(self.attention.sizes[2:])
        return Heads(
            self.usual_heads,
            tuple(reversed(steps) if self._grows else steps),
            self.step_time,
            self._shared_bytes,
            own,
            self.resident or MULTIPROCESSORS,
        )

    def _boxed(self, buffer: Any, indices: Any, moving: tuple[Any, Any]) -> BoxedBuffer:
        """A buffer as TMA sees it; what lies behind the rows in use is zero."""
        one = self.attention
        used = dict(zip((one.row, one.key, one.depth, one.column), one.sizes, strict=True))
        own = [size_of(n) for n in buffer.shape]
        shape, places = _joined(*_split(own, [*indices], moving, used), [*used])
        extents = []
        for index, extent in zip(places, shape, strict=True):
            limits = [n for var, n in used.items() if index.same_as(var)]
            known = all(isinstance(n, int) for n in limits)
            extents.append(min([extent, *limits]) if known else limits[0])
        folded = None if shape == own else tuple(shape)
        return BoxedBuffer(buffer, tuple(places), moving, tuple(extents), folded)

    @property
    def bounds(self) -> list[Bound]:
        """Which keys a row sees, and where the last tile of them ends."""
        return read_bounds(self.attention, self.keys)[0]

    @property
    def _grows(self) -> bool:
        """Whether later rows see more keys."""
        return any(bound.is_upper and bound.slope > 0 for bound in self.bounds)

    def tile_of(self, number: Any) -> tuple[Any, Any]:
        """Head and tile of a number; those with the most keys are first."""
        head, turn = grouped(0, number, self.heads, self.tiles, self.group)
        return head, self.tiles - 1 - turn if self._grows else turn

    def _blocks_told(self) -> str:
        if self.resident:
            return f"{self.resident} blocks that take tiles in turns"
        if isinstance(self.parts, int):
            return f"{self.parts} blocks"
        if not self.knows_rows:
            any_number = f"up to {self.most_rows}" if self.most_rows else "any number of"
            return f"{self.splits} blocks for each tile of {any_number} rows"
        return f"{self.tiles * self.splits} blocks for each head of any batch"

    def told(self) -> str:
        """Describe it in a line."""
        out = "TMA" if self.stores_by_box else "each thread"
        ends = f"results stored by {out}"
        if self.splits > 1:
            behind = f" behind the first {self.whole} tiles" if self.whole else ""
            ends = f"{self.splits} of them for the keys of a row{behind}"
        loaded = "K, V and what is added to scores" if self.bias else "K and V"
        return (
            f"{self.rows} rows by tiles of {self.keys} keys, {self.stages} stages of {loaded} by "
            f"TMA, {self.consumers} warpgroups that multiply and 1 that copies, "
            f"{self._blocks_told()}, {ends}"
        )


def _split(
    shape: list[Any], indices: list[Any], moving: tuple[Any, Any], sizes: dict[Any, Any]
) -> tuple[list[Any], list[Any]]:
    """Shape and indices where heads that lie side by side, and are rows, have a dim of their own.

    They are the rows of a single place of Q.
    """
    row, column = moving
    width, last = sizes[column], indices[-1]
    if not (uses(last, row) and uses(last, column)) or not isinstance(shape[-1], int):
        return shape, indices
    analyzer = sym.Analyzer()
    analyzer.bind(column, Range(0, width))
    head = analyzer.simplify(last // width)
    if shape[-1] % width or not analyzer.can_prove_equal(head * width + column, last):
        return shape, indices
    return [*shape[:-1], shape[-1] // width, width], [*indices[:-1], head, column]


def _joined(shape: list[Any], indices: list[Any], moving: list[Any]) -> tuple[list[Any], list[Any]]:
    """Shape and indices of as many dims as TMA has: neighbours along which no box goes are one."""
    while len(indices) > MOST_TMA_DIMS:
        still = [not any(uses(index, var) for var in moving) for index in indices]
        at = next((i for i in range(len(still) - 1) if still[i] and still[i + 1]), None)
        if at is None:
            break
        joined = indices[at] * shape[at + 1] + indices[at + 1]
        shape = [*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]]
        indices = [*indices[:at], joined, *indices[at + 2 :]]
    return shape, indices


def why_crowded(keys: int, width: int, consumers: int) -> str | None:
    """Why registers do not hold scores, weights and means of a tile, in a sentence, or None."""
    held = keys * 3 // 4 + width // 2
    # Numbers of warpgroups that no kernel has are refused as such.
    if held <= _HELD.get(consumers, held):
        return None
    return (
        f"A thread would hold {held} numbers; of {consumers} warpgroups that multiply each thread "
        f"has registers for {_HELD[consumers]}."
    )


def why_no_room(plan: AttentionPlan, gpu: Architecture) -> str | None:
    """Why registers or shared memory do not hold the tiles of a plan, in a sentence, or None."""
    if crowded := why_crowded(plan.keys, plan.attention.sizes[-1], plan.consumers):
        return crowded
    if (needed := plan.shared_bytes) <= gpu.shared_per_block:
        return None
    return (
        f"A tile of Q and {plan.stages} stages of K and V take {needed:,} bytes of shared memory; "
        f"{gpu.name} has {gpu.shared_per_block:,} for a block."
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
    ragged = is_ragged(extent, plan.keys)
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
    if plan.resident and plan.splits > 1:
        raise ScheduleError(
            f"{plan.resident} blocks take tiles in turns, and {plan.splits} share the keys of one; "
            "a kernel does either."
        )
    if missing := why_no_room(plan, gpu):
        raise ScheduleError(missing)
