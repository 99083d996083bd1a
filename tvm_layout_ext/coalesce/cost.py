"""How long a mapped block takes: what its kernels ask of the GPU, counted at sampled warps.

Counted is what was scheduled, before it is lowered, so that a trial of a mapping costs some ten
milliseconds: every warp of two blocks, for the last iterations of the loops around an access. The
rules are those of the simulated GPU, :mod:`..gpu.requests` and :mod:`..gpu.banks`; the time that
counts take is modelled by :mod:`..gpu.kernel_time`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, log2, prod
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx import IterVar

from ..analysis.access_cost import flat, padded_strides, strides_of
from ..analysis.accesses import AccessSite, read_accesses
from ..analysis.argmax import packed_statements
from ..analysis.kernel_facts import KernelFacts
from ..analysis.nest import element_bytes
from ..gpu.banks import request_wavefronts
from ..gpu.counts import instructions
from ..gpu.hardware import DEFAULT_ARCH, LINE_BYTES, SECTOR_BYTES, WARP_SIZE, architecture
from ..gpu.kernel_time import AccessWork, KernelWork
from ..gpu.requests import NOTHING, distinct, pieces, request_sectors
from ..ir.annotations import INSTRUCTIONS, SHIFTED
from ..ir.evaluate import bind_lets, known_value, placeholder_extent
from ..ir.pointers import atomic_of
from ..ir.queries import depends_on, is_among
from ..ir.rebuild import block_with, realize_with, sequence
from ..ir.walk import THREADS, Context, LoopVar, axis_indices, top_statements, walk
from .shifted.move import read_move

#: Blocks, and lanes of each, whose addresses are worked out; at least so many iterations.
_BLOCKS, _LANES, _STEPS = 2, 4096, 16
#: Bytes of the first-level cache that a multiprocessor has for loads, in whole lines.
_CACHE = 192 << 10
#: Sectors of a line.
_SHARE = LINE_BYTES // SECTOR_BYTES
#: Loads that nvcc has on their way together where each is used at once, and in all.
_STARTED, _MOST_STARTED = 8, 16
#: The same where each is under a condition; of what a condition chooses to store each waits for the
#: one before: pads of 78x96x7608 floats, four loads a thread, take an H200 179 us, of which memory
#: explains 112.
_GUARDED, _MOST_GUARDED, _CHOSEN = 2, 3, 1
_WORD = 4
#: Iterations of a serial loop that it unrolls.
_UNROLLED = 4
#: Accesses among which one is looked for that a block has again.
_AGAIN = 8
#: Instructions of an access beside its own: an address; and of each division by no power of two.
_ADDRESS, _DIVISION = 3, 7
#: Those by which a vector is shifted into place, more of them for elements of less than a word, and
#: those of a warp in which a row ends: by elements, by masks of words, and where the next row is in
#: the same vectors. nvcc 13.0 has 96 for a vector of a pad of bytes, 160 with the last of these.
_SHIFT, _SHIFT_PARTS = 100, 100
_TORN_ROW, _TORN_WORDS, _TORN_GAP = 200, 110, 70
_ARITHMETIC = (
    tirx.Add,
    tirx.Sub,
    tirx.Mul,
    tirx.Div,
    tirx.Min,
    tirx.Max,
    tirx.Select,
    tirx.Cast,
    tirx.LT,
    tirx.LE,
    tirx.GT,
    tirx.GE,
    tirx.EQ,
    tirx.NE,
    tvm.ir.Call,
)


def count_kernels(function: Any, known: Sequence[Any] = ()) -> list[KernelWork]:
    """Count what each kernel of a scheduled function asks of a GPU.

    ``known`` are outermost loops of kernels that are not to be counted, as they were before.
    """
    body = _without(function, known) if known else function.body
    kernels: dict[int, list[AccessSite]] = {}
    for site in read_accesses(body):
        is_memory = site.kind in ("load", "store") and not site.context.in_init
        if site.loops and is_memory and not site.is_own_sum:
            sites = kernels.setdefault(_kernel(site.context), [])
            if not any(_is_again(site, other) for other in sites[-_AGAIN:]):
                sites.append(site)
    stores: dict[int, list[tuple[Any, Context]]] = {}
    for stmt, context in walk(body):
        if not context.loops or context.in_init:
            continue
        if isinstance(stmt, tirx.BufferStore | tirx.Bind):
            stores.setdefault(_kernel(context), []).append((stmt, context))
        elif (element := atomic_of(stmt)) is not None:
            site = AccessSite(element.source, "atomic", tuple(element.indices), context=context)
            kernels.setdefault(_kernel(context), []).append(site)
    reduced = [
        stmt.buffer
        for stmt, context in (one for found in stores.values() for one in found)
        if isinstance(stmt, tirx.BufferStore) and _lanes_reduce(context)
    ]
    packed = packed_statements(body, reduced)
    return [
        _KernelCounter(sites, packed).count(stores.get(outermost, []))
        for outermost, sites in kernels.items()
        if any(loop.is_grid or loop.is_thread for site in sites for loop in site.loops)
    ]


def _without(function: Any, known: Sequence[Any]) -> Any:
    """Body of a function without some of its outermost loops."""
    before = {loop.loop_var.__chandle__() for loop in known}
    kept = [
        stmt
        for stmt in top_statements(function)
        if not isinstance(stmt, tirx.For) or stmt.loop_var.__chandle__() not in before
    ]
    body = sequence(kept or [tirx.Evaluate(0)])
    return realize_with(function.body, block_with(function.body.block, body=body))


def _is_again(site: AccessSite, other: AccessSite) -> bool:
    """Whether a block names an element again, as an argmax does; nvcc loads it once."""
    return (
        (site.kind, site.order) == (other.kind, other.order)
        and site.buffer.same_as(other.buffer)
        and all(
            tvm_ffi.structural_equal(a, b) for a, b in zip(site.indices, other.indices, strict=True)
        )
    )


def _chooses(store: AccessSite, load: AccessSite) -> bool:
    """Whether a store takes a load only on a condition that it is not under itself."""
    conditions = [len(one.context.conditions) for one in (store, load)]
    # An opaque block has many statements; of one the store is in the load's loops.
    is_own = store.kind == "store" and store.order == load.order and store.loops == load.loops
    return is_own and conditions[0] < conditions[1]


def _kernel(context: Context) -> int:
    """Identity of the outermost loop, under which a kernel lies."""
    return int(context.loops[0].var.__chandle__())


def _count(loop: LoopVar) -> int:
    return max(1, placeholder_extent(loop.extent))


@dataclass(frozen=True)
class _Lanes:
    """Values of the loops around an access at sampled requests."""

    values: dict[int, Any]  #: By position of the loop, each of shape (block, iteration, warp, lane)
    live: Any  #: Lanes that there are
    requests: int  #: Of the grid, of which these are a sample


class _KernelCounter:
    """Counts one kernel."""

    def __init__(self, sites: Sequence[AccessSite], packed: Mapping[int, int]) -> None:
        self.sites, self.packed = sites, packed
        extents: dict[str, int] = {}
        for loop in (loop for site in sites for loop in site.loops):
            if loop.is_thread or loop.is_grid:
                extents[loop.kind] = max(extents.get(loop.kind, 1), _count(loop))
        self.blocks = prod(n for tag, n in extents.items() if tag.startswith("blockIdx"))
        self.shape = {tag: extents.get(tag, 1) for tag in THREADS}
        self.grid = {tag: n for tag, n in sorted(extents.items()) if tag.startswith("blockIdx")}
        self.threads = prod(self.shape.values())
        self.warps = -(-self.threads // WARP_SIZE)
        self.facts = KernelFacts(sites)
        #: Whether blocks exchange what they move: other blocks then store beside what they do.
        self.has_tiles = any(site.scope.startswith("shared") for site in sites)
        self.resident = self.facts.blocks_per_sm(architecture(DEFAULT_ARCH))

    def count(self, stores: Sequence[tuple[Any, Context]]) -> KernelWork:
        """Count all accesses, and the instructions of all stores and names."""
        accesses: list[AccessWork] = []
        for site in self.sites:
            if site.scope == "global":
                accesses += self._global(site)
            elif site.scope.startswith("shared"):
                accesses += self._shared(site)
        shared = [s for s in self.sites if s.scope.startswith("shared") and s.kind == "store"]
        return KernelWork(
            self.blocks,
            self.threads,
            self.resident,
            tuple(_memory_of(accesses, self.sites)),
            self._all_instructions(stores),
            sum(self._combines(c) for stmt, c in stores if isinstance(stmt, tirx.BufferStore)),
            max((_serial(site.loops) for site in shared), default=0.0),
        )

    def _lanes(self, site: AccessSite) -> _Lanes:
        """Sample neighbouring iterations around an access, by all threads of some blocks.

        A result leaves its registers once, after the loops that sum it.
        """
        around = [
            n
            for n, loop in enumerate(site.loops)
            if loop.repeats and not (site.is_result and _reduces(site.context, loop))
        ]
        counts = [_count(site.loops[n]) for n in around]
        steps = min(prod(counts), max(_STEPS, _LANES // (self.warps * WARP_SIZE)))
        rng = np.random.default_rng(0)
        blocks = min(self.blocks, max(_BLOCKS, _LANES // (self.warps * WARP_SIZE * steps)))
        shape = (blocks, steps, self.warps, WARP_SIZE)
        grid = rng.integers(0, self.blocks, blocks) if blocks < self.blocks else np.arange(blocks)
        first = rng.integers(0, prod(counts) - steps + 1, blocks)
        thread = np.arange(self.warps * WARP_SIZE).reshape(1, 1, self.warps, WARP_SIZE)
        by_tag = axis_indices(grid.reshape(-1, 1, 1, 1), self.grid)
        by_tag |= axis_indices(np.minimum(thread, self.threads - 1), self.shape)
        values: dict[int, Any] = {
            n: by_tag[loop.kind] % _count(loop)
            for n, loop in enumerate(site.loops)
            if loop.kind in by_tag
        }
        flat_steps = (first[:, None] + np.arange(steps)[None]).reshape(blocks, steps, 1, 1)
        for n, size in zip(reversed(around), reversed(counts), strict=True):
            values[n], flat_steps = flat_steps % size, flat_steps // size
        live = np.broadcast_to(thread < self.threads, shape)
        return _Lanes(values, live, self.blocks * prod(counts) * self.warps)

    def _addresses(self, site: AccessSite, lanes: _Lanes, strides: Sequence[int]) -> Any:
        """Byte address of each lane, and of its elements: width and (element, block, ...)."""
        vector = next((n for n, loop in enumerate(site.loops) if loop.kind == "vectorized"), None)
        parts = [0] if vector is None else range(_count(site.loops[vector]))
        is_shifted = any(SHIFTED in block.annotations for block in site.context.blocks)
        if is_shifted and vector is not None:
            # A pass makes whole vectors of it, whatever row each element is in.
            start = flat(site.at({**lanes.values, vector: np.int64(0)}), strides) * site.size
            return site.size * len(parts), [np.broadcast_to(start, lanes.live.shape)]
        found = []
        for part in parts:
            values = dict(lanes.values)
            if vector is not None:
                values[vector] = np.int64(part)
            at = site.at(values)
            if any(index is None for index in at):
                return None
            start = np.broadcast_to(flat(at, strides) * site.size, lanes.live.shape)
            found.append(start)
            if part == 1 and (found[1] - found[0] == 0).all():
                return site.size, found[:1]
            if part == 1 and (found[1] - found[0] == site.size).all():
                # The rest goes on as it began, for all that a vector of TVM can be.
                return site.size * len(parts), found[:1]
        return site.size, found

    def _active(self, site: AccessSite, lanes: _Lanes) -> Any:
        env: dict[Any, Any] = {
            loop.var: lanes.values.get(n, np.int64(0)) for n, loop in enumerate(site.loops)
        }
        bind_lets(env, site.context.lets)
        active = np.array(lanes.live)
        for condition in site.context.conditions:
            holds = known_value(condition, env)
            if holds is not None:
                active &= holds.astype(bool)
        if site.is_result:
            # Of the threads that sum a result one stores it.
            for n, loop in enumerate(site.loops):
                if loop.is_thread and _reduces(site.context, loop):
                    active &= lanes.values[n] == _count(loop) - 1
        return active

    def _global(self, site: AccessSite) -> Iterator[AccessWork]:
        lanes = self._lanes(site)
        found = self._addresses(site, lanes, strides_of(site.buffer))
        active = self._active(site, lanes)
        if found is None:
            scattered = np.arange(lanes.live.size).reshape(lanes.live.shape) * 1021 * site.size
            found = site.size, [scattered]
        width, starts = found
        parts = [(s, one) for s in starts for one in instructions(width)]
        for start, (offset, size) in parts:
            work = self._count_global(site, lanes, start + offset, active, size)
            # Of several the others may fill the sector.
            yield work if len(parts) == 1 else replace(work, partial=0.0)

    def _count_global(
        self, site: AccessSite, lanes: _Lanes, start: Any, active: Any, width: int
    ) -> AccessWork:
        blocks = len(start)
        asked = start - min(0, int(start.min()) // LINE_BYTES * LINE_BYTES)
        rows, live = asked.reshape(-1, WARP_SIZE), active.reshape(-1, WARP_SIZE)
        asking = live.any(axis=1)
        scale = lanes.requests / len(rows)
        if not asking.any():
            return AccessWork(site.buffer.name, site.kind, "global", width, 0.0)
        sectors, least = request_sectors(rows[asking], live[asking], width)
        lines = distinct(pieces(rows[asking], live[asking], width, LINE_BYTES))
        moved = float(sectors.sum())
        if site.kind == "atomic":
            # Lanes that meet at one element take turns.
            begins = distinct(np.where(live[asking], rows[asking], NOTHING))
            moved += float((live[asking].sum(axis=1) - begins).sum())
        through, torn, partial = moved, 0.0, 0.0
        if site.kind == "load":
            own = pieces(asked.reshape(blocks, -1), active.reshape(blocks, -1), width, SECTOR_BYTES)
            fresh, whole, torn = _sectors_and_lines(own)
            held = whole / blocks * LINE_BYTES * self.resident
            through = fresh + (moved - fresh) * max(0.0, 1 - _CACHE / max(held, 1))
        elif self.has_tiles and site.kind == "store":
            own = pieces(asked.reshape(blocks, -1), active.reshape(blocks, -1), width, SECTOR_BYTES)
            counts = (np.unique(row[row != NOTHING], return_counts=True)[1] for row in own)
            partial = float(sum((n * width < SECTOR_BYTES).sum() for n in counts))
        return AccessWork(
            str(site.buffer.name),
            site.kind,
            "global",
            width,
            scale * int(asking.sum()),
            sectors=scale * moved,
            least=scale * float(least.sum()),
            lines=scale * float(lines.sum()),
            through=scale * through,
            torn=scale * torn,
            partial=scale * partial,
            rounds=self._rounds(site),
        )

    def _shared(self, site: AccessSite) -> Iterator[AccessWork]:
        tile = self.facts.tiles[site.buffer.__chandle__()]
        lanes = self._lanes(site)
        active = self._active(site, lanes)
        strides = padded_strides(tile)
        found = self._addresses(site, lanes, strides)
        rows = active.reshape(-1, WARP_SIZE)
        asking = rows.any(axis=1)
        if found is None or not asking.any():
            return
        width, starts = found
        scale = lanes.requests / len(rows)
        requests = scale * int(asking.sum())
        for start, (offset, size) in ((s, one) for s in starts for one in instructions(width)):
            address = (start + offset).reshape(-1, WARP_SIZE)[asking]
            address = (address - address.min() // size * size).astype(np.int64)
            waves, least = request_wavefronts(
                address, rows[asking], size, joins=site.kind == "load"
            )
            chosen = least if _is_swizzled(tile.mode) else waves
            yield AccessWork(
                str(site.buffer.name),
                site.kind,
                "shared",
                size,
                requests,
                wavefronts=scale * float(chosen.sum()),
            )

    def _rounds(self, site: AccessSite) -> float:
        """Times that a thread waits for a load, of which it starts several at a time.

        Loads of their own block go together; of those that are used by turns nvcc starts a few, and
        under a condition one after the other.
        """
        if site.kind != "load":
            return 0.0
        users = [one for one in self.sites if one.order != site.order and one.kind == "store"]
        own = shared = 1
        for loop in site.loops:
            if loop.kind == "unrolled":
                is_shared = site.reduces or any(loop in one.loops for one in users)
                own, shared = (
                    own * (1 if is_shared else _count(loop)),
                    shared * (_count(loop) if is_shared else 1),
                )
        serial = _serial(site.loops)
        if site.reduces and shared == 1:
            # nvcc unrolls a loop of sums.
            serial, shared = ceil(serial / _UNROLLED), min(serial, _UNROLLED)
        is_guarded = bool(site.context.conditions)
        started = _GUARDED if is_guarded else _STARTED
        most = _MOST_GUARDED if is_guarded else _MOST_STARTED
        if any(_chooses(one, site) for one in self.sites):
            most = _CHOSEN
        return float(serial * ceil(shared / started) * ceil(own / most))

    def _all_instructions(self, stores: Sequence[tuple[Any, Context]]) -> float:
        """Instructions of warps, as a kernel that is written whole tells them itself."""
        for block in (block for _, context in stores for block in context.blocks):
            if INSTRUCTIONS in block.annotations:
                return float(int(block.annotations[INSTRUCTIONS]) * self.warps * self.blocks)
        return sum(self._instructions(stmt, context) for stmt, context in stores)

    def _instructions(self, stmt: Any, context: Context) -> float:
        """Instructions of warps for what a store or name is computed by, and a store's address."""
        loops = context.loops
        lanes = prod(_count(loop) for loop in loops if loop.kind == "vectorized")
        around = [loop for loop in loops if loop.repeats]
        times = prod(_count(loop) for loop in around)
        if stmt.__chandle__() in self.packed:
            return float(times * self.packed[stmt.__chandle__()] * self.warps * self.blocks)
        total: float = times * _operations(stmt.value) * lanes
        if isinstance(stmt, tirx.Bind):
            return total * self.warps * self.blocks
        total += times * _ADDRESS
        shifted = next((block for block in context.blocks if SHIFTED in block.annotations), None)
        if shifted is not None:
            total += times * _shifts(shifted)
        known = [loop.var for loop in loops if loop.is_grid]
        for value in (*(value for _, value in context.lets), *context.conditions):
            divisions = _divisions(value, known)
            if divisions:
                own = prod(_count(loop) for loop in around if _depends(value, loop.var))
                total += own * divisions * _DIVISION
        return float(total * self.warps * self.blocks)

    def _combines(self, context: Context) -> float:
        """Shuffles of warps by which threads combine what they have reduced."""
        lanes = prod(
            _count(loop) for loop in context.loops if loop.is_thread and _reduces(context, loop)
        )
        if lanes == 1:
            return 0.0
        times = prod(
            _count(loop) for loop in context.loops if loop.repeats and not _reduces(context, loop)
        )
        return float(times * ceil(log2(lanes)) * self.warps * self.blocks)


