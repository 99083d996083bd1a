"""What tests of ready schedules share: a configuration simulated, its bytes, its registers."""

from __future__ import annotations

from typing import Any

import tvm_layout_ext as tlx
from tvm_layout_ext.build import shared_buffers
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.simulate.report import Report
from tvm_layout_ext.tune.measure.reference.problem import poison, require_close
from tvm_layout_ext.tune.space.knobs import Config
from tvm_layout_ext.tune.space.task import Task

H200 = tlx.cuda_target("sm_90a")


def run(task: Task, config: Config, stream: int = 0) -> Report:
    """Simulate a configuration, and compare its result with NumPy's."""
    inputs = task.draw(stream)
    want = task.operator.reference(*inputs)
    dtype = str(task.operator.compute(task.shape, task.dtype)[-1].dtype)
    report = simulate(task.module(config), *inputs, poison(want.shape, dtype))
    (output,) = report.outputs.values()
    require_close(output, want, task.operator.tolerance(task.shape, task.dtype))
    return report


def kernel_bytes(module: Any) -> list[int]:
    """Bytes of shared memory of each kernel."""
    kernels = tlx.device_program(module, target=H200).kernels.values()
    return [sum(shared_buffers(kernel).values()) for kernel in kernels]
