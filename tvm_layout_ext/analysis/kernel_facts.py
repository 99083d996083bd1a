"""What a scheduled kernel asks of a GPU, in closed form: requests, sectors, wavefronts, memory.

The addresses of one warp are worked out for the first iteration of the loops around an access, and
stand for all others; the simulated GPU counts each. Registers are an estimate, as only ptxas knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from ..gpu.hardware import (
    BANK_BYTES,
    LINE_BYTES,
    MAX_ACCESS_BYTES,
    SECTOR_BYTES,
    WARP_SIZE,
    Architecture,
    blocks_per_sm,
    mma_sync_rate,
)
from ..ir.annotations import NUM_STAGES, PREFETCH, SWIZZLE
from ..ir.walk import THREADS, LoopVar, axis_indices
from .access_cost import (
    BufferUse,
    Use,
    copy_degree,
    flat,
    lane_wavefronts,
    matrix_degree,
    padded_strides,
    strides_of,
)
from .accesses import AccessSite, read_accesses
from .nest import element_bytes

#: Random iterations by which the extent of a tile is found, beside the first and the last.
SAMPLES = 2048
#: Registers of a thread for addresses, counters and predicates.
ADDRESSES = 20
#: Loads of a thread that nvcc keeps on their way together, in bytes.
MOST_IN_FLIGHT = 256
#: What stands for an index that is loaded: every lane goes elsewhere.
_SCATTERED = np.arange(WARP_SIZE)[:, None] * 1021
#: Thread axes that each have a buffer of their own, by its scope.
_OWN = {"local": THREADS, "warp": THREADS[1:]}
_ALIGN = "buffer_dim_align"


class KernelFacts:
    """Facts of one kernel."""

    def __init__(self, sites: Sequence[AccessSite]) -> None:
        self.sites = list(sites)
        #: Of each thread and block axis.
        self.extents: dict[str, int] = {}
        for loop in (loop for site in sites for loop in site.loops):
            if loop.is_thread or loop.is_grid:
                known = self.extents.get(loop.kind, 1)
                self.extents[loop.kind] = max(known, loop.count)
        self.grid = prod(e for tag, e in self.extents.items() if tag.startswith("blockIdx"))
        self.shape = {tag: self.extents.get(tag, 1) for tag in THREADS}
        self.threads = prod(self.shape.values())

    @cached_property
    def warps(self) -> int:
        """Warps of a block."""
        return -(-self.threads // WARP_SIZE)

    @cached_property
    def by_buffer(self) -> dict[int, list[AccessSite]]:
        """Accesses of each shared and thread-local buffer, by its ``__chandle__()``."""
        found: dict[int, list[AccessSite]] = {}
        for site in self.sites:
            if site.scope != "global":
                found.setdefault(site.buffer.__chandle__(), []).append(site)
        return found

    @cached_property
    def tiles(self) -> dict[int, BufferUse]:
        """Shared and thread-local buffers, by the ``__chandle__()`` of each."""
        return {key: self._tile(sites) for key, sites in self.by_buffer.items()}

    def _tile(self, sites: Sequence[AccessSite]) -> BufferUse:
        buffer, scope = sites[0].buffer, sites[0].scope
        around = common_loops([site.loops for site in sites])
        extents = [self._spans(site, around, _OWN.get(scope, ())) for site in sites]
        spans = tuple(int(n) for n in np.max(extents, axis=0))
        writer = next((site for site in sites if site.kind == "store"), sites[0])
        row = spans[-1]
        for _, axis, factor, offset in writer.marks.get(_ALIGN, ()):
            if int(axis) % len(spans) == len(spans) - 2:
                row += (int(offset) - row) % int(factor)
        versions = int(writer.marks.get(NUM_STAGES, 1))
        if scope in _OWN:
            versions = 2 if int(writer.marks.get(PREFETCH, 0)) else 1
        mode = str(writer.marks.get(SWIZZLE, "none"))
        if mode == "pad":
            row += MAX_ACCESS_BYTES // element_bytes(buffer)
        return BufferUse(spans, row, element_bytes(buffer), versions, mode)

    def _spans(self, site: AccessSite, around: Sequence[LoopVar], own: Sequence[str]) -> list[int]:
        """Elements of each dim that an access touches while the common loops stand still."""
        rng = np.random.default_rng(0)
        by_tag: dict[str, Any] = {}
        values: dict[int, Any] = {}
        for number, loop in enumerate(site.loops):
            if (
                loop.is_grid
                or loop.kind in own
                or (not loop.is_thread and any(loop is one for one in around))
            ):
                continue
            drawn = rng.integers(0, loop.count, SAMPLES)
            drawn[:2] = 0, loop.count - 1
            values[number] = by_tag.setdefault(loop.kind, drawn) if loop.is_thread else drawn
        return [1 if i is None else int(np.ptp(i)) + 1 for i in site.at(values)]

    def lanes(self, site: AccessSite) -> list[Any]:
        """Indices of the first warp's threads, by dim: arrays of (lane, element of its vector)."""
        thread = axis_indices(np.arange(WARP_SIZE), self.shape)
        values: dict[int, Any] = {}
        for number, loop in enumerate(site.loops):
            if loop.kind in thread:
                values[number] = (thread[loop.kind] % loop.count)[:, None]
            elif loop.kind == "vectorized":
                values[number] = np.arange(loop.count)[None, :]
        shape = (WARP_SIZE, site.vector)
        found = site.at(values)
        return [np.broadcast_to(_SCATTERED if i is None else i, shape) for i in found]

    @cached_property
    def uses(self) -> list[Use]:
        """Accesses of global and shared memory."""
        found = []
        for site in self.sites:
            if site.scope.startswith("shared"):
                found.append(self._shared(site))
            elif site.scope == "global":
                found.append(self._global(site))
        return found

    def _requests(self, site: AccessSite) -> float:
        repeats = site.repeats
        if site.is_result:
            index = [loop for loop in site.loops if loop.repeats]
            repeats = prod(loop.count for loop in index if moves(site, site.loops.index(loop)))
        return repeats * self.warps

    def _global(self, site: AccessSite) -> Use:
        offset = flat(self.lanes(site), strides_of(site.buffer)) * site.size
        sectors = np.unique(offset // SECTOR_BYTES)
        moved = len(np.unique(offset)) * site.size
        least = -(-moved // SECTOR_BYTES)
        _, found = np.unique(sectors * SECTOR_BYTES // LINE_BYTES, return_counts=True)
        torn = int(found[found < LINE_BYTES // SECTOR_BYTES].sum())
        return Use(site, self._requests(site), len(sectors), least, moved, torn)

    def _shared(self, site: AccessSite) -> Use:
        tile = self.tiles[site.buffer.__chandle__()]
        requests = self._requests(site)
        if site.instruction:
            moved = prod(loop.count for loop in site.loops if loop.kind == "tensor") * site.size
            of_rows = "ldmatrix" in site.instruction or "stmatrix" in site.instruction
            least = moved / LINE_BYTES
            cost = least * matrix_degree(tile) if of_rows else least
            return Use(site, requests, cost, least, moved)
        moved = WARP_SIZE * site.vector * site.size
        least = max(1.0, moved / LINE_BYTES)
        if NUM_STAGES in site.marks and site.vector * site.size == MAX_ACCESS_BYTES:
            return Use(site, requests, least * copy_degree(tile), least, moved)
        if tile.is_swizzled:
            return Use(site, requests, least, least, moved)
        strides = padded_strides(tile)
        return Use(site, requests, lane_wavefronts(self.lanes(site), strides, site), least, moved)

    @cached_property
    def shared_bytes(self) -> int:
        """Of a block, where buffers that are not in use together share their place."""
        lives: list[tuple[int, int, int]] = []
        for key, sites in self.by_buffer.items():
            if sites[0].scope.startswith("shared"):
                orders = [site.order for site in sites]
                lives.append((min(orders), max(orders), self.tiles[key].bytes))
        # As TVM merges them: a buffer takes the place of the largest one that is done with.
        places: list[list[int]] = []
        for first, last, size in sorted(lives):
            free = [place for place in places if place[0] < first]
            if free:
                place = max(free, key=lambda place: place[1])
                place[0], place[1] = last, max(place[1], size)
            else:
                places.append([last, size])
        return sum(size for _, size in places)

    @cached_property
    def stages(self) -> int:
        """Most versions of a shared buffer."""
        return max([int(site.marks.get(NUM_STAGES, 1)) for site in self.sites], default=1)

    @cached_property
    def stage_bytes(self) -> int:
        """Bytes of one version of all buffers that are copied ahead."""
        return sum(
            self.tiles[key].bytes // self.tiles[key].versions
            for key, sites in self.by_buffer.items()
            if any(NUM_STAGES in site.marks and site.kind == "store" for site in sites)
        )

    @cached_property
    def steps(self) -> int:
        """Iterations of the serial loops around the global load that has the most."""
        return max(
            (
                prod(x.count for x in s.loops if x.kind == "serial")
                for s in self.sites
                if s.scope == "global" and s.kind == "load"
            ),
            default=1,
        )

    @cached_property
    def turns(self) -> int:
        """Accesses that a thread makes one after another."""
        own = ("serial", "unrolled")
        return sum(prod(x.count for x in s.loops if x.kind in own) for s in self.sites)

    @cached_property
    def in_flight(self) -> int:
        """Bytes of global memory that a thread has on their way at a time."""
        most = 0
        for site in self.sites:
            if site.scope == "global" and site.kind == "load":
                together = prod(x.count for x in site.loops if x.kind == "unrolled")
                each = site.vector * site.size
                if NUM_STAGES in site.marks:
                    most += together * each * max(1, self.stages - 1)
                else:
                    most += min(together * each, MOST_IN_FLIGHT)
        return most

    @property
    def torn(self) -> float:
        """Sectors that a block loads from 128-byte lines of which a request takes only a part."""
        loads = [use for use in self.uses if use.site.scope == "global"]
        return sum(use.requests * use.torn for use in loads if use.site.kind == "load")

    @cached_property
    def registers(self) -> int:
        """Estimate of a thread's registers: its own buffers, loads on their way, addresses."""
        total = 0.0
        for key, tile in self.tiles.items():
            scope = self.by_buffer[key][0].scope
            if not scope.startswith("shared"):
                lanes = WARP_SIZE if scope == "warp" else 1
                total += tile.bytes / BANK_BYTES / lanes
        loads = 0 if self.stages > 1 else self.in_flight / BANK_BYTES
        return round(max(total, loads) + ADDRESSES)

    def spilled(self, architecture: Architecture) -> int:
        """Registers of a thread for which there is no room, even with addresses worked out anew."""
        room = architecture.registers_per_sm // (self.warps * WARP_SIZE)
        return max(0, self.registers - ADDRESSES - min(room, architecture.registers_per_thread))

    @cached_property
    def products(self) -> int:
        """Tensor-core products of a block, one for each execution of a tensorised block."""
        return sum(
            site.repeats * self.warps
            for site in self.sites
            if "mma" in site.instruction and site.kind == "store"
        )

    @cached_property
    def product_flops(self) -> int:
        """Arithmetic operations of all :attr:`products`."""
        return sum(flops for _, flops in self._multiplied)

    @cached_property
    def half_flops(self) -> float:
        """Operations in half precision that take tensor cores as long as :attr:`product_flops`."""
        return sum(flops / mma_sync_rate(operand) for operand, flops in self._multiplied)

    @cached_property
    def _multiplied(self) -> list[tuple[str, int]]:
        """Type of the operands, and operations, of each tensorised product."""
        uses = [site for site in self.sites if "mma" in site.instruction]
        operands = {s.order: str(s.buffer.dtype) for s in uses if s.kind == "load"}
        found = []
        for site in uses:
            if site.kind == "store":
                one = 2 * prod(loop.count for loop in site.loops if loop.kind == "tensor")
                found.append((operands[site.order], one * site.repeats * self.warps))
        return found

    @cached_property
    def inner_steps(self) -> int:
        """Times in a step that a thread waits for shared memory: unrolled loops of its loads."""
        sites = [s for s in self.sites if s.scope.startswith("shared") and s.kind == "load"]
        if not self.products:
            return 1 if sites else 0
        loads = [s for s in sites if s.instruction]
        uses = [s for s in self.sites if "mma" in s.instruction]
        around = common_loops([s.loops for s in (*loads, *uses)])
        return prod(loop.count for loop in around if loop.kind == "unrolled")

    @cached_property
    def is_prefetched(self) -> bool:
        """Whether fragments are loaded a step ahead."""
        return any(int(site.marks.get(PREFETCH, 0)) for site in self.sites)

    def blocks_per_sm(self, architecture: Architecture) -> int:
        """Blocks that a multiprocessor holds by threads, shared memory and estimated registers."""
        registers = min(self.registers, architecture.registers_per_thread)
        return max(1, blocks_per_sm(architecture, self.threads, registers, self.shared_bytes))


def read_kernels(function: Any) -> list[KernelFacts]:
    """Facts of each kernel of a scheduled function, before any lowering.

    A kernel is what lies under one outermost loop, if a loop of it is bound to blocks or threads.
    The initial values of reductions are left out, and what a sum loads of itself.
    """
    kernels: dict[LoopVar | None, list[AccessSite]] = {}
    for site in read_accesses(function.body):
        is_memory = site.kind in ("load", "store")
        if is_memory and not site.context.in_init and not site.is_own_sum:
            kernels.setdefault(site.loops[0] if site.loops else None, []).append(site)
    return [
        KernelFacts(sites)
        for sites in kernels.values()
        if any(loop.is_grid or loop.is_thread for site in sites for loop in site.loops)
    ]


def common_loops(chains: Sequence[Sequence[LoopVar]]) -> list[LoopVar]:
    """Loops around all accesses."""
    found = []
    for level in zip(*chains, strict=False):
        if any(loop is not level[0] for loop in level):
            break
        found.append(level[0])
    return found


def moves(site: AccessSite, number: int) -> bool:
    """Whether an access moves with a loop."""
    here, there = site.at({}), site.at({number: np.int64(1)})
    return any(a is None or int(a) != int(b) for a, b in zip(here, there, strict=True))
