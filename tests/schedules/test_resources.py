"""Registers and shared memory of ready schedules' kernels, and that these replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tvm.s_tir.schedule.testing import verify_trace_roundtrip

from tests.programs.emitted import cuda_text, require_no_spills
from tests.schedules.running import kernel_bytes
from tvm_layout_ext import te
from tvm_layout_ext.schedules import gemm, stencil
from tvm_layout_ext.tune.space.operator import find_operator
from tvm_layout_ext.tune.space.task import make_task

PIPELINED = ("stream_reduce", "stencil")
PRODUCTS = [
    (name, dtype) for name in ("gemm", "gemm_nt") for dtype in find_operator(name).dtypes
]  # fmt: skip


@pytest.mark.costly
@pytest.mark.matrix
@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("transpose", (256, 256), "float32"),
        ("matmul", (256, 256, 256), "float32"),
        *((name, (8192, 8192, 8192), dtype) for name, dtype in PRODUCTS),
        *(
            (name, shape, dtype)
            for name in PIPELINED
            for shape in ((4096, 4096), (1000, 1001))
            for dtype in ("float16", "float32")
        ),
    ],
)
def test_default_spills_no_register(
    name: str, shape: tuple[int, ...], dtype: str, tmp_path: Path
) -> None:
    task = make_task(name, shape, dtype)
    require_no_spills(cuda_text(task.module(task.space.default())), tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize("split_k", [1, 2])
@pytest.mark.parametrize(
    ("name", "dtype", "changes"),
    [
        *((*one, {"swizzle": mode, "stages": 2}) for one in PRODUCTS for mode in ("auto", "pad")),
        ("gemm", "float16", {"tile_k": 64, "stages": 4, "swizzle": "pad"}),
        ("gemm", "float16", {"tile_n": 256, "warps_n": 4, "stages": 3}),
        ("gemm", "float16", {"tile_m": 256, "warps_m": 4, "stages": 2, "swizzle": "xor"}),
    ],
)
def test_stated_bytes_of_a_product_are_those_of_its_kernels(
    name: str, dtype: str, changes: dict[str, Any], split_k: int
) -> None:
    task = make_task(name, (256, 256, 512), dtype)
    config = task.space.default() | changes | {"split_k": split_k, "wgmma": "none"}
    stated = gemm.shared_bytes(dtype, config, b_transposed=name == "gemm_nt")
    assert stated == max(kernel_bytes(task.module(config)))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gemm", {"stages": 3, "group": 4, "swizzle": "xor"}),
        ("stream_reduce", {"rows": 4, "columns": 256, "warps": 2}),
        ("stencil", {"tile_y": 4, "tile_x": 64, "steps": 8, "threads": 128}),
        ("row_sum", {"threads": 128, "lanes": 32, "loads": 4, "vector_bytes": 16}),
    ],
)
def test_replays_from_its_trace(name: str, changes: dict[str, Any]) -> None:
    operator = find_operator(name)
    config, dtype = operator.default_config() | changes, operator.dtypes[0]
    tensors = operator.compute((128, 1024, 256)[: len(operator.dims)], dtype)
    if name == "stencil":
        tensors = stencil.compute((70, 300), dtype, (config["steps"] * config["tile_y"], 64))
    func = te.create_prim_func(list(tensors)).with_attr("global_symbol", "main")
    verify_trace_roundtrip(operator.schedule(tensors, config), func)
