"""One load, store or atomic of the program: the data it moves, and the checks of that."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...gpu.hardware import WARP_SIZE
from ..model.values import bits_of, to_lanes
from ..races import UnorderedAccesses, lane_of
from .arrived_box import touched, unknown_box
from .located_access import Address, LocatedAccess
from .memory import FRESH, Memory
from .pending_copies import check_sources


class AccessInstruction(LocatedAccess):
    """A memory access of the program."""

    def load(self, s: Any, mask: Any) -> tuple[Any, Any]:
        """Read: the values and their poison."""
        address = self.locate(s, mask)
        if address is None:
            return self.place.dtype.type(0), None
        return self.load_at(s, address)

    def load_at(self, s: Any, address: Address) -> tuple[Any, Any]:
        """Read at an address that was checked."""
        batch, memory = s.batch, self.memory(s.batch)
        self.tally(s, address)
        elements = self.elements(address.flat)
        value = memory.view(self.place.dtype).take(elements, mode="clip")
        if memory.shadow is None and memory.poison is None:
            return value, None
        return value, self._check_read(batch, memory, elements, address.mask)

    def _check_read(self, batch: Any, memory: Memory, elements: Any, mask: Any) -> Any:
        """Check a read for races and copies under way; return its poison."""
        cells = self.cells(memory, elements)
        codes = None
        shadow = memory.shadow
        if shadow is not None:
            tags = shadow.writes.take(cells)
            own, lanes = self._chosen(batch, cells, mask)
            if tags.max() >= shadow.threshold(batch.clocks):
                flat = own.ravel(), np.broadcast_to(lanes, own.shape).ravel()
                conflict = shadow.check_read(*flat, batch.clocks)
                batch.launch.findings.races(self, batch, conflict, "reads {}, written by")
            shadow.log_read(own, lanes, self.number, batch.clocks)
            if memory.scope != "global" and tags.min() == 0:
                codes = np.where(tags == 0, FRESH, 0)
        if memory.poison is not None:
            stored = memory.poison.take(cells)
            if stored.any():
                codes = stored if codes is None else np.maximum(codes, stored)
        if memory.pending is not None:
            codes = self._check_pending(batch, memory, cells, mask, codes)
        if memory.boxes and shadow is not None:
            self._check_boxes(batch, memory, own, lanes)
        return None if codes is None else self._named(batch, codes, elements)

    def _chosen(self, batch: Any, cells: Any, mask: Any) -> tuple[Any, Any]:
        """Cells of active threads, and the threads."""
        if batch.mask(mask) is None:
            return cells, batch.lane
        chosen = batch.threads(mask)
        return cells[..., chosen], chosen

    def _check_pending(self, batch: Any, memory: Memory, cells: Any, mask: Any, codes: Any) -> Any:
        """Report a touch of memory that a copy is under way into; what is read is poison."""
        pending = memory.pending.take(cells)
        touched = (pending != 0) & batch.active(mask)
        if not touched.any():
            return codes
        batch.launch.findings.touched_pending(self, batch, cells, batch.lane, touched)
        codes = np.zeros(cells.shape, np.int64) if codes is None else codes
        return np.where(pending != 0, FRESH, codes)

    def _check_boxes(self, batch: Any, memory: Memory, cells: Any, lanes: Any) -> None:
        """Report a read of what TMA copied by a warp that did not wait for it."""
        assert memory.shadow is not None
        boxes = touched(memory.boxes, cells) if cells.size else []
        if not boxes:
            return
        warps = lanes // WARP_SIZE
        for warp in np.unique(warps):
            mine = cells[..., warps == warp]
            tags = memory.shadow.writes[mine]
            box = unknown_box(boxes, mine, tags, int(warp), batch.clocks)
            if box is not None:
                batch.launch.findings.not_awaited(self, batch, int(warp) * WARP_SIZE, box)

    def _named(self, batch: Any, codes: Any, elements: Any) -> Any:
        """Poison codes with fresh ones replaced by the location's, one an element."""
        if codes.ndim > elements.ndim:
            codes = codes.max(axis=0)
        index = elements - self._block_base(batch)
        origin = batch.launch.findings.origin(self.place, index)
        named = np.where(codes == FRESH, origin, codes)
        return named if named.any() else None

    def store(self, s: Any, mask: Any, value: Any, poison: Any) -> None:
        """Write values, given their poison."""
        batch = s.batch
        address = self.locate(s, mask)
        if address is None:
            return
        self.tally(s, address)
        memory, elements = self.memory(batch), self.elements(address.flat)
        whole = to_lanes(value, self.lanes, batch.size)
        if poison is not None:
            poison = to_lanes(poison, self.lanes, batch.size)
            self.report_stored_poison(batch, poison, address.mask)
        lanes = batch.threads(address.mask)
        if len(lanes) < batch.size:
            elements, whole = elements[..., lanes], whole[..., lanes]
            poison = None if poison is None else poison[..., lanes]
        self.write(batch, memory, elements, lanes, whole, poison)

    def report_stored_poison(self, batch: Any, poison: Any, mask: Any) -> None:
        """Report poison that a store or an atomic takes to global memory."""
        if self.place.storage.scope == "global":
            batch.poisoned(self.site, mask, poison, "is stored to global memory")

    def write(
        self, batch: Any, memory: Memory, elements: Any, lanes: Any, value: Any, poison: Any
    ) -> None:
        """Write elements of the given threads (arrays without idle threads)."""
        cells = self.cells(memory, elements)
        if memory.shadow is None:
            memory.view(self.place.dtype)[elements] = value
        else:
            self._write_tracked(batch, memory, elements, cells, lanes, value)
        if poison is not None or memory.poison is not None:
            spread = None if poison is None else np.broadcast_to(poison, cells.shape)
            memory.set_poison(cells, spread)

    def _write_tracked(
        self, batch: Any, memory: Memory, elements: Any, cells: Any, lanes: Any, value: Any
    ) -> None:
        shadow, clocks, view = memory.shadow, batch.clocks, memory.view(self.place.dtype)
        assert shadow is not None
        every = np.broadcast_to(lanes, cells.shape)
        old = shadow.writes.take(cells)
        hot = old.size and old.max() >= shadow.threshold(clocks)
        if hot or shadow.read_recently():
            flat_cells, flat_lanes = cells.ravel(), every.ravel()
            writes, reads = shadow.check_write(flat_cells, flat_lanes, clocks)
            batch.launch.findings.races(self, batch, reads, "writes {}, read by")
            if self.kind != "atomic" and not len(writes) and not len(reads):
                shadow.forget_reads(flat_cells)
            equal = self._equal(memory, elements, value, writes.at)
            view[elements] = value
            shadow.writes[cells] = shadow.tag(every, self.number, clocks)
            self._settle(batch, memory, writes, equal)
        else:
            view[elements] = value
            shadow.writes[cells] = shadow.tag(every, self.number, clocks)
        if memory.pending is not None:
            self._check_pending_write(batch, memory, cells, lanes)
        if batch.pending_copies and memory.scope == "global":
            check_sources(self, batch, memory, cells, lanes)
        if self.kind != "atomic":
            self._settle_rivals(batch, memory, elements, cells, every, value)

    def _equal(self, memory: Memory, elements: Any, value: Any, at: Any) -> Any:
        """Whether memory holds the bits that are written, at positions of the flat cells."""
        if self.kind == "atomic":
            return np.zeros(len(at), bool)
        element = at % max(elements.size, 1)
        there = memory.view(self.place.dtype)[elements.ravel()[element]]
        new = np.broadcast_to(value, elements.shape).ravel()[element]
        return bits_of(there) == bits_of(new)

    def _settle(self, batch: Any, memory: Memory, conflict: UnorderedAccesses, equal: Any) -> None:
        """Report conflicting writes: races, or redundant where the bits are the same."""
        findings = batch.launch.findings
        if not len(conflict):
            return
        keep = findings.not_atomic(self, conflict)
        conflict, equal = conflict.where(keep), equal[keep]
        findings.races(self, batch, conflict.where(~equal), "writes {}, written by")
        same = conflict.where(equal)
        if len(same):
            findings.pairs("redundant", self, batch, same, "writes to {} the same bits as")
            assert memory.shadow is not None
            memory.shadow.mark_copies(same, batch.clocks)

    def _settle_rivals(
        self, batch: Any, memory: Memory, elements: Any, cells: Any, lanes: Any, value: Any
    ) -> None:
        """Report threads of one instruction that write the same location."""
        shadow = memory.shadow
        assert shadow is not None
        fresh = shadow.tag(lanes, self.number, batch.clocks)
        if (lane_of(shadow.writes.take(cells) ^ fresh) == 0).all():
            return
        lost = shadow.rivals(cells.ravel(), lanes.ravel(), fresh.ravel())
        self._settle(batch, memory, lost, self._equal(memory, elements, value, lost.at))

    def check_issue(self, batch: Any, memory: Memory, cells: Any, lanes: Any) -> None:
        """Report what is not ordered before a copy into cells that starts now."""
        shadow = memory.shadow
        assert shadow is not None
        self._check_pending_write(batch, memory, cells, lanes)
        flat = cells.ravel(), np.broadcast_to(lanes, cells.shape).ravel()
        writes, reads = shadow.check_write(*flat, batch.clocks)
        batch.launch.findings.races(self, batch, writes, "copies to {}, written by")
        batch.launch.findings.races(self, batch, reads, "copies to {}, read by")

    def _check_pending_write(self, batch: Any, memory: Memory, cells: Any, lanes: Any) -> None:
        touched = memory.pending.take(cells) != 0
        if touched.any():
            batch.launch.findings.touched_pending(self, batch, cells, lanes, touched)
