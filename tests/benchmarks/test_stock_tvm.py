"""The GEMM by TVM's own primitives: right, asynchronous, on tensor cores, and nothing of ours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.gemm_kernels import device_source
from benchmarks.stock_tvm import CANDIDATES, StockCase, copies_asynchronously
from tests.programs.emitted import cuda_text
from tvm_layout_ext.simulate import simulate

SMALL = (256, 256, 192)


def counts(report: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for access in report.accesses:
        if access.scope.startswith("shared"):
            found[access.kind] = found.get(access.kind, 0) + access.wavefronts
    return found


def run(config: str) -> Any:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((256, 192), np.float32).astype("float16") for _ in range(2))
    with copies_asynchronously():
        report = simulate(StockCase(SMALL, config).schedule().mod, a, b, None)
    want = a.astype("float64") @ b.astype("float64").T
    np.testing.assert_allclose(report.outputs["C"], want, rtol=2e-3, atol=1e-3)
    assert not report.hazards
    return report


@pytest.mark.costly
@pytest.mark.matrix
@pytest.mark.parametrize("config", CANDIDATES)
def test_every_candidate_is_right_and_free_of_races(config: str) -> None:
    found = counts(run(config))
    assert found.keys() == {"cp.async", "ldmatrix", "store", "load"}
    # 256 x 192 x 16 fragments of A and of B, each 4 wavefronts if its rows lie in all banks.
    assert found["ldmatrix"] >= 6144 * (8 if config.endswith("none") else 1)
    if "tile_k=64 warps_m=2 warps_n=2 stages=3" in config:
        assert found["ldmatrix"] == (49152 if config.endswith("none") else 6144)


def test_the_kernel_uses_tensor_cores_and_asynchronous_copies() -> None:
    case = StockCase((512, 512, 512), CANDIDATES[0])
    (kernel,) = case.kernels().values()
    text = device_source({"main_kernel": kernel})
    assert "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in text
    assert "ldmatrix.sync.aligned.m8n8.x4" in text
    assert "cp.async.cg.shared.global" in text
    assert "async_wait_group_2" in text


def test_with_this_package_installed_tvm_compiles_the_same_kernel() -> None:
    """No pass of ours looks at it: the CUDA is that of TVM's pipeline alone, byte for byte."""
    case = StockCase(SMALL, CANDIDATES[0])
    with copies_asynchronously():
        assert cuda_text(case.schedule().mod) == device_source(case.kernels())
    assert "layout_ext" not in str(case.schedule().mod)
