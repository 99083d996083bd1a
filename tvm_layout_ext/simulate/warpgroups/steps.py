"""Steps of a program at which threads wait for others of their block, but not for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...gpu import hardware
from ...gpu.warpgroups import WARPGROUP_THREADS
from ..machine.machine import Machine, MachineStep
from ..model.code import Code
from ..model.warp_batch import DivergentPath
from ..report import Site
from .barriers import NamedBarriers
from .units import each, units_of

_WARP = hardware.WARP_SIZE


class Await(MachineStep):
    """Threads go on when something holds for them."""

    site: Site

    def ready(self, s: DivergentPath) -> Any:
        """For every thread whether it may go on; of those of the path it counts."""
        raise NotImplementedError

    def passed(self, s: DivergentPath, firsts: Any) -> None:
        """Threads go on, of each warp of which the first is given."""

    def told(self, s: DivergentPath, lane: int) -> str:
        """What a thread waits for."""
        raise NotImplementedError

    def step(self, machine: Machine, s: DivergentPath) -> None:
        """Go on, or begin to wait."""
        lanes = s.batch.threads(s.mask)
        if self.ready(s)[lanes].all():
            s.pc += 1
            self.passed(s, lanes[np.unique(lanes // _WARP, return_index=True)[1]])
        else:
            s.waiting = self


@dataclass
class AwaitPhase(Await):
    """Wait for the phase of a parity of an mbarrier."""

    storage: Any
    index: Code
    parity: Code
    site: Site

    def _where(self, s: DivergentPath) -> tuple[Any, Any, Any]:
        return s.batch.block_of, each(s, self.index, s.mask), each(s, self.parity, s.mask)

    def ready(self, s: DivergentPath) -> Any:
        """For every thread whether it may go on."""
        block, index, parity = self._where(s)
        found = units_of(s.batch).of(self.storage)
        inside = np.clip(index, 0, self.storage.length - 1)
        return found.has_ended(block, inside, parity)

    def passed(self, s: DivergentPath, firsts: Any) -> None:
        """Know what came before the end of the phase."""
        block, index, _ = self._where(s)
        found = units_of(s.batch).of(self.storage)
        for first in firsts:
            at = int(block[first]), int(index[first]), int(first) // _WARP
            found.pass_by(*at)
            units_of(s.batch).waited(found, *at)

    def told(self, s: DivergentPath, lane: int) -> str:
        """What a thread waits for."""
        block, index, parity = (int(x[lane]) for x in self._where(s))
        what = units_of(s.batch).of(self.storage).told(block, index)
        return f"parity {parity} of {what}"


@dataclass
class AwaitNamed(Await):
    """Arrive at a named barrier, and wait for the others; without a number at the cluster's."""

    number: Code | None
    threads: Code | None
    slot: int
    site: Site

    def _barriers(self, s: Any, m: Any) -> tuple[NamedBarriers, Any, Any, Any]:
        """Barriers, and for every thread whose, which, and of how many threads."""
        batch, own = s.batch, units_of(s.batch)
        if self.number is None or self.threads is None:
            cluster = batch.geometry.cluster
            threads = np.full(batch.size, cluster * batch.geometry.threads)
            return own.clusters, batch.block_of // cluster, np.zeros_like(threads), threads
        return own.named, batch.block_of, each(s, self.number, m), each(s, self.threads, m)

    def arrive(self, s: Any, m: Any) -> None:
        """Count the threads of a path; a step before the one that waits."""
        batch = s.batch
        named, whose, number, threads = self._barriers(s, m)
        turns = np.zeros(batch.size, np.int64)
        lanes = batch.threads(m)
        key = whose[lanes] * 16 + number[lanes]
        for one in np.unique(key):
            own = lanes[key == one]
            block, which = divmod(int(one), 16)
            turns[own] = named.arrive(block, which, own, int(threads[own[0]]))
        s.slots[self.slot] = turns

    def _at(self, s: DivergentPath, lanes: Any) -> tuple[NamedBarriers, Any, Any]:
        """Barriers, and for some threads of a path whose, and which."""
        named, whose, number, _ = self._barriers(s, s.mask)
        return named, whose[lanes], number[lanes]

    def ready(self, s: DivergentPath) -> Any:
        """For every thread whether it may go on."""
        lanes = s.batch.threads(s.mask)
        named, whose, number = self._at(s, lanes)
        found = np.ones(s.batch.size, bool)
        found[lanes] = named.has_ended(whose, number, s.slots[self.slot][lanes])
        return found

    def passed(self, s: DivergentPath, firsts: Any) -> None:
        """Know what came before the barrier."""
        named, *where = self._at(s, firsts)
        for lane, block, number in zip(firsts, *where, strict=True):
            named.pass_by(int(block), int(number), int(lane) // _WARP)

    def told(self, s: DivergentPath, lane: int) -> str:
        """What a thread waits for."""
        named, block, number = self._at(s, lane)
        what = "named barrier" if self.number is not None else "the barrier of a cluster,"
        return f"{what} {named.told(int(block), int(number))}"


@dataclass
class AwaitRegisters(Await):
    """Take or give registers; taking waits until the other warpgroups have given enough."""

    count: int
    site: Site

    def _given(self, s: DivergentPath) -> Any:
        """Registers that each warpgroup of the batch has now."""
        own = units_of(s.batch)
        if own.registers is None:
            threads = s.batch.geometry.lanes
            entry = min(65536 // threads // 8 * 8, 255)
            own.registers = np.full(s.batch.size // WARPGROUP_THREADS, entry)
            own.pool = own.registers[: threads // WARPGROUP_THREADS].sum()
        return own.registers

    def ready(self, s: DivergentPath) -> Any:
        """For every thread whether there are registers enough."""
        batch, given = s.batch, self._given(s)
        mine = np.unique(batch.threads(s.mask) // WARPGROUP_THREADS)
        each = batch.geometry.lanes // WARPGROUP_THREADS
        wanted = given.copy()
        wanted[mine] = self.count
        fits = wanted.reshape(-1, each).sum(axis=1) <= units_of(batch).pool
        return np.repeat(fits, batch.geometry.lanes)

    def passed(self, s: DivergentPath, firsts: Any) -> None:
        """Have them."""
        self._given(s)[firsts // WARPGROUP_THREADS] = self.count

    def told(self, s: DivergentPath, lane: int) -> str:
        """What a thread waits for."""
        given = self._given(s)
        each = s.batch.geometry.lanes // WARPGROUP_THREADS
        block = lane // s.batch.geometry.lanes
        held = given[block * each : (block + 1) * each]
        return (
            f"{self.count} registers a thread; the warpgroups of the block have "
            f"{', '.join(map(str, held))}, and {units_of(s.batch).pool} together"
        )
