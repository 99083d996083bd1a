"""Numbers about a candidate by which a learnt cost model can rank it, none of them measured."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2
from typing import Any

import tvm

from ... import decisions
from ...analysis.access_cost import Use
from ...analysis.kernel_facts import KernelFacts, read_kernels
from ...gpu.hardware import MULTIPROCESSORS, SECTOR_BYTES, WARP_SIZE
from ...transform import AutoCoalesce
from ..space.knobs import Config, Knob
from ..space.task import Task

#: Knobs whose raw values are features; no schedule has more.
KNOBS = 12

#: What :func:`features` gives, in order. Counts are of the hungriest kernel of a module.
FEATURES: tuple[str, ...] = (
    "grid",  # log2 of blocks
    "threads",  # log2 of threads a block
    "waves",  # blocks over what all multiprocessors hold at a time
    "wave_use",  # share of the last, partial wave that is filled, over all waves
    "occupancy",  # resident warps over the most possible
    "blocks_per_sm",
    "registers",  # estimate, a thread
    "spilled",  # of them, those for which there is no room
    "shared_bytes",  # log2 of 1 + bytes, a block
    "stages",
    "stage_bytes",  # log2 of 1 + bytes of one version of all tiles that are copied ahead
    "steps",  # log2 of iterations of the loop that streams from memory
    "in_flight",  # log2 of 1 + bytes that a multiprocessor has on their way
    "sectors_load",  # sectors a request
    "sectors_store",
    "sector_excess",  # sectors over the least for the same bytes
    "conflict_load",  # wavefronts over the least: 1 is free of bank conflicts
    "conflict_store",
    "wavefronts",  # log2 of 1 + shared wavefronts of a block
    "requests",  # log2 of 1 + requests of a block, global and shared
    "vector_bytes",  # bytes a thread and global request
    "intensity",  # log2 of arithmetic operations a byte that leaves the L2 cache
    "work",  # log2 of 1 + arithmetic operations of a thread
    "products",  # log2 of 1 + tensor-core instructions of a warp
    "traffic",  # log2 of 1 + bytes between the L2 cache and all multiprocessors
    *(f"knob_{index}" for index in range(KNOBS)),
)


#: The last module that was asked about, with its kernels: features and latency ask in turn.
_last: list[tuple[tvm.IRModule, list[KernelFacts]]] = []


def kernels_of(module: tvm.IRModule) -> list[KernelFacts]:
    """Facts of each kernel of a scheduled module."""
    if not (_last and _last[0][0].same_as(module)):
        _last[:] = [(module, _read(module))]
    return _last[0][1]


def _read(module: tvm.IRModule) -> list[KernelFacts]:
    with decisions.collect():
        # Blocks that are only marked have no threads yet.
        module = AutoCoalesce()(module)
    functions = [func for _, func in module.functions_items() if hasattr(func, "body")]
    return [kernel for func in functions for kernel in read_kernels(func)]


def features(task: Task, config: Config, module: tvm.IRModule) -> dict[str, float]:
    """Work out the features of a candidate, before any lowering, in closed form.

    All but the knobs are 0 if no loop is bound to blocks or threads.
    """
    values = dict.fromkeys(FEATURES, 0.0)
    kernels = kernels_of(module)
    if kernels:
        heaviest = max(kernels, key=lambda kernel: kernel.grid * traffic(kernel))
        values |= _of_kernel(heaviest, task)
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


def _of_kernel(kernel: KernelFacts, task: Task) -> dict[str, float]:
    resident = kernel.blocks_per_sm(task.architecture)
    waves = kernel.grid / (MULTIPROCESSORS * resident)
    world = [use for use in kernel.uses if use.site.scope == "global"]
    shared = [use for use in kernel.uses if use.site.scope != "global"]
    flops = task.operator.flops(task.shape) / max(kernel.grid, 1)
    moved = traffic(kernel)
    return {
        "grid": log2(max(kernel.grid, 1)),
        "threads": log2(kernel.threads),
        "waves": waves,
        "wave_use": waves / ceil(waves),
        "occupancy": resident * kernel.warps * WARP_SIZE / task.architecture.threads_per_sm,
        "blocks_per_sm": resident,
        "registers": kernel.registers,
        "spilled": kernel.spilled(task.architecture),
        "shared_bytes": log2(1 + kernel.shared_bytes),
        "stages": kernel.stages,
        "stage_bytes": log2(1 + kernel.stage_bytes),
        "steps": log2(max(kernel.steps, 1)),
        "in_flight": log2(1 + kernel.in_flight * kernel.threads * resident),
        "sectors_load": _mean(world, "load"),
        "sectors_store": _mean(world, "store"),
        "sector_excess": _excess(world),
        "conflict_load": _excess([use for use in shared if use.site.kind == "load"]),
        "conflict_store": _excess([use for use in shared if use.site.kind == "store"]),
        "wavefronts": log2(1 + sum(use.total for use in shared)),
        "requests": log2(1 + sum(use.requests for use in kernel.uses)),
        "vector_bytes": _mean(world, "load", lambda use: use.site.vector * use.site.size),
        "intensity": log2(max(flops / moved, 2.0**-10)) if moved else 0.0,
        "work": log2(1 + flops / kernel.threads),
        "products": log2(1 + kernel.products / kernel.warps),
        "traffic": log2(1 + moved * kernel.grid),
    }


def _mean(uses: Sequence[Use], kind: str, what: Any = lambda use: use.cost) -> float:
    """Mean over requests of one kind."""
    chosen = [use for use in uses if use.site.kind == kind]
    requests = sum(use.requests for use in chosen)
    return sum(use.requests * what(use) for use in chosen) / requests if requests else 0.0


def _excess(uses: Sequence[Use]) -> float:
    """Cost over the least possible; 1 without any use."""
    least = sum(use.requests * use.least for use in uses)
    return sum(use.total for use in uses) / least if least else 1.0
