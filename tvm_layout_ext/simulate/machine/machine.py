"""Runs the paths of a batch until all have ended: the program counter, barriers, merging.

A kernel is a list of instructions. What holds no synchronisation and cannot leave its statement is
one ``Run`` that uses masks. Around the rest, threads that part company become paths of their own,
each with its program counter; they may wait at different barriers, and so advance independently as
warps do. The path that is furthest behind runs first, and paths that meet are joined again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import SimulationError
from ...gpu import hardware
from ..model.code import Code, Run
from ..model.warp_batch import DivergentPath, WarpBatch
from ..report import Site

_WARP = hardware.WARP_SIZE
#: Turns of a path's while loops after which they count as endless: some 5 seconds of them.
_MAX_TURNS = 1 << 19
#: Backward jumps after which a path lets others pass.
_PATIENCE = 64


@dataclass
class MachineStep:
    """One step of a program; ``live`` names the loop variables that are in use there."""

    live: tuple[int, ...] = field(default=(), init=False)

    def step(self, machine: Machine, s: DivergentPath) -> None:
        """Run it for a path and move its program counter."""
        raise NotImplementedError


@dataclass
class RunInstruction(MachineStep):
    """Run a statement that does not synchronise."""

    run: Run

    def step(self, machine: Machine, s: DivergentPath) -> None:
        """Run it."""
        s.pc += 1
        self.run(s, s.mask)


@dataclass
class Jump(MachineStep):
    """Go elsewhere; ``endless`` is the site of a while loop whose turns are limited."""

    target: int = -1
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

    def step(self, machine: Machine, s: DivergentPath) -> None:
        """Test it; a mixed outcome splits the path."""
        batch = s.batch
        c = batch.defined(self.site, s.mask, *self.condition.pair(s, s.mask))
        s.pc += 1
        if np.ndim(c) == 0:
            if not c:
                s.pc = self.target
            return
        mask = batch.active(s.mask)
        taken = mask & c
        if not taken.any():
            s.pc = self.target
        elif not (left := mask & ~taken).any():
            return
        else:
            s.mask = taken
            machine.paths.append(s.split(left, self.target))


@dataclass
class Barrier(MachineStep):
    """Wait for all threads of the block."""

    site: Site

    def step(self, machine: Machine, s: DivergentPath) -> None:
        """Begin to wait."""
        s.waiting = self
        s.pc += 1


class End(MachineStep):
    """The threads leave the kernel."""

    def step(self, machine: Machine, s: DivergentPath) -> None:
        """Retire the path."""
        machine.retire(s)


class Machine:
    """Runs one batch through a program."""

    def __init__(self, batch: WarpBatch, program: list[MachineStep], slots: int) -> None:
        self.batch = batch
        self.program = program
        self.paths = [DivergentPath(batch, batch.full, [None] * slots)]
        self.barriers = 0
        self._ended = np.zeros(batch.size, bool) if batch.full is None else ~batch.full

    def run(self) -> None:
        """Run to the end."""
        while self.paths:
            s = self._next()
            if s is None:
                if not self._resume():
                    self._release()
            elif len(self.paths) == 1:
                self._run_alone(s)
            else:
                self.batch.slots = s.slots
                self.program[s.pc].step(self, s)
                self._merge(s)

    def _run_alone(self, s: DivergentPath) -> None:
        program = self.program
        self.batch.slots = s.slots
        while s.waiting is None and len(self.paths) == 1:
            program[s.pc].step(self, s)

    def _next(self) -> DivergentPath | None:
        ready = [s for s in self.paths if s.waiting is None]
        if not ready:
            return None
        least = min(s.turns for s in ready)
        return min(ready, key=lambda s: ((s.turns - least) // _PATIENCE, s.pc))

    def retire(self, s: DivergentPath) -> None:
        """Take a path's threads out of the batch."""
        self._ended |= self.batch.active(s.mask)
        self.paths = [other for other in self.paths if other is not s]

    # Merging.

    def _merge(self, s: DivergentPath) -> None:
        for other in self.paths:
            if other is not s and self._mergeable(s, other):
                self._join(s, other)
                return

    def _mergeable(self, s: DivergentPath, other: DivergentPath) -> bool:
        if other.pc != s.pc or s.waiting is not None or other.waiting is not None:
            return False
        live = self.program[s.pc].live if s.pc < len(self.program) else ()
        return all(_same(s.slots[slot], other.slots[slot]) for slot in live)

    def _join(self, s: DivergentPath, other: DivergentPath) -> None:
        mine = self.batch.active(s.mask)
        s.slots = [_blend(mine, a, b) for a, b in zip(s.slots, other.slots, strict=True)]
        joined = mine | self.batch.active(other.mask)
        full = self.batch.active(self.batch.full)
        s.mask = self.batch.full if (joined == full).all() else joined
        s.turns = max(s.turns, other.turns)
        self.paths = [kept for kept in self.paths if kept is not other]

    # What only some threads wait for.

    def _resume(self) -> bool:
        """Let threads go on for which what they wait for has come; whether there are any."""
        waiting = [s for s in self.paths if hasattr(s.waiting, "ready")]
        found = False
        for s in waiting:
            mask = self.batch.active(s.mask)
            ready = s.waiting.ready(s) & mask
            if not ready.any():
                continue
            found = True
            if (left := mask & ~ready).any():
                rest = s.split(left, s.pc)
                rest.waiting = s.waiting
                self.paths.append(rest)
                s.mask = ready
            s.waiting = None
        if waiting and not found:
            raise SimulationError(self._deadlock())
        return found

    def _deadlock(self) -> str:
        told = []
        for s in self.paths:
            mask = self.batch.active(s.mask)
            lane = int(np.argmax(mask))
            told_of = getattr(s.waiting, "told", None)
            what = told_of(s, lane) if told_of else "a barrier of all threads"
            warps = int(mask.reshape(-1, _WARP).any(axis=1).sum())
            told.append(
                f"{warps} warps, the first with {self.batch.thread_name(lane)}, wait at line "
                f"{s.waiting.site.line} for {what}"
            )
        before = self.batch.launch.findings.hazards(redundant=False)
        first = f" Before that: {before[0].message}" if before else ""
        return f"Deadlock: {'; '.join(told)}.{first}"

    # Barriers.

    def _release(self) -> None:
        """Let all waiting threads go on: no thread can run, so every live one waits."""
        if len(self.paths) > 1 or self._ended.any():
            self._check_barrier()
        waiting = np.zeros(self.batch.size, bool)
        for s in self.paths:
            waiting |= self.batch.active(s.mask)
            s.waiting = None
        blocks = waiting.reshape(len(self.batch.blocks), -1).any(axis=1)
        self.barriers += int(blocks.sum())
        self.batch.clocks.join_blocks(blocks)
        first, *rest = self.paths
        for _ in rest:
            self._merge(first)

    def _check_barrier(self) -> None:
        batch = self.batch
        whole = batch.active(batch.full)
        gone = self._ended & whole
        for s in self.paths:
            mask = batch.active(s.mask) & whole
            warps = mask.reshape(-1, _WARP)
            split = warps.any(axis=1) & (warps != whole.reshape(-1, _WARP)).any(axis=1)
            if split.any():
                self._report(s, mask, int(np.argmax(split)) * _WARP, "warp", _WARP)
        lanes = batch.geometry.lanes
        left = gone.reshape(-1, lanes).any(axis=1)
        for s in self.paths:
            mask = batch.active(s.mask) & whole
            short = left & mask.reshape(-1, lanes).any(axis=1)
            if short.any():
                self._report(s, mask, int(np.argmax(short)) * lanes, "block", lanes)

    def _report(self, s: DivergentPath, mask: Any, start: int, unit: str, size: int) -> None:
        batch = self.batch
        reached = mask[start : start + size]
        members = batch.active(batch.full)[start : start + size]
        lane = start + int(np.argmax(reached))
        site = s.waiting.site
        batch.slots = s.slots
        message = (
            f"{int(reached.sum())} of the {int(members.sum())} threads of a {unit}, among them "
            f"{batch.thread_name(lane)}, reach the barrier at line {site.line}; the others do not."
        )
        batch.launch.findings.by_thread("barrier", (site,), message, batch, lane, key=unit)


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if np.ndim(a) == 0 and np.ndim(b) == 0:
        return bool(a == b)
    return np.shape(a) == np.shape(b) and bool(np.array_equal(a, b))


def _blend(mine: Any, a: Any, b: Any) -> Any:
    """Join two paths' values of a slot."""
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