def _sectors_and_lines(touched: np.ndarray) -> tuple[float, float, float]:
    """Count the sectors of each row, their lines, and the sectors of lines that lack some."""
    # Rows of one flat array lie so far apart that they have no line in common.
    apart = (int(touched.max()) // _SHARE + 2) * _SHARE
    numbers = touched + np.arange(len(touched))[:, None] * apart
    ordered = np.sort(numbers[touched != NOTHING])
    sectors = ordered[np.flatnonzero(np.diff(ordered, prepend=NOTHING))]
    lines = np.count_nonzero(np.diff(sectors // _SHARE, prepend=NOTHING))
    ends = sectors[_SHARE - 1 :] - sectors[: max(0, len(sectors) - _SHARE + 1)] == _SHARE - 1
    full = np.count_nonzero(ends & (sectors[: len(ends)] % _SHARE == 0))
    return float(len(sectors)), float(lines), float(len(sectors) - full * _SHARE)


def _shifts(block: Any) -> float:
    """Instructions that shift a vector of a block into place, and put two rows together."""
    move = read_move(block)
    if move is None:
        return 0.0
    vector, size = int(block.annotations[SHIFTED]), element_bytes(move.source)
    torn = min(1.0, WARP_SIZE * vector / move.columns)
    by_words = _TORN_GAP if move.gap(vector) else _TORN_WORDS
    row = by_words if move.is_by_words else _TORN_ROW
    return _SHIFT + _SHIFT_PARTS * (size < _WORD) + row * torn


def _serial(loops: Sequence[LoopVar]) -> float:
    return float(prod(_count(loop) for loop in loops if loop.kind == "serial"))


def _reduces(context: Context, loop: LoopVar) -> bool:
    """Whether a reduction's iterator of the innermost block depends on a loop."""
    axes = context.blocks[-1].iter_vars if context.blocks else ()
    values = dict(context.lets)
    return any(
        int(axis.iter_type) == IterVar.CommReduce and _depends(values.get(axis.var), loop.var)
        for axis in axes
    )


def _lanes_reduce(context: Context) -> bool:
    """Whether threads reduce together what the innermost block stores."""
    return any(loop.is_thread and _reduces(context, loop) for loop in context.loops)


def _depends(value: Any, var: Any) -> bool:
    return value is not None and not isinstance(value, int) and depends_on(value, var)


def _is_swizzled(mode: str) -> bool:
    """Whether a shared buffer is laid out so that its accesses meet no bank twice."""
    return mode not in ("none", "pad")


def _divisions(value: Any, known: Sequence[Any]) -> int:
    """Divisions by no power of two in an index, of what is not the same for the whole block."""
    found: list[Any] = []
    look = [(kind, found.append) for kind in (tirx.FloorDiv, tirx.FloorMod)]
    tvm_ffi.structural_walk(value, look)
    return sum(
        not _is_power(one.b)
        and any(not is_among(var, known) for var in tirx.analysis.undefined_vars(one.a))
        for one in found
    )


def _is_power(value: Any) -> bool:
    return isinstance(value, tirx.IntImm) and int(value) & (int(value) - 1) == 0


def _operations(value: Any) -> int:
    """Operations by which a value is computed; a choice by its value counts as one."""
    found: list[Any] = []
    tvm_ffi.structural_walk(value, [(kind, found.append) for kind in _ARITHMETIC])
    return len(found)


def _memory_of(accesses: Sequence[AccessWork], sites: Sequence[AccessSite]) -> Iterator[AccessWork]:
    """Say what comes from device memory: of each buffer no more than it has, however often read."""
    sizes = {str(site.buffer.name): _sectors_of(site.buffer) for site in sites}
    totals: dict[tuple[str, str], float] = {}
    for one in accesses:
        totals[one.name, one.kind] = totals.get((one.name, one.kind), 0.0) + one.through
    for one in accesses:
        total = totals[one.name, one.kind]
        share = min(1.0, sizes[one.name] / total) if total else 0.0
        yield replace(one, memory=one.through * share)


def _sectors_of(buffer: Any) -> float:
    size = prod(placeholder_extent(n) for n in buffer.shape)
    return max(1.0, size * max(1, int(tvm.DataType(str(buffer.dtype)).itemsize)) / SECTOR_BYTES)
