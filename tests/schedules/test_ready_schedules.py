"""Ready schedules give NumPy's results and least traffic, whatever shape, type, configuration."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_layout_ext as tlx
from tests.sampling import SEED, pairwise
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.tune.measure.simulated import count, verified_shape
from tvm_layout_ext.tune.measure.verify import WrongResultError, poison, require_close
from tvm_layout_ext.tune.space.operator import find_operator
from tvm_layout_ext.tune.space.task import Task

SM90 = architecture("sm_90a")
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "cast_transpose": [(64, 64), (128, 192), (100, 72), (33, 47), (32, 32)],
    "transpose": [(1, 1), (1, 70), (64, 64), (33, 47), (96, 40), (129, 64)],
    "matmul": [(1, 1, 1), (64, 64, 64), (33, 20, 17), (1, 64, 40), (70, 4, 64), (48, 96, 8)],
    "gemm": [(1, 1, 1), (64, 64, 64), (33, 20, 17), (70, 4, 64), (128, 128, 96)],
}
CASES = pairwise(
    (
        (name, shape, dtype, draw)
        for name, shapes in SHAPES.items()
        for shape in shapes
        for dtype in find_operator(name).dtypes
        for draw in range(6)
    ),
    key=lambda name, shape, *more: (name, SHAPES[name].index(shape), *more),
)


def make_task(name: str, shape: tuple[int, ...], dtype: str) -> Task:
    return Task(find_operator(name), shape, dtype, SM90, seed=SEED)


def pick(task: Task, draw: int) -> dict[str, Any]:
    """The default for draw 0, else a legal configuration chosen by the seed."""
    if draw == 0:
        return task.space.default()
    return random.Random(f"{SEED} {task.workload} {draw}").choice(task.space.legal)


@pytest.mark.matrix
@pytest.mark.parametrize(("name", "shape", "dtype", "draw"), CASES)
def test_result_is_numpys_and_no_hazard(
    name: str, shape: tuple[int, ...], dtype: str, draw: int
) -> None:
    task = make_task(name, shape, dtype)
    inputs = task.draw(draw)
    want = task.operator.reference(*inputs)
    output = str(task.operator.compute(shape, dtype)[-1].dtype)
    report = simulate(task.module(pick(task, draw)), *inputs, poison(want.shape, output))
    (got,) = report.outputs.values()
    require_close(got, want, task.operator.tolerance(shape, dtype))
    assert report.hazards == []


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_default_transpose_has_no_conflict_and_least_sectors(dtype: str) -> None:
    task = make_task("transpose", (256, 192), dtype)
    _, model = count(task, task.space.default())
    assert model["bank_conflicts"] == 0
    assert (
        model["sectors"] == model["ideal_sectors"] == 2 * 256 * 192 * np.dtype(dtype).itemsize // 32
    )


@pytest.mark.parametrize("tile", [{}, {"tile_j": 128}, {"tile_i": 128}, {"warps": 8}])
def test_cast_transpose_moves_vectors_and_meets_no_bank_twice(tile: dict[str, int]) -> None:
    task = make_task("cast_transpose", (256, 384), "float32")
    _, model = count(task, task.space.default() | tile)
    assert model["bank_conflicts"] == 0
    assert model["sectors"] == model["ideal_sectors"] == 256 * 384 * (4 + 2) // 32


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_narrow_transpose_has_a_conflict_free_configuration(dtype: str) -> None:
    task = make_task("transpose", (128, 128), dtype)
    vector = {"float16": 2, "int8": 4}[dtype]
    config = task.space.default() | {
        "tile_i": 128, "tile_j": 128, "read_vector": vector, "write_vector": vector,
    }  # fmt: skip
    assert config in task.space.legal
    _, model = count(task, config)
    assert model["bank_conflicts"] == 0
    assert model["sectors"] == model["ideal_sectors"]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_default_matmul_has_no_conflict(dtype: str) -> None:
    task = make_task("matmul", (128, 128, 64), dtype)
    _, model = count(task, task.space.default())
    assert model["bank_conflicts"] == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_default_gemm_has_no_conflict(dtype: str) -> None:
    task = make_task("gemm", (128, 128, 64), dtype)
    _, model = count(task, task.space.default())
    assert model["bank_conflicts"] == 0


def test_unpadded_transpose_has_conflicts() -> None:
    task = make_task("transpose", (64, 64), "float32")
    _, model = count(task, task.space.default() | {"align_offset": 0})
    assert model["bank_conflicts"] > 0


def test_large_shape_is_verified_on_a_smaller_one_as_ragged() -> None:
    assert verified_shape(make_task("transpose", (1024, 1000), "float32")) == (1024, 1000)
    large = make_task("transpose", (20_000, 5_003), "float32")
    assert verified_shape(large) == (512 + 20_000 % 512, 512 + 5_003 % 512)
    deep = make_task("matmul", (4096, 4096, 4096), "float16")
    assert verified_shape(deep) == (256, 256, 256)


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "changes", "rule"),
    [
        ("transpose", (64, 64), "float64", {"read_vector": 4}, "vector too wide"),
        ("transpose", (64, 66), "float32", {"read_vector": 4}, "vector misaligned"),
        ("transpose", (66, 64), "float32", {"write_vector": 4}, "vector misaligned"),
        ("transpose", (64, 64), "float32", {"tile_i": 16, "threads": 512}, "threads idle"),
        ("transpose", (64, 16), "float32", {"tile_j": 128}, "tile too large"),
        ("transpose", (64, 64), "float32", {"align_offset": 9}, "same row stride"),
        ("transpose", (128, 128), "float64", {"tile_i": 128, "tile_j": 128}, "shared memory"),
        ("cast_transpose", (64, 32), "float32", {"tile_j": 128}, "tile too large"),
        ("cast_transpose", (128, 128), "float32", {"tile_i": 128, "tile_j": 128}, "registers"),
        (
            "cast_transpose",
            (64, 64),
            "float32",
            {"tile_i": 32, "tile_j": 32, "warps": 8},
            "threads idle",
        ),
        ("matmul", (64, 64, 64), "float32", {"vector": 8}, "vector too wide"),
        ("matmul", (64, 62, 64), "float32", {}, "vector misaligned"),
        ("matmul", (64, 64, 64), "float32", {"a_offset": 1}, "vector misaligned"),
        ("gemm", (256, 256, 256), "float16", {"tile_m": 256}, "registers"),
        ("gemm", (16, 256, 256), "float16", {}, "tile too large"),
        ("matmul", (64, 64, 64), "float32", {"rows": 1, "columns": 1, "vector": 1}, "threads"),
    ],
)
def test_illegal_configuration_names_its_rule(
    name: str, shape: tuple[int, ...], dtype: str, changes: dict[str, int], rule: str
) -> None:
    operator = find_operator(name)
    start = {"read_vector": 2, "write_vector": 2} if dtype == "float64" else {}
    refusal = operator.check(shape, dtype, operator.default_config() | start | changes, SM90)
    assert refusal is not None
    assert refusal.rule == rule
    assert refusal.text.endswith(".")


def test_gemm_refuses_tiles_that_an_older_gpu_cannot_hold() -> None:
    operator = find_operator("gemm")
    config = operator.default_config() | {
        "tile_m": 256, "tile_k": 128, "warps_m": 4, "stages": 1, "swizzle": "pad",
    }  # fmt: skip
    assert operator.check((256, 256, 256), "float16", config, SM90) is None
    refusal = operator.check((256, 256, 256), "float16", config, architecture("sm_86"))
    assert refusal is not None
    assert refusal.text == "The tiles need 104,448 bytes of 101,376."


@pytest.mark.nvcc
@pytest.mark.parametrize("name", ["transpose", "matmul"])
def test_default_spills_no_register(name: str, tmp_path: Path) -> None:
    task = make_task(name, (256,) * len(find_operator(name).dims), "float32")
    built = tlx.build(task.module(task.space.default()), target=tlx.cuda_target("sm_90a"))
    (tmp_path / "kernel.cu").write_text(built.mod.imports[0].inspect_source())
    command = ["nvcc", "-arch=sm_90a", "-cubin", "-Xptxas", "-v", "-o", "kernel.cubin", "kernel.cu"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "0 bytes spill stores, 0 bytes spill loads" in ran.stderr


def test_large_sums_of_a_product_may_be_off_by_their_own_roundings() -> None:
    """An H200 was called wrong for this one of the 4096x4096 elements."""
    tolerance = find_operator("matmul").tolerance((4096, 4096, 4096), "float32")
    want = np.float32([[-175.49978637695312]])
    require_close(np.float32([[-175.5008087158203]]), want, tolerance)
    with pytest.raises(WrongResultError):
        require_close(want + np.float32(0.01), want, tolerance)
