"""Asynchronous copies under way: what they read and write until they are complete.

A GPU may read the source of ``cp.async`` at any time between the instruction and the end of the
wait for its group (PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy"). One
run covers both ends:

* the value is read at the issue;
* a write to the source before the wait is reported, and where it changes what the copy would bring,
  the copy brings poison;
* the wait logs the read again, so that a write that no barrier orders after it is a race.

So a run without such reports gives the same values whenever the source is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..model.values import bits_of, retyped
from .located_access import LocatedAccess
from .memory import Memory

#: Poison of an asynchronous copy whose source was written while it was under way.
SOURCE_OVERWRITTEN = 4


@dataclass
class PendingSource:
    """What copies under way read, ``[n, threads]``, where the kernel writes that memory, too."""

    access: LocatedAccess
    memory: Memory
    lanes: Any
    elements: Any

    @property
    def cells(self) -> Any:
        """Shadow cells of the elements."""
        return self.access.cells(self.memory, self.elements)

    def now(self, target: np.dtype[Any]) -> Any:
        """What memory holds at present, ``[n, threads]`` of another type."""
        rows = np.reshape(self.elements, (-1, len(self.lanes)))
        return retyped(self.memory.view(self.access.place.dtype)[rows], target)

    def keep(self, lanes: Any) -> PendingSource:
        """Part of it that the given threads read."""
        chosen = np.isin(self.lanes, lanes)
        return replace(self, lanes=self.lanes[chosen], elements=self.elements[..., chosen])


@dataclass
class PendingCopy:
    """A copy under way: what its threads will write, and the group and slots of its issue."""

    access: LocatedAccess
    lanes: Any
    elements: Any
    value: Any
    poison: Any
    group: Any
    slots: list[Any]
    sources: list[PendingSource] = field(default_factory=list)

    def keep(self, chosen: Any) -> PendingCopy:
        """Part of it that the chosen threads (bool each) issued."""
        lanes = self.lanes[chosen]
        return replace(
            self,
            lanes=lanes,
            elements=self.elements[..., chosen],
            value=self.value[..., chosen],
            poison=None if self.poison is None else self.poison[..., chosen],
            group=self.group[chosen],
            sources=[source.keep(lanes) for source in self.sources],
        )

    def poison_overwritten(self, source: PendingSource) -> None:
        """Poison what would differ if the source were read now."""
        if self.poison is None:
            self.poison = np.zeros(self.value.shape, np.int64)
        value = np.reshape(self.value, (-1, len(self.lanes)))
        codes = np.reshape(self.poison, value.shape)
        fresh = source.now(value.dtype)
        at = np.ix_(range(len(fresh)), np.searchsorted(self.lanes, source.lanes))
        codes[at] = np.where(bits_of(value[at]) != bits_of(fresh), SOURCE_OVERWRITTEN, codes[at])


def copy_into(batch: Any, memory: Memory, cell: int) -> tuple[list[Any], int] | None:
    """Find the copy under way into a cell: loop variables at its issue, and the thread."""
    for pending in batch.pending_copies:
        if pending.access.memory(batch) is not memory:
            continue
        hit = np.argwhere(pending.access.cells(memory, pending.elements) == cell)
        if len(hit):
            return pending.slots, int(pending.lanes[hit[0][-1]])
    return None


def check_sources(
    access: LocatedAccess, batch: Any, memory: Memory, cells: Any, lanes: Any
) -> None:
    """Report writes to what copies under way read; they have been done."""
    for pending in batch.pending_copies:
        for source in pending.sources:
            if source.memory is not memory:
                continue
            hit = np.isin(cells, source.cells)
            if hit.any():
                batch.launch.findings.source_overwritten(
                    access, batch, cells, lanes, hit, source, pending.slots
                )
                pending.poison_overwritten(source)
