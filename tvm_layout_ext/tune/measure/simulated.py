"""The modelling runner: counters of the simulated GPU, ranked by a stated cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tvm

from ...gpu.hardware import SECTOR_BYTES
from ...simulate import simulate
from ...simulate.report import Report
from ...target import cuda_target
from ..model.cost import Counters, modelled_terms
from ..model.features import kernels_of, traffic
from ..model.latency import chain
from ..space.knobs import Config
from ..space.operator import Shape
from ..space.task import Task
from ..space.workload import Workload
from . import environment
from .measurement import Measurement
from .reference.problem import expected
from .verify import WrongResultError, require_close

__all__ = ["SimulatedRunner", "count", "counted_inputs", "verify"]

#: Blocks that are run for a candidate's counters; all but the edge blocks of a grid do the same.
GRID_SAMPLE = 8
#: Longer parallel dimensions are cut for counting, to a multiple of every tile and the same
#: remainder: blocks further out do the same, and arrays of gigabytes take seconds to set up.
COUNTED_EXTENT = 2048
#: A winner is verified on the whole shape up to this much work, else on a shape cut down to a
#: multiple of every tile: 2**25 take about 20 seconds.
VERIFIED_WORK = 1 << 25
_SUB_LIMITS = (1024, 512, 256, 128)
_FRESH = 1


class SimulatedRunner:
    """Runs a sample of each candidate's blocks on the simulated GPU, which needs no GPU."""

    name = "simulate"
    device = environment.SIMULATED_DEVICE

    def run(self, task: Task, config: Config) -> Measurement:
        """Count a candidate's memory accesses."""
        shared, model = count(task, config)
        return Measurement(shared, model)

    def verify(self, task: Task, config: Config) -> str:
        """Run every block on fresh inputs and compare the output with NumPy's."""
        return verify(task, config)


def count(task: Task, config: Config) -> tuple[int, dict[str, Any]]:
    """Shared bytes of a block; the whole grid's counters and the modelled cost made of them.

    Raises
    ------
    TargetError
        If the GPU cannot hold a kernel.
    """
    shape = task.sub_shape(COUNTED_EXTENT, task.operator.parallel)
    arrays = counted_inputs(task, shape)
    target = cuda_target(task.architecture.name)
    scheduled = task.module(config, shape)
    report = simulate(scheduled, *arrays, target=target, grid_sample=GRID_SAMPLE, progress=False)
    module = task.module(config)
    counters = replace(scale_up(report, grids(module)), **closed_form(task, module))
    cost = modelled_terms(counters, task.operator.flops(task.shape)).cost
    return report.shared_bytes, counters.to_json() | {"cost": round(cost, 1)}


def counted_inputs(task: Task, shape: Shape) -> list[np.ndarray]:
    """Arrays of zeros to count a kernel with: no operator's addresses depend on values."""
    arguments = task.operator.compute(shape, task.dtype)[:-1]
    return [np.zeros([int(n) for n in one.shape], str(one.dtype)) for one in arguments]


def verify(task: Task, config: Config) -> str:
    """Compare a simulated output with NumPy's; return the workload on which it was done.

    Races, reads of unwritten memory and elements that nobody wrote are failures too.
    """
    shape = verified_shape(task)
    inputs = task.draw(_FRESH, shape)
    want = expected(task, inputs, shape)
    target = cuda_target(task.architecture.name)
    report = simulate(task.module(config, shape), *inputs, target=target)
    if report.hazards:
        raise WrongResultError(f"The simulated GPU saw a hazard: {report.hazards[0]}.")
    (output,) = report.outputs.values()
    tolerance = task.operator.tolerance(shape, task.dtype)
    require_close(want.known(output), want.known(want.values), tolerance)
    return str(Workload(task.operator.name, shape, task.dtype))


def verified_shape(task: Task) -> Shape:
    """The task's shape if simulating all of it is affordable, else a smaller one as ragged."""
    candidates = [task.shape, *(task.sub_shape(limit) for limit in _SUB_LIMITS)]
    return next((s for s in candidates if _work(task, s) <= VERIFIED_WORK), candidates[-1])


def _work(task: Task, shape: Shape) -> int:
    """Multiply-adds, plus 16 for each element that moves: about what simulating them costs."""
    elements = task.operator.traffic(shape, task.dtype) // np.dtype(task.dtype).itemsize
    return task.operator.flops(shape) // 2 + 16 * elements


def grids(module: tvm.IRModule) -> list[int]:
    """Thread blocks of each kernel that a scheduled module launches, in their order."""
    return [kernel.grid for kernel in kernels_of(module)]


def closed_form(task: Task, module: tvm.IRModule) -> dict[str, int]:
    """What :class:`Counters` has of a kernel beside counts; of the kernel that moves the most."""
    kernels = kernels_of(module)
    if not kernels:
        return {}
    heaviest = max(kernels, key=lambda kernel: kernel.grid * traffic(kernel))
    return {
        "blocks": heaviest.grid,
        "torn": round(sum(kernel.grid * kernel.torn for kernel in kernels)),
        "memory": task.operator.traffic(task.shape, task.dtype) // SECTOR_BYTES,
        "resident": heaviest.blocks_per_sm(task.architecture),
        "steps": heaviest.steps,
        "products": sum(kernel.grid * kernel.product_flops for kernel in kernels),
        "chain": round(chain(heaviest)),
        "halves": round(sum(kernel.grid * kernel.half_flops for kernel in kernels)),
    }


def scale_up(report: Report, blocks: Sequence[int]) -> Counters:
    """Counters of whole grids from those of the blocks that were run.

    Parameters
    ----------
    report : Report
        Of a sample of each kernel's blocks.
    blocks : sequence of int
        Of each kernel's grid, in the order of the launches; the sum is the counters' ``blocks``.
    """
    kernels = list(dict.fromkeys(launch.kernel for launch in report.launches))
    ran = {name: [one for one in report.launches if one.kernel == name] for name in kernels}
    if len(blocks) != len(kernels):
        # Such as one that only the host's loop, or nothing that is scheduled, shows.
        blocks = [sum(one.blocks for one in ran[name]) for name in kernels]
    scale = {
        name: whole / max(1, sum(one.sampled for one in ran[name]))
        for name, whole in zip(kernels, blocks, strict=True)
    }
    world = [site for site in report.accesses if site.scope == "global"]
    shared = [site for site in report.accesses if site.scope.startswith("shared")]

    def total(group: list[Any], name: str) -> int:
        return round(sum(getattr(site, name) * scale.get(site.kernel, 0) for site in group))

    return Counters(
        blocks=sum(blocks),
        sampled=report.blocks[0],
        requests=total(world, "requests"),
        sectors=total(world, "sectors"),
        ideal_sectors=total(world, "ideal_sectors"),
        wavefronts=total(shared, "wavefronts"),
        bank_conflicts=total(shared, "bank_conflicts"),
        barriers=round(sum(one.barriers * scale[one.kernel] for one in report.launches)),
    )
