"""Numbers about a candidate by which a learnt cost model can rank it, none of them measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import ceil, log2
from typing import Any

import tvm

from ... import decisions
from ...analysis.access_cost import Use
from ...analysis.kernel_facts import KernelFacts, read_kernels
from ...gpu.hardware import MULTIPROCESSORS, SECTOR_BYTES, WARP_SIZE
from ...transform.mapped_kernels import mapped_kernels
from ..space.knobs import Config, Knob
from ..space.task import Task

#: Knobs whose raw values are features; no schedule has more.
KNOBS = 12


@lru_cache(maxsize=1)
def kernels_of(module: tvm.IRModule) -> list[KernelFacts]:
    """Facts of each kernel of a scheduled module; features and latency ask for them in turn."""
    with decisions.collect():
        module = mapped_kernels(module)
    functions = [func for _, func in module.functions_items() if hasattr(func, "body")]
    return [kernel for func in functions for kernel in read_kernels(func)]


def features(task: Task, config: Config, module: tvm.IRModule) -> dict[str, float]:
    """Features of a candidate in closed form; 0 if no loop is bound to blocks or threads."""
    values = dict.fromkeys(FEATURES, 0.0)
    kernels = kernels_of(module)
    if kernels:
        seen = _Seen(max(kernels, key=lambda kernel: kernel.grid * traffic(kernel)), task)
        values |= {name: feature(seen) for name, feature in _OF_KERNEL.items()}
    for index, knob in enumerate(task.operator.knobs[:KNOBS]):
        values[f"knob_{index}"] = _raw(knob, knob.of(config))
    return values


def _raw(knob: Knob, value: Any) -> float:
    """Log2 of 1 + a number; of a word, its place."""
    if isinstance(value, int) and value >= 0:
        return log2(1 + value)
    return float(knob.values.index(value))


def traffic(kernel: KernelFacts) -> float:
    """Bytes that a block moves between the L2 cache and its multiprocessor."""
    return sum(use.total for use in kernel.uses if use.site.scope == "global") * SECTOR_BYTES


class _Seen:
    """A kernel on a GPU, and what several features ask of it."""

    def __init__(self, kernel: KernelFacts, task: Task) -> None:
        self.kernel, self.gpu = kernel, task.architecture
        self.resident = kernel.blocks_per_sm(self.gpu)
        self.waves = kernel.grid / (MULTIPROCESSORS * self.resident)
        self.world = [use for use in kernel.uses if use.site.scope == "global"]
        self.shared = [use for use in kernel.uses if use.site.scope != "global"]
        self.flops = task.operator.flops(task.shape) / max(kernel.grid, 1)
        self.moved = traffic(kernel)

    def of_shared(self, kind: str) -> list[Use]:
        return [use for use in self.shared if use.site.kind == kind]

    @property
    def intensity(self) -> float:
        """Arithmetic operations a byte that leaves the L2 cache."""
        return max(self.flops / self.moved, 2.0**-10) if self.moved else 1.0


def _mean(uses: Sequence[Use], kind: str, what: Any = lambda use: use.cost) -> float:
    chosen = [use for use in uses if use.site.kind == kind]
    requests = sum(use.requests for use in chosen)
    return sum(use.requests * what(use) for use in chosen) / requests if requests else 0.0


def _excess(uses: Sequence[Use]) -> float:
    """Cost over the least possible; 1 without any use."""
    least = sum(use.requests * use.least for use in uses)
    return sum(use.total for use in uses) / least if least else 1.0


#: What is told of the kernel of a module that moves the most.
_OF_KERNEL: dict[str, Callable[[_Seen], float]] = {
    "grid": lambda s: log2(max(s.kernel.grid, 1)),
    "threads": lambda s: log2(s.kernel.threads),
    # Blocks over what all multiprocessors hold at a time, and how full the last wave is.
    "waves": lambda s: s.waves,
    "wave_use": lambda s: s.waves / ceil(s.waves),
    "occupancy": lambda s: s.resident * s.kernel.warps * WARP_SIZE / s.gpu.threads_per_sm,
    "blocks_per_sm": lambda s: s.resident,
    "registers": lambda s: s.kernel.registers,
    "spilled": lambda s: s.kernel.spilled(s.gpu),
    "shared_bytes": lambda s: log2(1 + s.kernel.shared_bytes),
    "stages": lambda s: s.kernel.stages,
    "stage_bytes": lambda s: log2(1 + s.kernel.stage_bytes),
    "steps": lambda s: log2(max(s.kernel.steps, 1)),
    # Bytes that a multiprocessor has on their way.
    "in_flight": lambda s: log2(1 + s.kernel.in_flight * s.kernel.threads * s.resident),
    # Sectors a request, and over the least for the same bytes.
    "sectors_load": lambda s: _mean(s.world, "load"),
    "sectors_store": lambda s: _mean(s.world, "store"),
    "sector_excess": lambda s: _excess(s.world),
    # Wavefronts over the least: 1 is free of bank conflicts.
    "conflict_load": lambda s: _excess(s.of_shared("load")),
    "conflict_store": lambda s: _excess(s.of_shared("store")),
    "wavefronts": lambda s: log2(1 + sum(use.total for use in s.shared)),
    "requests": lambda s: log2(1 + sum(use.requests for use in s.kernel.uses)),
    # Bytes a thread and global request.
    "vector_bytes": lambda s: _mean(s.world, "load", lambda use: use.site.vector * use.site.size),
    "intensity": lambda s: log2(s.intensity),
    "work": lambda s: log2(1 + s.flops / s.kernel.threads),
    # Tensor-core instructions of a warp.
    "products": lambda s: log2(1 + s.kernel.products / s.kernel.warps),
    "traffic": lambda s: log2(1 + s.moved * s.kernel.grid),
}
#: What :func:`features` gives, in order.
FEATURES = (*_OF_KERNEL, *(f"knob_{index}" for index in range(KNOBS)))
