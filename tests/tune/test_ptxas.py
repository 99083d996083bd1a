from __future__ import annotations

import pytest

from tvm_layout_ext.tune import ptxas

_KERNEL = """
extern "C" __global__ void main_kernel(float* out, const float* in) {
  float kept[32];
#pragma unroll
  for (int i = 0; i < 32; ++i) kept[i] = in[i * 1024 + threadIdx.x];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) sum += kept[i] * kept[31 - i];
  out[threadIdx.x] = sum;
}
"""


@pytest.mark.nvcc
def test_ptxas_tells_the_registers() -> None:
    few = ptxas.registers('extern "C" __global__ void main_kernel() {}', "sm_90a")
    many = ptxas.registers(_KERNEL, "sm_90a")
    assert few is not None
    assert many is not None
    assert few < 32 <= many <= 255


@pytest.mark.nvcc
def test_source_that_does_not_compile_has_none() -> None:
    assert ptxas.registers("not CUDA", "sm_90a") is None


def test_without_nvcc_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptxas.shutil, "which", lambda name: None)
    assert ptxas.registers(_KERNEL, "sm_90a") is None
