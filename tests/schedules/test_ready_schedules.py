"""Ready schedules give NumPy's results and least traffic, whatever shape, type, configuration."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.sampling import SEED, pairwise
from tests.schedules.running import cuda_of, require_no_spills, run
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.tune.measure.simulated import count, verified_shape
from tvm_layout_ext.tune.measure.verify import WrongResultError, require_close
from tvm_layout_ext.tune.space.operator import find_operator
from tvm_layout_ext.tune.space.task import Task

SM90 = architecture("sm_90a")
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "cast_transpose": [(64, 64), (128, 192), (100, 72), (33, 47), (32, 32)],
    "transpose": [(1, 1), (1, 70), (64, 64), (33, 47), (96, 40), (129, 64)],
    "matmul": [(1, 1, 1), (64, 64, 64), (33, 20, 17), (1, 64, 40), (70, 4, 64), (48, 96, 8)],
    "gemm": [(1, 1, 1), (64, 64, 64), (33, 20, 17), (70, 4, 64), (128, 128, 96)],
}
#: Those that leave the mapping to auto_coalesce.
COALESCED: dict[str, list[tuple[int, ...]]] = {
    "elementwise": [(1, 1), (33, 64), (64, 33), (100, 96)],
    "permute": [(1, 1, 1, 1), (2, 3, 4, 64), (2, 5, 3, 7)],
    "nchw_to_nhwc": [(1, 1, 1, 1), (2, 64, 6, 6), (1, 33, 5, 7)],
    "pad": [(1, 1), (62, 62), (31, 5)],
    "slice": [(1, 1), (64, 64), (33, 7)],
    "gather_rows": [(1, 1, 1), (50, 33, 64), (7, 20, 33)],
    "row_sum": [(1, 1), (64, 256), (33, 100)],
    "column_sum": [(1, 1), (256, 64), (100, 33)],
}


def cases(all_shapes: dict[str, list[tuple[int, ...]]], choices: Sequence[Any]) -> list[Any]:
    return pairwise(
        (
            (name, shape, dtype, choice)
            for name, shapes in all_shapes.items()
            for shape in shapes
            for dtype in find_operator(name).dtypes
            for choice in choices
        ),
        key=lambda name, shape, *more: (name, all_shapes[name].index(shape), *more),
    )


def make_task(name: str, shape: tuple[int, ...], dtype: str) -> Task:
    return Task(find_operator(name), shape, dtype, SM90, seed=SEED)


def pick(task: Task, draw: int) -> dict[str, Any]:
    """The default for draw 0, else a legal configuration chosen by the seed."""
    if draw == 0:
        return task.space.default()
    return random.Random(f"{SEED} {task.workload} {draw}").choice(task.space.legal)


@pytest.mark.matrix
@pytest.mark.parametrize(("name", "shape", "dtype", "draw"), cases(SHAPES, range(6)))
def test_result_is_numpys_and_no_hazard(
    name: str, shape: tuple[int, ...], dtype: str, draw: int
) -> None:
    task = make_task(name, shape, dtype)
    assert run(task, pick(task, draw), draw).hazards == []


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "shape", "dtype", "config"),
    cases(COALESCED, [{}, {"threads": 64}, {"vector_bytes": 4}]),
)
def test_result_of_what_is_coalesced_is_numpys(
    name: str, shape: tuple[int, ...], dtype: str, config: dict[str, Any]
) -> None:
    task = make_task(name, shape, dtype)
    assert run(task, task.operator.default_config() | config).hazards == []


def test_dtype_of_a_sum_is_single() -> None:
    for name in ("row_sum", "stream_reduce"):
        tensors = find_operator(name).compute((4, 4), "float16")
        assert str(tensors[-1].dtype) == "float32"


NARROW = {"tile_i": 128, "tile_j": 128}


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "changes", "element"),
    [
        *(("transpose", (256, 192), dtype, {}, 2 * size)
          for dtype, size in (("float32", 4), ("float64", 8), ("int32", 4))),
        ("transpose", (128, 128), "float16", NARROW | {"read_vector": 2, "write_vector": 2}, 4),
        ("transpose", (128, 128), "int8", NARROW | {"read_vector": 4, "write_vector": 4}, 2),
        *(("cast_transpose", (256, 384), "float32", tile, 4 + 2)
          for tile in ({}, {"tile_j": 128}, {"tile_i": 128}, {"warps": 8})),
        *((name, (128, 128, 64), dtype, {}, None)
          for name, dtype in (("matmul", "float16"), ("matmul", "float32"), ("gemm", "float16"),
                              ("gemm", "bfloat16"))),
        ("elementwise", (256, 256), "float16", {}, 0),
        ("permute", (2, 64, 4, 128), "float16", {}, 0),
        ("nchw_to_nhwc", (1, 256, 16, 16), "float16", {}, 0),
        ("row_sum", (256, 2048), "float16", {}, 0),
        ("column_sum", (2048, 512), "float16", {}, 0),
    ],
)  # fmt: skip
def test_no_conflict_and_no_sector_too_many(
    name: str, shape: tuple[int, ...], dtype: str, changes: dict[str, int], element: int | None
) -> None:
    """``element`` are the bytes that each moves, if known; products read tiles several times."""
    task = make_task(name, shape, dtype)
    config = task.space.default() | changes
    assert config in task.space.legal
    _, model = count(task, config)
    assert model["bank_conflicts"] == 0
    if element is not None:
        assert model["sectors"] == model["ideal_sectors"]
    if element:
        assert model["sectors"] == shape[0] * shape[1] * element // 32


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
    require_no_spills(cuda_of(task.module(task.space.default())), tmp_path)


def test_large_sums_of_a_product_may_be_off_by_their_own_roundings() -> None:
    """An H200 was called wrong for this one of the 4096x4096 elements."""
    tolerance = find_operator("matmul").tolerance((4096, 4096, 4096), "float32")
    want = np.float32([[-175.49978637695312]])
    require_close(np.float32([[-175.5008087158203]]), want, tolerance)
    with pytest.raises(WrongResultError):
        require_close(want + np.float32(0.01), want, tolerance)
