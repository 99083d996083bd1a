"""Products on the tensor cores of a real GPU, compared with float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.programs.products import Product, scheduled
from tests.schedule.primitives.test_use_tensor_core import TYPES, staged_by_stmatrix
from tests.schedules.test_gemm import SMALL
from tvm_layout_ext.schedules import gemm
from tvm_layout_ext.tune.measure.reference.problem import poison

pytestmark = pytest.mark.gpu


def run(product: Product, sch: s_tir.Schedule) -> tuple[Any, str]:
    """Build for the GPU that is here and run; output, which was poisoned before, and source."""
    built = tlx.build(sch.mod, target="cuda")
    *inputs, _ = product.inputs()[0]
    M, N, _ = product.shape
    arrays = [
        tvm.runtime.tensor(array, tvm.cuda()) for array in (*inputs, poison((M, N), product.out))
    ]
    built["main"](*arrays)
    return arrays[-1].numpy(), str(built.mod.imports[0].inspect_source())


def compare(product: Product, got: Any) -> None:
    want = product.inputs()[1]
    assert np.isfinite(got.astype(np.float64)).all()
    error = np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want)
    # Tensor cores keep fewer bits of a sum than float32; outputs and sums of 16 bits round, too.
    rounded = {"int32": 0.0, "float32": 2.0**-17, "float16": 2.0**-10, "bfloat16": 2.0**-7}
    assert error <= max(rounded[product.out], rounded[product.sums] * 8)


@pytest.mark.parametrize("epilogue", [False, True])
@pytest.mark.parametrize("shape", [(32, 64, 32), (64, 128, 64)])
def test_stmatrix(shape: tuple[int, int, int], epilogue: bool) -> None:
    capability = str(tvm.cuda().compute_version)
    if tuple(map(int, capability.split("."))) < (9, 0):
        pytest.skip(f"stmatrix needs compute capability 9.0; this GPU has {capability}")
    product = Product(out="float16", shape=shape, epilogue=epilogue, b_transposed=True)
    got, source = run(product, staged_by_stmatrix(product))
    assert "stmatrix.sync.aligned.m8n8.x4.shared.b16" in source
    compare(product, got)


@pytest.mark.parametrize("mode", ["auto", "pad"])
@pytest.mark.parametrize("k_major", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_every_type_swizzled_and_padded(name: str, k_major: bool, mode: str) -> None:
    product = replace(
        TYPES[name], shape=(128, 128, 256), a_transposed=not k_major, b_transposed=k_major
    )
    sch = s_tir.Schedule(product.func())
    gemm.multiply(sch, "C", SMALL | {"tile_k": 64, "swizzle": mode}, product.instruction)
    compare(product, run(product, sch)[0])


@pytest.mark.parametrize("slices", [2, 3, 8])
@pytest.mark.parametrize("name", ["f16", "bf16", "tf32", "s8"])
def test_slices_of_k_add_up(name: str, slices: int) -> None:
    product = replace(TYPES[name], shape=(100, 200, 1000), b_transposed=True)
    sch = s_tir.Schedule(product.func())
    gemm.multiply(sch, "C", SMALL | {"split_k": slices}, product.instruction)
    compare(product, run(product, sch)[0])


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("size", [2, 4])
def test_products_in_clusters(size: int, slices: int) -> None:
    capability = str(tvm.cuda().compute_version)
    if tuple(map(int, capability.split("."))) < (9, 0):
        pytest.skip(f"clusters need compute capability 9.0; this GPU has {capability}")
    product = Product(out="float16", shape=(200, 256, 512), epilogue=True, b_transposed=True)
    sch = s_tir.Schedule(product.func())
    gemm.multiply(sch, "C", SMALL | {"cluster": size, "split_k": slices}, product.instruction)
    compare(product, run(product, sch)[0])


@pytest.mark.parametrize("n", [1, 7, 33, 50])
@pytest.mark.parametrize("name", ["f16", "tf32", "s8"])
def test_fewer_columns_than_a_tile_has(name: str, n: int) -> None:
    product = replace(TYPES[name], shape=(64, n, 64))
    compare(product, run(product, scheduled(product))[0])
