"""The measuring runner: TVM's CUDA backend and TVM's time_evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm

from ..build import build, device_program, shared_buffers
from ..errors import NotModelled
from ..target import cuda_target
from . import environment
from .knobs import Config
from .measurement import Measurement
from .ptxas import registers
from .simulated import count
from .task import Task
from .verify import poison, require_close

__all__ = ["CudaRunner"]

REPEATS = 7
#: Each repeat runs the kernel often enough to last this long.
REPEAT_MS = 20
_RUN, _WINNER = 0, 1


class CudaRunner:
    """Builds each candidate, checks its output against NumPy's, and times it.

    Inputs are drawn once a run, and again for the winner; the output is filled with poison before
    each check, so that no earlier candidate's result can pass for a later one's. The caches are
    warm: L2 is not flushed between repeats.
    """

    name = "cuda"

    def __init__(self) -> None:
        self.device = environment.cuda_device()
        self._gpu = tvm.cuda(0)
        self._inputs: dict[tuple[Any, int], tuple[list[Any], np.ndarray]] = {}

    def run(self, task: Task, config: Config) -> Measurement:
        """Build, verify, time, and count what the simulated GPU would."""
        module = task.module(config)
        kernel = build(module, target=cuda_target(task.architecture.name))
        arguments = self._check(task, kernel, _RUN)
        timer = kernel.mod.time_evaluator(
            "main", self._gpu, number=1, repeat=REPEATS, min_repeat_ms=REPEAT_MS
        )
        times = tuple(float(seconds) for seconds in timer(*arguments).results)
        shared, model = self._model(task, config)
        source = kernel.mod.imports[0].inspect_source()
        used = registers(source, task.architecture.name)
        return Measurement(shared, model, times, str(task.workload), used)

    def verify(self, task: Task, config: Config) -> str:
        """Check a candidate's output on inputs that no trial has seen."""
        kernel = build(task.module(config), target=cuda_target(task.architecture.name))
        self._check(task, kernel, _WINNER)
        return str(task.workload)

    def _check(self, task: Task, kernel: Any, stream: int) -> list[Any]:
        inputs, want = self._drawn(task, stream)
        output = tvm.runtime.tensor(poison(want.shape, task.dtype), self._gpu)
        arguments = [*inputs, output]
        # This first call is also the warm-up: it loads the module.
        kernel["main"](*arguments)
        self._gpu.sync()
        require_close(output.numpy(), want, task.operator.tolerance(task.shape, task.dtype))
        return arguments

    def _drawn(self, task: Task, stream: int) -> tuple[list[Any], np.ndarray]:
        key = (task.workload, stream)
        if key not in self._inputs:
            arrays = task.draw(stream)
            want = task.operator.reference(*arrays)
            self._inputs[key] = ([tvm.runtime.tensor(a, self._gpu) for a in arrays], want)
        return self._inputs[key]

    @staticmethod
    def _model(task: Task, config: Config) -> tuple[int, dict[str, Any] | None]:
        try:
            return count(task, config)
        except NotModelled:
            program = device_program(
                task.module(config), target=cuda_target(task.architecture.name)
            )
            sizes = [sum(shared_buffers(kernel).values()) for kernel in program.kernels.values()]
            return max(sizes), None
