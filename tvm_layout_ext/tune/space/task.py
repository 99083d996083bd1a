"""One workload on one GPU: what a runner is given to try configurations of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import tvm
from tvm import s_tir
from tvm.target import Target

from ...errors import ScheduleError, TargetError
from ...gpu import hardware
from ...gpu.hardware import Architecture
from ...target import resolve
from .knobs import Config
from .operator import MOST_ELEMENTS, Operator, Shape, Workload, find_operator
from .space import Space


@dataclass(frozen=True)
class Task:
    """An operator at one shape and element type, for one architecture, with the seed of it all."""

    operator: Operator
    shape: Shape
    dtype: str
    architecture: Architecture
    seed: int

    @property
    def workload(self) -> Workload:
        """What records of this task are about."""
        return Workload(self.operator.name, self.shape, self.dtype)

    @cached_property
    def space(self) -> Space:
        """Its legal configurations."""
        return Space(self.operator, self.shape, self.dtype, self.architecture)

    def module(self, config: Config, shape: Shape | None = None) -> tvm.IRModule:
        """Schedule the operator with a configuration, at this shape or another."""
        return self.schedule(config, shape).mod

    def schedule(self, config: Config, shape: Shape | None = None) -> s_tir.Schedule:
        """Schedule the operator with a configuration, keeping the trace."""
        tensors = self.operator.compute(shape or self.shape, self.dtype)
        scheduled = self.operator.schedule(tensors, config)
        if isinstance(scheduled, s_tir.Schedule):
            return scheduled
        return scheduled.to_schedule(tensors)

    @cached_property
    def unscheduled(self) -> tvm.IRModule:
        """The computation before any schedule: what traces of its candidates start from."""
        return self.operator.unscheduled(self.shape, self.dtype)

    def draw(self, stream: int, shape: Shape | None = None) -> list[np.ndarray]:
        """Random inputs; another ``stream`` gives other values from the same seed."""
        rng = np.random.default_rng([self.seed, stream])
        return self.operator.inputs(shape or self.shape, self.dtype, rng)

    def sub_shape(self, limit: int, dims: Sequence[str] | None = None) -> Shape:
        """A shape no larger in any dimension than twice ``limit`` that keeps tiles as ragged."""
        cut = self.operator.dims if dims is None else dims
        return tuple(
            limit + extent % limit if extent > limit and dim in cut else extent
            for dim, extent in zip(self.operator.dims, self.shape, strict=True)
        )


def make_task(
    operator: str | Operator,
    shape: Sequence[int] = (),
    dtype: str | None = None,
    seed: int = 0,
    target: str | Target | None = None,
) -> Task:
    """Check an operator, shape and element type, and put them together."""
    found = operator if isinstance(operator, Operator) else find_operator(operator)
    gpu = resolve(target)
    if gpu.kind.name != "cuda":
        raise TargetError(f"The tuner makes CUDA kernels; target {gpu.kind.name} is none.")
    architecture = hardware.architecture(str(gpu.attrs["arch"]))
    usual = "float32" if "float32" in found.dtypes else found.dtypes[0]
    element = found.check_dtype(usual if dtype is None else dtype)
    task = Task(found, found.check_shape(shape), element, architecture, seed)
    tensors = found.compute(task.shape, element)
    largest = max(math.prod(map(int, tensor.shape)) for tensor in tensors)
    if largest > MOST_ELEMENTS:
        raise ScheduleError(
            f"{task.workload} has an array of {largest:,} elements, and the ready schedules index "
            f"with 32 bits: at most {MOST_ELEMENTS:,} are legal."
        )
    return task
