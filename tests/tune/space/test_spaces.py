"""How large the spaces of the ready operators are, and that pruning leaves something everywhere."""

from __future__ import annotations

import pytest

from tvm_layout_ext.schedules.transpose import shared_wavefronts
from tvm_layout_ext.tune.space.task import make_task


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "least", "most"),
    [
        ("gemm", (4096, 4096, 4096), "float16", 1000, 2500),
        ("gemm", (1024, 4096, 4096), "float16", 1000, 2500),
        ("transpose", (8192, 8192), "float32", 200, 1000),
        ("row_sum", (32768, 4096), "float16", 200, 1000),
    ],
)
def test_swept_spaces_are_worth_a_search_and_can_be_measured_whole(
    name: str, shape: tuple[int, ...], dtype: str, least: int, most: int
) -> None:
    task = make_task(name, shape, dtype)
    assert least <= len(task.space.legal) <= most
    total = 1
    for knob in task.operator.knobs:
        total *= len(knob.values)
    assert len(task.space.legal) + task.space.refused.total() == total
    assert task.space.default() in task.space.legal


@pytest.mark.matrix
@pytest.mark.parametrize("shape", [(1, 1), (16, 16), (33, 64), (3, 5), (64, 96), (1000, 24)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "float64"])
def test_no_transpose_is_pruned_away_altogether(shape: tuple[int, int], dtype: str) -> None:
    assert make_task("transpose", shape, dtype).space.legal


@pytest.mark.parametrize("shape", [(64, 64, 64), (128, 4096, 4096), (100, 72, 48)])
def test_no_gemm_is_pruned_away_altogether(shape: tuple[int, int, int]) -> None:
    assert make_task("gemm", shape, "float16").space.legal


def test_wavefronts_of_a_transposed_tile() -> None:
    # 64 x 64 words, vectors of 4: 8 lanes side by side, 4 rows apart from one another.
    assert shared_wavefronts(64, 64, 4, 4, 65, 1) == 1
    assert shared_wavefronts(64, 64, 4, 4, 1, 65) == 1
    assert shared_wavefronts(64, 64, 4, 4, 1, 64) == 8
