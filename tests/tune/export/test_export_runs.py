"""Exported kernels run: from C on a CPU that plays the GPU, and from Python on a GPU's tensors.

On the CPU everything of the export is compiled as it is, kernels included, against a header in
place of CUDA's whose launch calls the kernel once for each thread.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from tests.schedules.test_generic import softmax
from tests.tune.export.test_export import default_module, load
from tests.tune.helpers import transpose_schedule
from tvm_layout_ext import build, cuda_target, export, te
from tvm_layout_ext.tune.export.launches import host_plan
from tvm_layout_ext.tune.export.text import cuda_text, header_text, loader_text

TARGET = cuda_target("sm_90a")
ROWS, COLUMNS = 40, 30
_CUDA_H = """
#pragma once
#include <cstddef>
#define __global__
#define __launch_bounds__(...)
#define CUDART_VERSION 11000
struct dim3 { unsigned x, y, z; dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1)
    : x(x), y(y), z(z) {} };
static dim3 blockIdx, threadIdx;
struct alignas(16) float4 { float x, y, z, w; };
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
enum cudaError_t { cudaSuccess, cudaErrorInvalidValue };
enum { cudaFuncAttributeMaxDynamicSharedMemorySize };
typedef void *cudaStream_t;
static const char *cudaGetErrorString(cudaError_t code) { return code ? "invalid" : "no error"; }
static cudaError_t cudaFuncSetAttribute(const void *, int, int) { return cudaSuccess; }
static cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments,
                                    size_t, cudaStream_t) {
  void (*call)(void *, void *, void *) = (void (*)(void *, void *, void *))kernel;
  for (unsigned b = 0; b < grid.x; ++b)
    for (unsigned t = 0; t < block.x; ++t) {
      blockIdx.x = b;
      threadIdx.x = t;
      call(*(void **)arguments[0], *(void **)arguments[1], *(void **)arguments[2]);
    }
  return cudaSuccess;
}
"""
_PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include "blend.h"
int main(void) {
  const int count = 1200;
  float *a = aligned_alloc(16, 4 * count), *b = aligned_alloc(16, 4 * count);
  float *c = aligned_alloc(16, 4 * count);
  for (int i = 0; i < count; ++i) { a[i] = (float)(3 * i); b[i] = (float)(i % 7); c[i] = -1; }
  if (blend(a, b, NULL, NULL) != 1) return 2;
  int code = blend(a, b, c, NULL);
  if (code) { puts(blend_error(code)); return 3; }
  for (int i = 0; i < count; ++i)
    if (c[i] != 3 * i - 2 * (i % 7)) { printf("[%d] is %f\\n", i, c[i]); return 4; }
  puts("right");
  return 0;
}
"""


def blend() -> Any:
    """``A - 2 * B``, which tells its arguments apart; 1200 elements leave a block half empty."""
    a, b = (te.placeholder((ROWS, COLUMNS), "float32", name=name) for name in "AB")
    c = te.compute((ROWS, COLUMNS), lambda i, j: a[i, j] - 2 * b[i, j], name="C")
    s = te.create_schedule(c.op)
    s[c].auto_coalesce()
    return s.to_module([a, b, c], "main")


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++ on the path")
def test_c_program_calls_the_exported_function_and_gets_the_right_result(tmp_path: Path) -> None:
    module = blend()
    plan = host_plan(module, TARGET)
    (launch,) = plan.launches
    assert launch.grid[0] * launch.block[0] * 4 > ROWS * COLUMNS
    kernels = build(module, target=TARGET).mod.imports[0].inspect_source()
    (tmp_path / "cuda.h").write_text(_CUDA_H)
    (tmp_path / "cuda_runtime.h").write_text('#include "cuda.h"\n')
    (tmp_path / "blend.cu").write_text(cuda_text("blend", plan, kernels))
    (tmp_path / "blend.h").write_text(header_text("blend", plan, "sm_90a", "0.1.0", "A test."))
    (tmp_path / "program.c").write_text(_PROGRAM)
    for command in (
        ["g++", "-O1", "-shared", "-fPIC", "-I.", "-xc++", "blend.cu", "-o", "libblend.so"],
        ["cc", "-Wall", "-Werror", "program.c", "-L.", "-lblend", "-Wl,-rpath,.", "-o", "program"],
    ):
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
    ran = subprocess.run(
        ["./program"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert (ran.returncode, ran.stdout) == (0, "right\n")
    # The Python loader of the same library reads TVM's tensors, and takes none of a CPU.
    (tmp_path / "blend.py").write_text(loader_text("blend", plan))
    told = subprocess.run(
        [sys.executable, "-c", "import blend; print(blend.__file__)"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout.strip().endswith("blend.py")
    loader = load(tmp_path / "blend.py")
    tensor = tvm.runtime.tensor(np.zeros((ROWS, COLUMNS), np.float32))
    assert loader.describe(tensor)[1:4] == (1, "float32", (ROWS, COLUMNS))
    with pytest.raises(ValueError, match="A must be on a CUDA device"):
        loader.blend(tensor, tensor, tensor)


@pytest.mark.gpu
@pytest.mark.nvcc
def test_exported_kernels_run_on_tensors_of_tvm(tmp_path: Path) -> None:
    device = tvm.cuda(0)
    rng = np.random.default_rng(0)
    a = rng.random((96, 96), np.float32)
    turn = load(export(transpose_schedule(96)[1], tmp_path / "turn").loader)
    source, result = tvm.runtime.tensor(a, device), tvm.runtime.empty(a.shape, "float32", device)
    turn.turn(source, result)
    device.sync()
    np.testing.assert_array_equal(result.numpy(), a.T)
    with pytest.raises(ValueError, match=r"A must be float32 \(96, 96\), not float32 \(96, 95\)"):
        turn.turn(tvm.runtime.empty((96, 95), "float32", device), result)
    # Three kernels one after another, with workspace between them.
    rows = rng.standard_normal((33, 200), np.float32)
    soft = load(export(default_module(softmax(33, 200, axis=0)), tmp_path / "soft").loader)
    source, result = (
        tvm.runtime.tensor(rows, device),
        tvm.runtime.empty((33, 200), "float32", device),
    )
    soft.soft(source, result)
    device.sync()
    power = np.exp(rows.astype(np.float64) - rows.max(axis=0, keepdims=True))
    want = power / power.sum(axis=0, keepdims=True)
    np.testing.assert_allclose(result.numpy(), want, rtol=1e-5, atol=1e-7)


@pytest.mark.gpu
@pytest.mark.nvcc
def test_exported_kernel_runs_on_tensors_of_torch_on_their_stream(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA GPU")
    loader = load(export(blend(), tmp_path / "blend").loader)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        a, b = (torch.rand((ROWS, COLUMNS), device="cuda") for _ in range(2))
        c = torch.full_like(a, float("nan"))
        loader.blend(a, b, c, stream=stream.cuda_stream)
    stream.synchronize()
    torch.testing.assert_close(c, a - 2 * b)
    with pytest.raises(ValueError, match="A must be contiguous"):
        loader.blend(torch.rand((COLUMNS, ROWS), device="cuda").T, b, c)
