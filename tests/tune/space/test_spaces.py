"""How large the spaces of the ready operators are, and that pruning leaves something everywhere."""

from __future__ import annotations

import pytest

from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.schedules.transpose import shared_wavefronts
from tvm_layout_ext.tune.space.operator import find_operator
from tvm_layout_ext.tune.space.task import make_task

SM90 = architecture("sm_90a")


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


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"swizzle": "xor"}, "same as auto"),
        ({"swizzle": "pad", "tile_k": 32}, "padding tears lines"),
        ({"warps_m": 1, "warps_n": 1}, "one warp"),
        ({"warps_m": 1, "warps_n": 4}, "lopsided warps"),
        ({"tile_m": 64, "tile_n": 64}, "small warp tile"),
        ({"tile_k": 16}, "short rows"),
        ({"stages": 1}, "no pipeline"),
        ({"tile_k": 128, "stages": 5}, "deeper than needed"),
        ({"group": 1}, "group reads more"),
        ({"group": 16}, "group too high"),
    ],
)
def test_rule_by_which_a_gemm_is_pruned(changes: dict[str, object], rule: str) -> None:
    operator = find_operator("gemm")
    config = operator.default_config() | changes
    refusal = operator.refuse((4096, 4096, 4096), "float16", config, SM90)
    assert refusal is not None
    assert refusal.rule == rule
    assert refusal.text.endswith(".")


def test_gemm_of_few_steps_is_no_deeper_than_they_are() -> None:
    operator = find_operator("gemm")
    config = operator.default_config() | {"stages": 4}
    refusal = operator.refuse((4096, 4096, 64), "float16", config, SM90)
    assert refusal is not None
    assert refusal.rule == "deeper than K"


def test_gemm_whose_operands_stay_in_cache_needs_no_group() -> None:
    operator = find_operator("gemm")
    refusal = operator.refuse((1024, 1024, 1024), "float16", operator.default_config(), SM90)
    assert refusal is not None
    assert refusal.rule == "group without effect"


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"threads": 64, "tile_i": 128, "tile_j": 64}, "work of a thread"),
        ({"threads": 512, "tile_i": 16, "tile_j": 64}, "idle threads"),
        ({"align_offset": 3}, "padding without effect"),
    ],
)
def test_rule_by_which_a_transpose_is_pruned(changes: dict[str, object], rule: str) -> None:
    operator = find_operator("transpose")
    config = operator.default_config() | changes
    refusal = operator.refuse((8192, 8192), "float32", config, SM90)
    assert refusal is not None
    assert refusal.rule == rule


def test_wavefronts_of_a_transposed_tile() -> None:
    # 64 x 64 words, vectors of 4: 8 lanes side by side, 4 rows apart from one another.
    assert shared_wavefronts(64, 64, 4, 4, 65, 1) == 1
    assert shared_wavefronts(64, 64, 4, 4, 1, 65) == 1
    assert shared_wavefronts(64, 64, 4, 4, 1, 64) == 8


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        ({"lanes": 0, "loads": 4}, "loads are auto's"),
        ({"threads": 64, "lanes": 128, "loads": 1}, "threads idle"),
        ({"threads": 512, "lanes": 512, "loads": 16}, "row too short"),
    ],
)
def test_row_sums_that_are_not_legal(config: dict[str, int], rule: str) -> None:
    operator = find_operator("row_sum")
    refusal = operator.refuse((32768, 4096), "float16", operator.default_config() | config, SM90)
    assert refusal is not None
    assert refusal.rule == rule
