"""What tests of ready schedules share: a configuration simulated, its bytes, its registers."""

from __future__ import annotations

import subprocess
from pathlib import Path
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


def cuda_of(module: Any) -> str:
    """CUDA source."""
    return str(tlx.build(module, target=H200).mod.imports[0].inspect_source())


def require_no_spills(source: str, folder: Path) -> None:
    """Let nvcc say that neither a stack nor a spilled register goes to local memory."""
    (folder / "kernel.cu").write_text(source)
    command = ["nvcc", "-arch=sm_90a", "-cubin", "--keep", "-Xptxas", "-v", "-o", "k.cubin"]
    ran = subprocess.run(
        [*command, "kernel.cu"], cwd=folder, capture_output=True, text=True, check=True
    )
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in ran.stderr
