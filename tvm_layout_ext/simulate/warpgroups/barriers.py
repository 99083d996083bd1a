"""Barriers in shared memory and named ones: phases, arrivals, bytes, and what they order."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import SimulationError
from ...gpu import hardware

_WARP = hardware.WARP_SIZE


class _Meeting:
    """What warps know of each other at barriers: of the phase under way, and of the last one."""

    def __init__(self, clocks: Any, blocks: int, length: int) -> None:
        self._clocks = clocks
        self._known = np.zeros((blocks, length, clocks.warps), np.int64)
        self._done = np.zeros_like(self._known)

    def _leave(self, block: int, index: int, warp: int) -> None:
        """Leave what a warp did and knows."""
        clocks, here = self._clocks, self._known[block, index]
        clocks.now += 1
        np.maximum(here, clocks.seen[warp], out=here)
        here[warp % clocks.warps] = clocks.now

    def _end(self, block: int, index: int) -> None:
        """End a phase."""
        self._done[block, index] = self._known[block, index]

    def pass_by(self, block: int, index: int, warp: int) -> None:
        """Let a warp know what came before the end of the last phase."""
        self._clocks.learn(warp, self._done[block, index])


class Barriers(_Meeting):
    """The mbarriers of an array in shared memory, of all blocks of a batch.

    A phase ends when ``count`` threads have arrived and no bytes are outstanding (PTX ISA,
    "mbarrier").
    """

    def __init__(self, name: str, clocks: Any, blocks: int, length: int) -> None:
        super().__init__(clocks, blocks, length)
        self.name = name
        self.count = np.zeros((blocks, length), np.int64)
        self.phase, self.left, self.bytes = (np.zeros((blocks, length), np.int64) for _ in "123")
        #: Who initialised a barrier, and when.
        self._begun = np.zeros((blocks, length, 2), np.int64)

    def initialise(self, block: int, index: int, warp: int, count: int) -> None:
        """Begin phase 0."""
        self.count[block, index] = self.left[block, index] = count
        self._begun[block, index] = warp, self._clocks.now

    def knows(self, block: int, index: int, warp: int) -> bool:
        """Whether a warp comes after the barrier was initialised."""
        by, time = self._begun[block, index]
        return bool(self._clocks.seen[warp, by % self._clocks.warps] > time)

    def arrive(self, block: int, index: int, warp: int, expected: int = 0) -> None:
        """Count a thread, and bytes that are still to come."""
        if not self.count[block, index]:
            raise SimulationError(f"A thread arrives at {self.name}[{index}] before its init.")
        self._leave(block, index, warp)
        self.left[block, index] -= 1
        self.bytes[block, index] += expected
        if self.left[block, index] < 0:
            raise SimulationError(
                f"More threads arrive at {self.name}[{index}] in a phase than the "
                f"{self.count[block, index]} that it was initialised for."
            )
        self._advance(block, index)

    def complete(self, block: int, index: int, warp: int, count: int) -> None:
        """Count bytes that have come, by a copy that a warp issued."""
        self._leave(block, index, warp)
        self.bytes[block, index] -= count
        self._advance(block, index)

    def _advance(self, block: int, index: int) -> None:
        if self.left[block, index] or self.bytes[block, index]:
            return
        self.phase[block, index] += 1
        self.left[block, index] = self.count[block, index]
        self._end(block, index)

    def has_ended(self, block: Any, index: Any, parity: Any) -> Any:
        """Whether the phase of a parity has ended: the one under way has the other."""
        return self.phase[block, index] % 2 != parity

    def told(self, block: int, index: int) -> str:
        """What the phase under way lacks."""
        left, more = self.left[block, index], self.bytes[block, index]
        lacks = [f"{left} of {self.count[block, index]} arrivals"] * bool(left)
        lacks += [f"{more:,} bytes"] * bool(more)
        phase = f"phase {self.phase[block, index]}"
        return f"{self.name}[{index}], {phase} of which lacks {' and '.join(lacks) or 'nothing'}"

    def unbalanced(self) -> list[tuple[int, int]]:
        """Barriers with bytes that no phase waited for, or that never came."""
        return [(int(b), int(i)) for b, i in np.argwhere(self.bytes != 0)]


class NamedBarriers(_Meeting):
    """The 16 numbered barriers of every block of a batch."""

    def __init__(self, clocks: Any, blocks: int) -> None:
        super().__init__(clocks, blocks, 16)
        self._arrived, self._turn = (np.zeros((blocks, 16), np.int64) for _ in "12")

    def arrive(self, block: int, number: int, lanes: Any, threads: int) -> int:
        """Count the threads of some lanes of a block; the turn that they wait for the end of."""
        turn = int(self._turn[block, number])
        for warp in np.unique(lanes // _WARP):
            self._leave(block, number, int(warp))
        self._arrived[block, number] += len(lanes)
        arrived = self._arrived[block, number]
        if arrived > threads:
            raise SimulationError(
                f"{arrived} threads arrive at named barrier {number}, which is for {threads}."
            )
        if arrived == threads:
            self._arrived[block, number], self._turn[block, number] = 0, turn + 1
            self._end(block, number)
        return turn

    def has_ended(self, block: Any, number: Any, turn: Any) -> Any:
        """Whether a turn is over."""
        return self._turn[block, number] > turn

    def told(self, block: int, number: int) -> str:
        """Who is there."""
        return f"{number}, where {self._arrived[block, number]} threads are"
