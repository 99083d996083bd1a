"""The asynchronous units of the blocks of a batch, and what they still have to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import SimulationError
from ...gpu import hardware
from ...gpu.warpgroups import WARPGROUP_THREADS
from ..memory.access import AccessInstruction
from ..memory.arrived_box import ArrivedBox, touched, unknown_box
from ..memory.memory import FRESH, Memory
from ..model.code import Code
from ..races import MAX_LANES, lane_of, site_of, time_of
from .barriers import Barriers, NamedBarriers
from .tensor_map import TensorMap

_WARP = hardware.WARP_SIZE


@dataclass
class ReadRange:
    """Bytes of shared memory that a ``wgmma`` read; ``time`` is None while it is under way."""

    block: int
    low: int
    high: int
    warps: tuple[int, ...]
    site: Any
    time: int | None = None


@dataclass
class PendingStore:
    """A bulk store under way: it reads shared memory when its thread waits for it."""

    lane: int
    group: int
    tensor: TensorMap
    shared: AccessInstruction
    target: AccessInstruction
    source: Any
    inside: Any
    cells: Any
    issued: int


@dataclass
class PendingProduct:
    """A ``wgmma`` under way: it reads both operands when its warpgroup waits for it.

    ``run`` is told whether others that add to the same ``sums`` are still under way.
    """

    group: int
    sums: int
    run: Callable[[bool], None]
    reads: tuple[ReadRange, ...]


@dataclass
class Units:
    """State of the asynchronous units."""

    batch: Any
    barriers: dict[int, Barriers] = field(default_factory=dict)
    stores: list[PendingStore] = field(default_factory=list)
    reads: list[ReadRange] = field(default_factory=list)
    #: By first lane of a warpgroup: products under way, and groups committed.
    products: dict[int, list[PendingProduct]] = field(default_factory=dict)
    groups: dict[int, int] = field(default_factory=dict)
    store_groups: dict[int, int] = field(default_factory=dict)
    #: By warp: when it last made its writes known to the units.
    fenced: dict[int, int] = field(default_factory=dict)
    #: Registers a thread of each warpgroup, and what those of a block may be together.
    registers: Any = None
    pool: int = 0
    #: What warps did to the shared memory of other blocks: block, warp, time, site.
    remote: list[tuple[int, int, int, Any]] = field(default_factory=list)
    #: By name of the mbarriers, block and index: boxes of the last phase that had any.
    boxes: dict[tuple[str, int, int], list[ArrivedBox]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        blocks, cluster = len(self.batch.blocks), self.batch.geometry.cluster
        self.named = NamedBarriers(self.batch.clocks, blocks)
        self.clusters = NamedBarriers(self.batch.clocks, blocks // cluster)

    def of(self, storage: Any) -> Barriers:
        """Barriers that a shared array holds."""
        found = self.barriers.get(storage.number)
        if found is None:
            blocks = len(self.batch.blocks)
            found = Barriers(storage.name, self.batch.clocks, blocks, storage.length)
            self.barriers[storage.number] = found
        return found

    # Clusters.

    def of_cluster(self, lane: int, rank: int) -> int:
        """The block of a rank in the cluster of a thread."""
        cluster = self.batch.geometry.cluster
        if not 0 <= rank < cluster:
            raise SimulationError(
                f"{self.batch.thread_name(lane)} reaches for block {rank} of a cluster of "
                f"{cluster}."
            )
        return int(self.batch.block_of[lane]) // cluster * cluster + rank

    def reach(self, lane: int, block: int, barriers: Barriers, index: int, site: Any) -> None:
        """Note that a thread changes the shared memory of a block, perhaps another one's."""
        warp = lane // _WARP
        if block != int(self.batch.block_of[lane]) and not barriers.knows(block, index, warp):
            raise SimulationError(
                f"{self.batch.thread_name(lane)} arrives at {barriers.name}[{index}] of another "
                f"block at line {site.line}, and nothing orders that after its init; a barrier of "
                "the cluster does."
            )
        self.note(lane, block, site)

    def note(self, lane: int, block: int, site: Any) -> None:
        """Note that a thread changes the shared memory of a block."""
        if block != int(self.batch.block_of[lane]):
            self.remote.append((block, lane // _WARP, self.batch.clocks.now, site))

    def _check_remote(self) -> None:
        """Report what no thread of a block waited for before all of them ended."""
        clocks, warps = self.batch.clocks, self.batch.geometry.warps
        for block, warp, time, site in self.remote:
            known = clocks.seen[block * warps : (block + 1) * warps, warp % clocks.warps]
            if known.max() <= time:
                self._report(
                    warp * _WARP, site, site, "changes shared memory of a block that may have ended"
                )

    # TMA.

    def load(
        self,
        lane: int,
        block: int,
        access: AccessInstruction,
        offset: int,
        tensor: TensorMap,
        at: list[int],
        barrier: tuple[Barriers, int],
    ) -> None:
        """Fill a box in the shared memory of a block, and count it at an mbarrier later."""
        batch = self.batch
        source, inside, target = tensor.places(at, offset)
        pattern = 8 * tensor.row_bytes
        if (target >= access.place.storage.bytes).any() or offset % pattern:
            raise SimulationError(
                f"A box of {tensor.box_bytes:,} bytes at byte {offset} of "
                f"{access.place.storage.name} is not inside of it, or its begin is no multiple of "
                f"{pattern}, at {access.site}."
            )
        self.check_reads(lane, block, access, int(target.min()), int(target.max()))
        values = np.zeros(len(source), np.uint8)
        values[inside] = tensor.memory.data[source[inside]]
        memory = access.memory(batch)
        elements = target[:, None] + block * access.place.storage.span
        poison = self._poison(tensor.memory, source, inside)
        access.write(batch, memory, elements, np.array([lane]), values[:, None], poison)
        self._await_box(memory, access, barrier, block, (int(elements.min()), int(elements.max())))

    def _await_box(
        self,
        memory: Memory,
        access: AccessInstruction,
        barrier: tuple[Barriers, int],
        block: int,
        span: tuple[int, int],
    ) -> None:
        """Note a box, whose bytes are there for who waits at its mbarrier."""
        barriers, index = barrier
        phase = int(barriers.phase[block, index])
        box = ArrivedBox(*span, access.number, access.site, phase)
        low, high = span
        memory.boxes[:] = [one for one in memory.boxes if one.low < low or one.high > high]
        memory.boxes.append(box)
        own = self.boxes.setdefault((barriers.name, block, index), [])
        own[:] = [one for one in own if one.phase == phase]
        own.append(box)

    def waited(self, barriers: Barriers, block: int, index: int, warp: int) -> None:
        """Note that a warp has waited for the boxes of the phases that are over."""
        for box in self.boxes.get((barriers.name, block, index), ()):
            if box.phase < barriers.phase[block, index]:
                box.wait(warp, self.batch.clocks.now)

    def _poison(self, memory: Memory, source: Any, inside: Any) -> Any:
        if memory.poison is None:
            return None
        codes = np.zeros((len(source), 1), np.int64)
        codes[inside, 0] = memory.poison[source[inside] // memory.granule]
        return codes if codes.any() else None

    def check_reads(self, lane: int, block: int, access: Any, low: int, high: int) -> None:
        """Report products that may still read what a box overwrites."""
        left = []
        for read in self.reads:
            if read.block != block or read.high <= low or read.low > high:
                left.append(read)
                continue
            seen = self.batch.clocks.seen[lane // _WARP]
            # One warp that waited for the product speaks for all four.
            known = max(int(seen[warp % self.batch.clocks.warps]) for warp in read.warps)
            if read.time is None or known <= read.time:
                self._report(lane, access.site, read.site, "overwrites what a wgmma may still read")
            if read.time is None:
                left.append(read)
        self.reads = left

    def _report(self, lane: int, site: Any, other: Any, what: str) -> None:
        batch = self.batch
        message = f"{batch.thread_name(lane)} {what} at {site}; the other is at {other}."
        batch.launch.findings.by_thread("async", (site, other), message, batch, lane, key=what)

    def store(
        self,
        lane: int,
        accesses: tuple[AccessInstruction, AccessInstruction],
        offset: int,
        tensor: TensorMap,
        at: list[int],
    ) -> None:
        """Begin to store a box: what is ordered before it is checked now."""
        batch, block = self.batch, int(self.batch.block_of[lane])
        shared, target = accesses
        source, inside, place = tensor.places(at, offset)
        cells = place + block * shared.place.storage.span
        self.check_read(shared, cells, np.array([lane]), "a bulk store reads")
        group = self.store_groups.get(lane, 0)
        self.stores.append(
            PendingStore(
                lane, group, tensor, shared, target, source, inside, cells, batch.clocks.now
            )
        )

    def check_read(self, access: AccessInstruction, cells: Any, lanes: Any, what: str) -> None:
        """Report writes that a unit's read is not ordered after, or that no fence made known.

        It reads for some threads. A tile has few tags: what they say is asked once of each.
        """
        batch, memory = self.batch, access.memory(self.batch)
        shadow, findings = memory.shadow, batch.launch.findings
        assert shadow is not None
        tags = shadow.writes[cells]
        # Neighbours mostly have the same one.
        written = np.unique(tags[np.flatnonzero(np.diff(tags, prepend=tags[:1] - 1))])
        unfenced = self._unfenced(written)
        boxes = touched(memory.boxes, cells)
        ordered = shadow.are_ordered(written, lanes, batch.clocks)
        for lane, is_ordered in zip(lanes.tolist(), ordered.tolist(), strict=True):
            if not is_ordered:
                conflict = shadow.check_read(cells, np.full(len(cells), lane), batch.clocks)
                findings.races(access, batch, conflict, "reads {}, written by")
            box = unknown_box(boxes, cells, tags, lane // _WARP, batch.clocks)
            if box is not None:
                findings.not_awaited(access, batch, lane, box, what)
            for other in unfenced:
                self._report(
                    lane, access.site, other, f"{what} what no fence.proxy.async made known"
                )

    def _unfenced(self, tags: Any) -> list[Any]:
        """Sites of writes that the warps which wrote have not made known to the units."""
        launch = self.batch.launch
        tags = tags[tags != 0][::-1]
        # Tags rise with time: of each site and warp the last one counts.
        writers, last = np.unique(
            site_of(tags) * MAX_LANES + lane_of(tags) // _WARP, return_index=True
        )
        found = []
        for writer, written in zip(writers.tolist(), time_of(tags[last]).tolist(), strict=True):
            number, warp = divmod(writer, MAX_LANES)
            site = launch.findings.sites[number]
            if site not in launch.kernel.unit_sites and self.fenced.get(warp, -1) < written:
                found.append(site)
        return found

    def commit_stores(self, lane: int) -> None:
        """End a group of a thread's bulk stores."""
        self.store_groups[lane] = self.store_groups.get(lane, 0) + 1

    def wait_stores(self, lane: int, allowed: int) -> None:
        """Finish all but the last groups of a thread's bulk stores."""
        done = self.store_groups.get(lane, 0) - allowed
        left = []
        for one in self.stores:
            if one.lane == lane and one.group < done:
                self._finish(one)
            else:
                left.append(one)
        self.stores = left

    def _finish(self, one: PendingStore) -> None:
        """Read the box now, which is as late as a GPU may."""
        batch = self.batch
        memory = one.shared.memory(batch)
        shadow = memory.shadow
        assert shadow is not None
        late = time_of(shadow.writes[one.cells]) > one.issued
        if late.any():
            other = batch.launch.findings.sites[int(site_of(shadow.writes[one.cells][late][0]))]
            self._report(
                one.lane, one.shared.site, other, "stores in bulk what is overwritten before"
            )
        shadow.log_read(one.cells, np.array([one.lane]), one.shared.number, batch.clocks)
        values = memory.data[one.cells]
        codes = np.where(shadow.writes[one.cells] == 0, FRESH, 0)
        if memory.poison is not None:
            codes = np.maximum(codes, memory.poison[one.cells])
        keep = one.inside
        if codes[keep].any():
            code = int(codes[keep].max())
            source = batch.launch.findings.describe(code)
            self._report(one.lane, one.shared.site, one.shared.site, f"stores in bulk {source}")
        whole = one.tensor.memory
        elements = one.source[keep][:, None]
        one.target.write(batch, whole, elements, np.array([one.lane]), values[keep][:, None], None)

    # Products.

    def commit_products(self, first: int) -> None:
        """End a group of a warpgroup's products."""
        self.groups[first] = self.groups.get(first, 0) + 1

    def wait_products(self, first: int, allowed: int) -> None:
        """Finish all but the last groups of a warpgroup's products."""
        done = self.groups.get(first, 0) - allowed
        pending = self.products.get(first, [])
        left = [one for one in pending if one.group >= done]
        for one in pending[: len(pending) - len(left)]:
            one.run(any(other.sums == one.sums for other in left))
            self.batch.clocks.now += 1
            for read in one.reads:
                read.time = self.batch.clocks.now - 1
        self.products[first] = left

    # The end.

    def finish(self) -> None:
        """Report what a block leaves under way."""
        self._check_remote()
        for one in self.stores:
            self._report(
                one.lane, one.shared.site, one.shared.site, "ends before its bulk store has read"
            )
        for first, pending in self.products.items():
            if pending:
                site = pending[0].reads[0].site
                self._report(first, site, site, "ends before its wgmma")
        for barriers in self.barriers.values():
            for block, index in barriers.unbalanced():
                raise SimulationError(
                    f"The kernel ends while {barriers.name}[{index}] of block "
                    f"{int(self.batch.blocks[block])} counts {barriers.bytes[block, index]:,} "
                    "bytes too many or too few; expect what the copies of a phase bring."
                )


def units_of(batch: Any) -> Units:
    """The asynchronous units of a batch."""
    if batch.units is None:
        batch.units = Units(batch)
    return batch.units


def each(s: Any, code: Code, m: Any) -> Any:
    """An expression's value for every thread."""
    return np.broadcast_to(np.asarray(code.value(s, m)), (s.batch.size,))


def warpgroups(batch: Any, mask: Any, what: str, site: Any) -> list[int]:
    """First lanes of the warpgroups of a mask, all of whose threads must be there.

    Raises
    ------
    SimulationError
        If a warpgroup is not there as a whole.
    """
    lanes = batch.threads(mask)
    firsts = np.unique(lanes // WARPGROUP_THREADS) * WARPGROUP_THREADS
    if len(firsts) * WARPGROUP_THREADS != len(lanes):
        raise SimulationError(
            f"{what} at line {site.line} is executed by a part of a warpgroup; all 128 threads "
            "must execute it together."
        )
    return [int(one) for one in firsts]
