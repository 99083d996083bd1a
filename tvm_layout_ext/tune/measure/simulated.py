"""The modelling runner: counters of the simulated GPU, ranked by a stated cost."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...simulation import simulate
from ...target import cuda_target
from ..model.costs import costs
from ..model.features import kernels_of
from ..space.knobs import Config
from ..space.operator import Shape, Workload
from ..space.task import Task
from . import environment
from .backend import Measurement
from .reference.problem import WrongResultError, expected, require_close

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
        """Run every block on fresh inputs and compare; races and unwritten elements fail, too."""
        shape = verified_shape(task, config)
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


def count(task: Task, config: Config) -> tuple[int, dict[str, Any]]:
    """Shared bytes of a block; the whole grid's counters and the modelled cost made of them."""
    found = costs(task, config)
    return found.report.shared_bytes, found.model


def verified_shape(task: Task, config: Config) -> Shape:
    """The task's shape if simulating all of it is affordable, else a smaller one as ragged."""
    candidates = [task.shape, *(task.sub_shape(limit) for limit in _SUB_LIMITS)]
    return next((s for s in candidates if _work(task, config, s) <= VERIFIED_WORK), candidates[-1])


def _work(task: Task, config: Config, shape: Shape) -> int:
    """Multiply-adds, plus 16 for each element that moves, and for each access of a thread.

    This is about what simulating them costs.
    """
    elements = task.operator.traffic(shape, task.dtype) // np.dtype(task.dtype).itemsize
    work = task.operator.flops(shape) // 2 + 16 * elements
    if work > VERIFIED_WORK:
        return work
    turns = max((one.turns for one in kernels_of(task.module(config, shape))), default=0)
    return work + 16 * turns
