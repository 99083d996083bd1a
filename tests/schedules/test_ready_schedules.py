"""Ready schedules give NumPy's results and least traffic, whatever shape, type, configuration."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.sampling import SEED, pairwise
from tests.schedules.running import run
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.tune.measure.reference.problem import WrongResultError, require_close
from tvm_layout_ext.tune.measure.simulated import count, verified_shape
from tvm_layout_ext.tune.space.operator import find_operator
from tvm_layout_ext.tune.space.task import Task

SM90 = architecture("sm_90a")
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "attention": [(1, 2, 1, 40, 70, 64)],
    "attention_biased": [(1, 2, 1, 70, 136, 64)],
    "attention_causal": [(2, 1, 1, 70, 130, 64)],
    "cast_transpose": [(64, 64), (128, 192), (100, 72), (33, 47), (32, 32)],
    "conv2d": [(2, 9, 8, 64, 72, 3, 3), (1, 7, 5, 24, 40, 1, 1), (1, 9, 9, 3, 24, 5, 3)],
    "conv2d_strided": [(2, 9, 8, 64, 72, 3, 3), (3, 7, 5, 72, 40, 1, 1), (1, 12, 9, 3, 16, 7, 7)],
    "depthwise_conv2d": [(2, 9, 8, 24, 3, 3), (1, 7, 6, 40, 1, 5), (2, 6, 14, 8, 7, 7)],
    "transpose": [(1, 1), (1, 70), (64, 64), (33, 47), (96, 40), (129, 64)],
    "matmul": [(1, 1, 1), (64, 64, 64), (33, 20, 17), (1, 64, 40), (70, 4, 64), (48, 96, 8)],
    "gemm_gated": [(70, 72, 64), (9, 40, 72)],
    "gemm_scaled": [(70, 200, 256), (130, 72, 128)],
    "grouped_gemm": [(3, 150, 72, 64)],
    "ragged_attention": [(3, 4, 2, 60, 90, 64)],
    "ragged_causal": [(3, 3, 1, 90, 60, 64)],
    "gemm": [(1, 1, 1), (64, 64, 64), (33, 20, 17), (70, 4, 64), (128, 128, 96)],
    "stream_reduce": [(40, 1300)],
    "stencil": [(80, 200), (9, 70)],
}
#: Those that leave the mapping to auto_coalesce, or to fuse_rows.
COALESCED: dict[str, list[tuple[int, ...]]] = {
    "elementwise": [(1, 1), (33, 64), (64, 33), (100, 96)],
    "permute": [(1, 1, 1, 1), (2, 3, 4, 64), (2, 5, 3, 7)],
    "nchw_to_nhwc": [(1, 1, 1, 1), (2, 64, 6, 6), (1, 33, 5, 7)],
    "pad": [(1, 1), (62, 62), (31, 5)],
    "slice": [(1, 1), (64, 64), (33, 7)],
    "gather_rows": [(1, 1, 1), (50, 33, 64), (7, 20, 33)],
    "row_sum": [(1, 1), (64, 256), (33, 100)],
    "column_sum": [(1, 1), (256, 64), (100, 33)],
    "layer_norm": [(1, 1), (64, 256), (33, 100)],
    "rms_norm": [(1, 1), (64, 256), (33, 100)],
    "softmax": [(1, 1), (64, 256), (33, 100)],
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


def pick(task: Task, choice: int | dict[str, Any]) -> dict[str, Any]:
    """The default for 0, another legal configuration for other numbers; or changes of knobs."""
    if isinstance(choice, dict):
        return task.operator.default_config() | choice
    if choice == 0:
        return task.space.default()
    return random.Random(f"{SEED} {task.workload} {choice}").choice(task.space.legal)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "shape", "dtype", "choice"),
    [*cases(SHAPES, range(6)), *cases(COALESCED, [{}, {"threads": 64}, {"vector_bytes": 4}])],
)
def test_result_is_numpys_and_no_hazard(
    name: str, shape: tuple[int, ...], dtype: str, choice: int | dict[str, Any]
) -> None:
    task = make_task(name, shape, dtype)
    stream = choice if isinstance(choice, int) else 0
    assert run(task, pick(task, choice), stream).hazards == []


WIDE = {"tile_i": 128, "tile_j": 128}


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "changes", "element"),
    [
        *(("transpose", (256, 192), dtype, {}, 2 * size)
          for dtype, size in (("float32", 4), ("float64", 8), ("int32", 4))),
        ("transpose", (128, 128), "float16", WIDE | {"read_vector": 2, "write_vector": 2}, 4),
        ("transpose", (128, 128), "int8", WIDE | {"read_vector": 4, "write_vector": 4}, 2),
        *(("cast_transpose", (256, 384), "float32", tile, 4 + 2)
          for tile in ({}, {"tile_j": 128}, {"tile_i": 128}, {"warps": 8})),
        *((name, (128, 128, 64), dtype, {}, None)
          for name, dtype in (("matmul", "float32"), ("gemm", "float16"), ("gemm", "bfloat16"))),
        ("elementwise", (256, 256), "float16", {}, 0),
        ("permute", (2, 64, 4, 128), "float16", {}, 0),
        ("nchw_to_nhwc", (1, 256, 16, 16), "float16", {}, 0),
        ("row_sum", (256, 2048), "float16", {}, 0),
        ("column_sum", (2048, 512), "float16", {}, 0),
        *((name, shape, dtype, {}, 0) for dtype in ("float16", "float32")
          for name, shape in (("stream_reduce", (256, 4096)), ("stencil", (256, 512)),
                              ("stencil", (250, 496)))),
    ],
)  # fmt: skip
def test_no_conflict_and_no_sector_too_many(
    name: str, shape: tuple[int, ...], dtype: str, changes: dict[str, int], element: int | None
) -> None:
    """``element`` are the bytes that each moves, if known; products read tiles several times."""
    task = make_task(name, shape, dtype)
    config = task.space.default() | changes
    _, model = count(task, config)
    assert model["bank_conflicts"] == 0
    if element is not None:
        assert model["sectors"] == model["ideal_sectors"]
    if element:
        assert model["sectors"] == shape[0] * shape[1] * element // 32


def test_large_shape_is_verified_on_a_smaller_one_as_ragged() -> None:
    assert _verified("transpose", (1024, 1000)) == (1024, 1000)
    large = _verified("transpose", (20_000, 5_003))
    assert large == (512 + 20_000 % 512, 512 + 5_003 % 512)
    assert _verified("matmul", (4096, 4096, 4096)) == (256, 256, 256)
    # Of little work, but one thread after another does it: two minutes.
    assert _verified("matmul", (1, 1, 65_537)) == (1, 1, 1025)


def _verified(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    task = make_task(name, shape, "float32")
    return verified_shape(task, task.space.default())


def test_large_sums_of_a_product_may_be_off_by_their_own_roundings() -> None:
    """An H200 was called wrong for this one of the 4096x4096 elements."""
    tolerance = find_operator("matmul").tolerance((4096, 4096, 4096), "float32")
    want = np.float32([[-175.49978637695312]])
    require_close(np.float32([[-175.5008087158203]]), want, tolerance)
    with pytest.raises(WrongResultError):
        require_close(want + np.float32(0.01), want, tolerance)
