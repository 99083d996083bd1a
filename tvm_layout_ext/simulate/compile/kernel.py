"""A compiled device function, and its launch: batches of blocks, one after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..findings import Findings
from ..machine.machine import Machine, MachineStep
from ..memory.access import AccessInstruction
from ..memory.memory import Locals, Memory
from ..model.code import LAUNCH, Code
from ..model.places import Places, Storage, handle
from ..model.values import numpy_type
from ..model.warp_batch import Geometry, WarpBatch
from ..overlap import Early, find_early
from ..races import Clocks
from ..sites import Blocks, Script
from .statements import StatementCompiler

#: Lanes of a batch: enough to hide Python's cost, few enough to stay in cache.
_BATCH_LANES = 1 << 15
#: Bytes of shared and local memory of a batch, which bounds it for kernels that use much.
_BATCH_BYTES = 1 << 25


@dataclass
class CompiledKernel:
    """A compiled device function.

    ``scalars`` are the values of its scalar parameters by position, None for pointers. ``time`` is
    the first that no launch has used: the clocks of warps go on from launch to launch.
    """

    name: str
    places: Places
    program: list[MachineStep]
    accesses: list[AccessInstruction]
    scalars: list[Any]
    slots: int
    caches: int
    early: Early
    unit_sites: set[Any] = field(default_factory=set)
    time: int = 1

    def reset(self) -> None:
        """Forget what was run."""
        self.time = 1
        self.scalars[:] = [None] * len(self.scalars)
        for access in self.accesses:
            access.reset()

    @property
    def shared(self) -> list[Storage]:
        """Shared allocations."""
        return [s for s in self.places.storages if s.scope.startswith("shared")]

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return sum(storage.bytes for storage in self.shared)

    def block_bytes(self, lanes: int) -> int:
        """Memory that a block of the simulation needs."""
        local = sum(s.bytes * lanes for s in self.places.storages if s.scope == "local")
        return local + sum(s.span * (1 + 16 // s.granule) for s in self.shared)


def _reader(scalars: list[Any], position: int, dtype: Any) -> Callable[[Any, Any], Any]:
    return lambda s, m: dtype.type(scalars[position])


def compile_kernel(
    name: str, function: Any, findings: Findings, script: Script, blocks: Blocks
) -> CompiledKernel:
    """Compile a device function."""
    scalars: list[Any] = [None] * len(function.params)
    compiler = StatementCompiler(function, findings, script, blocks)
    for position, param in enumerate(function.params):
        if handle(param) not in compiler.places.by_pointer:
            reader = _reader(scalars, position, numpy_type(param)[0])
            compiler.scope[handle(param)] = Code(reader, LAUNCH)
    program = compiler.compile(function)
    return CompiledKernel(
        name,
        compiler.places,
        program,
        compiler.accesses,
        scalars,
        compiler.slots,
        compiler.caches,
        find_early(function, compiler.places),
        compiler.unit_sites,
    )


@dataclass
class KernelRun:
    """One launch of a kernel."""

    kernel: CompiledKernel
    geometry: Geometry
    memories: list[Memory]
    findings: Findings
    barriers: int = 0

    def run(self, blocks: Any, progress: Callable[[int], None]) -> None:
        """Run blocks, given by number; ``progress`` is told how many more are done."""
        self._begin()
        size = self._batch_blocks()
        shared: dict[int, Memory] = {}
        with np.errstate(all="ignore"):
            for start in range(0, len(blocks), size):
                part = blocks[start : start + size]
                self._run_batch(part, shared)
                progress(len(part))

    def _begin(self) -> None:
        for storage, memory in zip(self.kernel.places.storages, self.memories, strict=False):
            memory.refine(storage.granule)
            if memory.shadow is not None:
                memory.shadow.clear()
            elif storage.written:
                memory.track()

    def _batch_blocks(self) -> int:
        lanes = self.geometry.lanes
        by_memory = _BATCH_BYTES // max(self.kernel.block_bytes(lanes), 1)
        cluster = self.geometry.cluster
        return max(1, min(_BATCH_LANES // lanes, by_memory) // cluster) * cluster

    def _run_batch(self, blocks: Any, shared: dict[int, Memory]) -> None:
        kernel, geometry = self.kernel, self.geometry
        clocks = Clocks(kernel.time, len(blocks), geometry.warps, geometry.cluster)
        memories = self._batch_memories(len(blocks), shared)
        batch = WarpBatch(self, geometry, blocks, memories, clocks, kernel.caches)
        machine = Machine(batch, kernel.program, kernel.slots)
        machine.run()
        if batch.units is not None:
            batch.units.finish()
        self.barriers += machine.barriers
        kernel.time = clocks.now + 1

    def _batch_memories(self, blocks: int, shared: dict[int, Memory]) -> list[Any]:
        found: list[Any] = list(self.memories)
        threads = blocks * self.geometry.lanes
        for storage in self.kernel.places.storages[len(found) :]:
            if storage.scope == "local":
                found.append(Locals(storage.name, storage.length, storage.dtype, threads))
            else:
                found.append(_shared_memory(storage, blocks, shared))
        return found


def _shared_memory(storage: Storage, blocks: int, shared: dict[int, Memory]) -> Memory:
    """Shared memory of a batch; that of the last one is used again if it fits."""
    size = storage.span * blocks
    known = shared.get(storage.number)
    if known is not None and len(known.data) == size:
        known.reset()
        return known
    scope = storage.scope
    made = Memory.unwritten(storage.name, size, storage.granule, scope, storage.bytes)
    made.track()
    shared[storage.number] = made
    return made
