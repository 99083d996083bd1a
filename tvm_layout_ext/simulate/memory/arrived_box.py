"""A box that TMA copied into shared memory, and who has waited for its bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..races import site_of


@dataclass
class ArrivedBox:
    """Cells from ``low`` to ``high``, written by access ``number``.

    Boxes complete in any order, each at its own mbarrier (PTX ISA, "cp.async.bulk.tensor"): who
    waited for a later one of the same thread does not know that this one has come. ``phase`` is
    the phase of its barrier in which its bytes count.
    """

    low: int
    high: int
    number: int
    site: Any
    phase: int
    #: Warps that waited for the phase, and when.
    waited: list[tuple[int, int]] = field(default_factory=list)

    def wait(self, warp: int, now: int) -> None:
        """Note that a warp knows of the bytes."""
        if all(one != warp for one, _ in self.waited):
            self.waited.append((warp, now))

    def is_known(self, warp: int, clocks: Any) -> bool:
        """Whether a warp waited, or comes after one that did."""
        seen = clocks.seen[warp]
        return any(one == warp or seen[one % clocks.warps] > time for one, time in self.waited)

    def holds(self, cells: Any, tags: Any) -> Any:
        """Which of some cells have the box's bytes still."""
        inside = (cells >= self.low) & (cells <= self.high)
        return inside & (site_of(tags) == self.number) if inside.any() else inside


def touched(boxes: Iterable[ArrivedBox], cells: Any) -> list[ArrivedBox]:
    """Boxes that lie between the first and the last of some cells."""
    low, high = int(cells.min()), int(cells.max())
    return [box for box in boxes if box.high >= low and box.low <= high]


def unknown_box(
    boxes: Iterable[ArrivedBox], cells: Any, tags: Any, warp: int, clocks: Any
) -> ArrivedBox | None:
    """A box whose bytes a warp reads without knowing that they have come."""
    for box in boxes:
        if not box.is_known(warp, clocks) and box.holds(cells, tags).any():
            return box
    return None
