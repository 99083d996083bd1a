"""Runs the strands of a gang until all have ended: the program counter, barriers, merging.

A kernel is a list of instructions. What holds no synchronisation and cannot leave its statement is
one ``Run`` that uses masks. Around the rest, threads that part company become strands of their own,
each with its program counter; they may wait at different barriers, and so advance independently as
warps do. The strand that is furthest behind runs first, and strands that meet are joined again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import SimulationError
from ...gpu import hardware
from ..model.code import Code, Run
from ..model.warp_batch import DivergentPath, WarpBatch
from ..report import Hazard, Site

__all__ = [
    "Barrier",
    "Branch",
    "End",
    "Jump",
    "Machine",
    "MachineStep",
    "RunInstruction",
    "SetSlot",
]

_WARP = hardware.WARP_SIZE
#: Turns of a strand's while loops after which they count as endless: some 5 seconds of them.
_MAX_TURNS = 1 << 19
#: Backward jumps after which a strand lets others pass.
_PATIENCE = 64


class MachineStep:
    """One step of a program; ``live`` names the loop variables that are in use there."""

    live: tuple[int, ...] = ()

    def step(self, machine: Machine, s: DivergentPath) -> None:
        """Run it for a strand and move its program counter."""
        raise NotImplementedError


@dataclass
class RunInstruction(MachineStep):
    """Run a statement that does not synchronise."""

    run: Run
    live: tuple[int, ...] = ()

    def step(self, machine: Machine, s: DivergentPath) -> None:
        """Run it."""
        s.pc += 1
        self.run(s, s.mask)


@dataclass
class SetSlot(MachineStep):
    """Give a loop variable its first or next value."""

    slot: int
    value: Code
    live: tuple[int, ...] = ()

    def step(self, machine: Machine, s: DivergentPath) -> None:
        """Set it."""
        s.pc += 1
        s.slots[self.slot] = self.value.run(s, s.mask)


@dataclass
class Jump(MachineStep):
    """Go elsewhere; ``endless`` is the site of a while loop whose turns are limited."""

    target: int = -1
    live: tuple[int, ...] = ()
    endless: Site | None = None

    def step(self, machine: Machine, s: DivergentPath) -> None:
        """Jump."""
        if self.target < s.pc:
            s.turns += 1
            if self.endless is not None and s.turns > _MAX_TURNS:
                raise SimulationError(
                    f"The while loop at line {self.endless.line} took {_MAX_TURNS:,} turns without "
                    "an end; the simulated GPU takes it for endless."
                )
        s.pc = self.target


@dataclass
class Branch(MachineStep):
    """Threads for which the condition is false go elsewhere."""

    condition: Code
    site: Site
    target: int = -1
    live: tuple[int, ...] = ()

    def step(self, machine: Machine, s: DivergentPath) -> None:
        """Test it; a mixed outcome splits the strand."""
        gang = s.gang
        c, p = self.condition.pair(s, s.mask)
        if p is not None:
            c = gang.defined(self.site, s.mask, c, p)
        s.pc += 1
        if np.ndim(c) == 0:
            if not c:
                s.pc = self.target
            return
        mask = gang.active(s.mask)
        taken = mask & c
        if not taken.any():
            s.pc = self.target
        elif not (left := mask & ~taken).any():
            return
        else:
            s.mask = taken
            machine.strands.append(s.split(left, self.target))


@dataclass
class Barrier(MachineStep):
    """Wait for all threads of the block."""

    site: Site
    live: tuple[int, ...] = ()

    def step(self, machine: Machine, s: DivergentPath) -> None:
        """Begin to wait."""
        s.waiting = self
        s.pc += 1


@dataclass
class End(MachineStep):
    """The threads leave the kernel."""

    live: tuple[int, ...] = ()

    def step(self, machine: Machine, s: DivergentPath) -> None:
        """Retire the strand."""
        machine.retire(s)


class Machine:
    """Runs one gang through a program."""

    def __init__(self, gang: WarpBatch, program: list[MachineStep], slots: int) -> None:
        self.gang = gang
        self.program = program
        self.strands = [DivergentPath(gang, gang.full, [None] * slots)]
        self.barriers = 0
        self._ended = np.zeros(gang.size, bool) if gang.full is None else ~gang.full

    def run(self) -> None:
        """Run to the end."""
        while self.strands:
            s = self._next()
            if s is None:
                self._release()
            elif len(self.strands) == 1:
                self._run_alone(s)
            else:
                self.gang.slots = s.slots
                self.program[s.pc].step(self, s)
                self._merge(s)

    def _run_alone(self, s: DivergentPath) -> None:
        program = self.program
        self.gang.slots = s.slots
        while s.waiting is None and len(self.strands) == 1:
            program[s.pc].step(self, s)

    def _next(self) -> DivergentPath | None:
        ready = [s for s in self.strands if s.waiting is None]
        if not ready:
            return None
        least = min(s.turns for s in ready)
        return min(ready, key=lambda s: ((s.turns - least) // _PATIENCE, s.pc))

    def retire(self, s: DivergentPath) -> None:
        """Take a strand's threads out of the gang."""
        self._ended |= self.gang.active(s.mask)
        self.strands = [other for other in self.strands if other is not s]

    # Merging.

    def _merge(self, s: DivergentPath) -> None:
        for other in self.strands:
            if other is not s and self._mergeable(s, other):
                self._join(s, other)
                return

    def _mergeable(self, s: DivergentPath, other: DivergentPath) -> bool:
        if other.pc != s.pc or s.waiting is not None or other.waiting is not None:
            return False
        live = self.program[s.pc].live if s.pc < len(self.program) else ()
        return all(_same(s.slots[slot], other.slots[slot]) for slot in live)

    def _join(self, s: DivergentPath, other: DivergentPath) -> None:
        mine = self.gang.active(s.mask)
        s.slots = [_blend(mine, a, b) for a, b in zip(s.slots, other.slots, strict=True)]
        joined = mine | self.gang.active(other.mask)
        full = self.gang.active(self.gang.full)
        s.mask = self.gang.full if (joined == full).all() else joined
        s.turns = max(s.turns, other.turns)
        self.strands = [kept for kept in self.strands if kept is not other]

    # Barriers.

    def _release(self) -> None:
        """Let all waiting threads go on: no thread can run, so every live one waits."""
        if len(self.strands) > 1 or self._ended.any():
            self._check_barrier()
        waiting = np.zeros(self.gang.size, bool)
        for s in self.strands:
            waiting |= self.gang.active(s.mask)
            s.waiting = None
        blocks = waiting.reshape(len(self.gang.blocks), -1).any(axis=1)
        self.barriers += int(blocks.sum())
        self.gang.clocks.join_blocks(blocks)
        first, *rest = self.strands
        for _ in rest:
            self._merge(first)

    def _check_barrier(self) -> None:
        gang = self.gang
        whole = gang.active(gang.full)
        gone = self._ended & whole
        for s in self.strands:
            mask = gang.active(s.mask) & whole
            warps = mask.reshape(-1, _WARP)
            split = warps.any(axis=1) & (warps != whole.reshape(-1, _WARP)).any(axis=1)
            if split.any():
                self._report(s, mask, int(np.argmax(split)) * _WARP, "warp", _WARP)
        lanes = gang.geometry.lanes
        left = gone.reshape(-1, lanes).any(axis=1)
        for s in self.strands:
            mask = gang.active(s.mask) & whole
            short = left & mask.reshape(-1, lanes).any(axis=1)
            if short.any():
                self._report(s, mask, int(np.argmax(short)) * lanes, "block", lanes)

    def _report(self, s: DivergentPath, mask: Any, start: int, unit: str, size: int) -> None:
        gang = self.gang
        reached = mask[start : start + size]
        members = gang.active(gang.full)[start : start + size]
        lane = start + int(np.argmax(reached))
        site = s.waiting.site
        gang.slots = s.slots
        message = (
            f"{int(reached.sum())} of the {int(members.sum())} threads of a {unit}, among them "
            f"{gang.thread_name(lane)}, reach the barrier at line {site.line}; the others do not."
        )
        hazard = Hazard("barrier", site.buffer, -1, (gang.thread_name(lane),), (site,), message)
        gang.launch.findings.add_at(("barrier", unit, site), hazard, 1, gang, lane)


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if np.ndim(a) == 0 and np.ndim(b) == 0:
        return bool(a == b)
    return np.shape(a) == np.shape(b) and bool(np.array_equal(a, b))


def _blend(mine: Any, a: Any, b: Any) -> Any:
    """Join two strands' values of a slot."""
    if a is b or b is None:
        return a
    if a is None:
        return b
    if isinstance(a, tuple):
        codes = [0 if x is None else x for x in (a[1], b[1])]
        neither = a[1] is None and b[1] is None
        return _blend(mine, a[0], b[0]), None if neither else np.where(mine, *codes)
    if np.ndim(a) == 0 and np.ndim(b) == 0 and a == b:
        return a
    return np.where(mine, a, b)
