"""Which instructions nvcc makes of an access of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

#: Row of the address, bytes after it, and width of one instruction.
Instruction = tuple[int, int, int]


@dataclass
class NvccPlan:
    """Which instructions nvcc makes of an access: those counted, and the least of them.

    ``once`` has slots of loops before which it is made, with the first value of each. ``least``
    has the instructions that are certain by the turn of the loops at ``slots``, None if all are.
    """

    counted: tuple[Instruction, ...]
    once: tuple[tuple[int, int], ...] = ()
    least: dict[tuple[int, ...], tuple[Instruction, ...]] | None = None
    slots: tuple[int, ...] = ()
    least_once: tuple[tuple[int, int], ...] = ()

    def is_counted(self, s: Any) -> bool:
        """Whether the access is counted at this turn of the loops."""
        return bool(self.counted) and _at_first(s, self.once)

    def certain(self, s: Any) -> tuple[Instruction, ...]:
        """Instructions that are made whatever nvcc does, at this turn of the loops."""
        if self.least is None or not _at_first(s, self.least_once):
            return ()
        return self.least.get(tuple(int(s.slots[slot]) for slot in self.slots), ())


def _at_first(s: Any, once: tuple[tuple[int, int], ...]) -> bool:
    return all(np.all(s.slots[slot] == first) for slot, first in once)
