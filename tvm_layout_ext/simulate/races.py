"""Which accesses are ordered: clocks of the warps, and the last accesses of every location.

Time is one counter that moves on at every synchronisation. ``Clocks.seen[w, v]`` is a time such
that whatever warp ``v`` of the block did before it happens before what warp ``w`` does now: a
barrier raises a block's entries, ``__syncwarp`` one warp's own. This is the vector-clock scheme of
FastTrack (Flanagan and Freund, 2009) with a warp for a thread, plus the lane inside the warp.

A location's shadow is one int64 *tag* for its last write and one for its reads since::

    time << 34 | site << 20 | group << 18 | lane

``group`` says who the tag stands for: 0 the lane alone, 1 several lanes of its warp, 2 several
warps of its block, 3 several blocks that no barrier orders. Reads are logged and written into tags
only when the same memory is written before the next barrier, so that a loop that only reads pays
nothing for them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..gpu import hardware

_TIME, _SITE, _GROUP = 34, 20, 18
MAX_LANES = 1 << _GROUP
MAX_SITES = 1 << (_TIME - _SITE)
_LANE_MASK = MAX_LANES - 1
_ALONE, _ONE_WARP, _MANY_WARPS, _MANY_BLOCKS = 0, 1, 2, 3
#: Cells of logged reads after which the log is folded into tags to save memory.
_LOG_CELLS = 1 << 23


def site_of(tags: Any) -> Any:
    """Site number in a tag."""
    return (tags >> _SITE) & (MAX_SITES - 1)


def time_of(tags: Any) -> Any:
    """Time in a tag."""
    return tags >> _TIME


def lane_of(tags: Any) -> Any:
    """The thread in a tag."""
    return tags & _LANE_MASK


class Clocks:
    """Happens-before of the warps of a batch.

    Warps know of each other in a block, and in a cluster of blocks: ``warps`` of them.
    """

    def __init__(self, start: int, blocks: int, warps: int, cluster: int = 1) -> None:
        self.start = start
        self.now = start
        self.own, self.warps = warps, warps * cluster
        self.seen = np.full((blocks * warps, self.warps), start, np.int64)
        self.floor = np.full(blocks * warps, start, np.int64)
        self.low = start

    def join_blocks(self, blocks: Any) -> None:
        """Order everything before now in the given blocks (bool a block) before what follows."""
        self.now += 1
        if blocks.all() and self.own == self.warps:
            self.seen.fill(self.now)
            self.floor.fill(self.now)
        else:
            for first in np.flatnonzero(blocks) * self.own:
                rows = slice(first, first + self.own)
                self.seen[rows] = self.seen[rows].max(axis=0)
                begin = first % self.warps
                self.seen[rows, begin : begin + self.own] = self.now
                self.floor[rows] = self.now
        self._lower()

    def join_warps(self, warps: Any) -> None:
        """Order everything before now in each given warp (bool a warp) before what it does next."""
        self.now += 1
        rows = np.flatnonzero(warps)
        self.seen[rows, rows % self.warps] = self.now
        self._refloor(rows)

    def learn(self, warp: int, known: Any) -> None:
        """Let a warp know so much of the others."""
        np.maximum(self.seen[warp], known, out=self.seen[warp])
        self._refloor(np.array([warp]))

    def _refloor(self, rows: Any) -> None:
        """Note the least that warps know of those of their own blocks."""
        columns = (rows // self.own * self.own % self.warps)[:, None] + np.arange(self.own)
        self.floor[rows] = self.seen[rows[:, None], columns].min(axis=1)
        self._lower()

    def _lower(self) -> None:
        self.low = int((self.floor if self.own == self.warps else self.seen).min())


@dataclass(frozen=True)
class UnorderedAccesses:
    """Parallel arrays: ``tags`` of the other accesses, ``at`` positions among those checked."""

    cells: Any
    lanes: Any
    tags: Any
    at: Any

    def other_lane(self) -> Any:
        """Return the other thread of each entry."""
        return lane_of(self.tags)

    def other_site(self) -> Any:
        """Site number of the other access."""
        return site_of(self.tags)

    def other_time(self) -> Any:
        """Time of the other access."""
        return time_of(self.tags)

    def where(self, keep: Any) -> UnorderedAccesses:
        """Entries for which ``keep`` holds."""
        return UnorderedAccesses(self.cells[keep], self.lanes[keep], self.tags[keep], self.at[keep])

    def __len__(self) -> int:
        return len(self.cells)


@dataclass
class _Read:
    time: int
    site: int
    cells: Any
    lanes: Any


@dataclass
class Shadow:
    """Last write and last reads of every cell of a memory."""

    cells: int
    across_blocks: bool
    writes: Any = field(init=False)
    _reads: Any = field(init=False, default=None)
    _log: list[_Read] = field(init=False, default_factory=list)
    _logged: int = field(init=False, default=0)
    _copies: list[tuple[int, Any, Any]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.writes = np.zeros(self.cells, np.int64)

    def clear(self) -> None:
        """Forget everything: a new kernel, or fresh shared memory."""
        self.writes.fill(0)
        self._reads = None
        self._log.clear()
        self._copies.clear()
        self._logged = 0

    def read_recently(self) -> bool:
        """Whether any read is remembered that a write might have to be ordered after."""
        return bool(self._log) or self._reads is not None

    def threshold(self, clocks: Clocks) -> int:
        """Tags below this are ordered before everything that happens now."""
        return 1 if self.across_blocks else clocks.low << _TIME

    def _unordered(self, tags: Any, lanes: Any, clocks: Clocks) -> Any:
        time, other, group = tags >> _TIME, tags & _LANE_MASK, (tags >> _GROUP) & 3
        warp = lanes // hardware.WARP_SIZE
        other_warp = np.minimum(other // hardware.WARP_SIZE, len(clocks.floor) - 1)
        seen = clocks.seen[warp, other_warp % clocks.warps]
        late = time >= np.where(group == _MANY_WARPS, clocks.floor[warp], seen)
        late &= (other != lanes) | (group != _ALONE)
        if self.across_blocks:
            late |= (time < clocks.start) | (group == _MANY_BLOCKS)
            late |= other_warp // clocks.warps != warp // clocks.warps
        return late & (tags != 0)

    def _conflict(self, tags: Any, cells: Any, lanes: Any, clocks: Clocks) -> UnorderedAccesses:
        bad = self._unordered(tags, lanes, clocks)
        return UnorderedAccesses(cells[bad], lanes[bad], tags[bad], np.flatnonzero(bad))

    def are_ordered(self, tags: Any, lanes: Any, clocks: Clocks) -> Any:
        """Whether what each of some threads does now comes after all accesses of some tags."""
        return ~self._unordered(tags[:, None], lanes, clocks).any(axis=0)

    def check_read(self, cells: Any, lanes: Any, clocks: Clocks) -> UnorderedAccesses:
        """Find the writes that a read of ``cells`` by ``lanes`` (flat) is not ordered after."""
        found = self._conflict(self.writes[cells], cells, lanes, clocks)
        if not len(found) or not self._copies:
            return found
        return found.where(~self._wrote(found.cells, found.lanes, clocks))

    def _wrote(self, cells: Any, lanes: Any, clocks: Clocks) -> Any:
        """Whether each lane wrote the cell itself, the same value as others did."""
        keys = cells * MAX_LANES + lanes
        mine = np.zeros(len(cells), bool)
        for time, copied, by in self._copies:
            if time >= clocks.start:
                mine |= np.isin(keys, copied * MAX_LANES + by)
        return mine

    def log_read(self, cells: Any, lanes: Any, site: int, clocks: Clocks) -> None:
        """Remember a read until the next barrier; ``lanes`` broadcasts against ``cells``."""
        self._log.append(_Read(clocks.now, site, cells, lanes))
        self._logged += cells.size
        if self._logged > _LOG_CELLS:
            self._forget_ordered(clocks)
            if self._logged > _LOG_CELLS:
                self._fold(clocks)

    def _forget_ordered(self, clocks: Clocks) -> None:
        if not self.across_blocks:
            self._log = [r for r in self._log if r.time >= clocks.low]
        self._logged = sum(r.cells.size for r in self._log)

    def _fold(self, clocks: Clocks) -> None:
        """Write the logged reads into the read tags."""
        if self._reads is None:
            self._reads = np.zeros(self.cells, np.int64)
        for read in self._log:
            lanes = np.broadcast_to(read.lanes, read.cells.shape).ravel()
            self._mark(self._reads, read.cells.ravel(), lanes, read.time, read.site, clocks)
        self._log.clear()
        self._logged = 0

    def _mark(
        self, tags: Any, cells: Any, lanes: Any, time: int, site: int, clocks: Clocks
    ) -> None:
        """Set the tags of cells, keeping track of whom each tag stands for."""
        if not len(cells):
            return
        old = tags[cells]
        fresh = time << _TIME | site << _SITE | lanes
        warp, time_before = lanes // hardware.WARP_SIZE, old >> _TIME
        live = (time_before >= (1 if self.across_blocks else clocks.floor[warp])) & (old != 0)
        # What comes after this access comes after those of its warp before its ``__syncwarp``, too.
        is_own = (old & _LANE_MASK) // hardware.WARP_SIZE == warp
        is_own &= ((old >> _GROUP) & 3 <= _ONE_WARP) & (time_before >= clocks.start)
        live &= ~is_own | (time_before >= clocks.seen[warp, warp % clocks.warps])
        group = np.where(live, _joined(old, lanes, clocks), _ALONE)
        tags[cells] = fresh
        _widen(tags, cells, fresh, group)
        # Several lanes may have touched a cell in one instruction.
        settled = tags[cells]
        joined = _joined(settled, lanes, clocks)
        group = np.where((settled & _LANE_MASK) != lanes, joined, _ALONE)
        _widen(tags, cells, settled, group)

    def check_write(
        self, cells: Any, lanes: Any, clocks: Clocks
    ) -> tuple[UnorderedAccesses, UnorderedAccesses]:
        """Unordered writes and unordered reads before a write by ``lanes`` of ``cells``."""
        self._forget_ordered(clocks)
        if self._log:
            self._fold(clocks)
        writes = self._conflict(self.writes[cells], cells, lanes, clocks)
        if self._reads is None:
            return writes, UnorderedAccesses(cells[:0], lanes[:0], cells[:0], cells[:0])
        return writes, self._conflict(self._reads[cells], cells, lanes, clocks)

    def forget_reads(self, cells: Any) -> None:
        """Forget reads before a write that was ordered after them: what follows it is, too."""
        if self._reads is not None:
            self._reads[cells] = 0

    def rivals(self, cells: Any, lanes: Any, fresh: Any) -> UnorderedAccesses:
        """Lanes that lost a location to another lane of the same instruction."""
        settled = self.writes[cells]
        lost = settled != fresh
        return UnorderedAccesses(cells[lost], lanes[lost], settled[lost], np.flatnonzero(lost))

    def tag(self, lanes: Any, site: int, clocks: Clocks) -> Any:
        """Tags of accesses made now."""
        return clocks.now << _TIME | site << _SITE | lanes

    def mark_copies(self, conflict: UnorderedAccesses, clocks: Clocks) -> None:
        """Note lanes that wrote the value that was there: all of them count as writers."""
        other = conflict.other_lane()
        self._copies = [c for c in self._copies if self.across_blocks or c[0] >= clocks.low]
        self._copies.append((clocks.now, conflict.cells, conflict.lanes))
        self._copies.append((clocks.now, conflict.cells, other))
        tags = self.writes
        settled = tags[conflict.cells]
        joined = _joined(conflict.tags, conflict.lanes, clocks)
        group = np.maximum(joined, (settled >> _GROUP) & 3)
        _widen(tags, conflict.cells, settled, group)


def _widen(tags: Any, cells: Any, fresh: Any, group: Any) -> None:
    """Let the tags of cells stand for the group of each; the widest goes last and stays."""
    for level in (_ONE_WARP, _MANY_WARPS, _MANY_BLOCKS):
        chosen = group == level
        if chosen.any():
            tags[cells[chosen]] = fresh[chosen] & ~(3 << _GROUP) | level << _GROUP


def _joined(tags: Any, lanes: Any, clocks: Clocks) -> Any:
    """Whom a tag stands for after another lane joins it."""
    other, group = tags & _LANE_MASK, (tags >> _GROUP) & 3
    one, another = other // hardware.WARP_SIZE, lanes // hardware.WARP_SIZE
    # Lanes of a batch before are those of other blocks.
    together = (one // clocks.warps == another // clocks.warps) & (tags >> _TIME >= clocks.start)
    inside = np.where(one == another, _ONE_WARP, _MANY_WARPS)
    widened = np.where(together, np.maximum(group, inside), _MANY_BLOCKS)
    return np.where(together & (other == lanes) & (group == _ALONE), _ALONE, widened)
