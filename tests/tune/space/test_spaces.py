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


HUGE, FLAT = (4096, 4096, 4096), (8192, 8192)


@pytest.mark.parametrize(
    ("name", "shape", "changes", "rule"),
    [
        ("gemm", HUGE, {"swizzle": "xor"}, "same as auto"),
        ("gemm", HUGE, {"swizzle": "pad", "tile_k": 32}, "padding tears lines"),
        ("gemm", HUGE, {"warps_m": 1, "warps_n": 1}, "one warp"),
        ("gemm", HUGE, {"warps_m": 1, "warps_n": 4}, "lopsided warps"),
        ("gemm", HUGE, {"tile_m": 64, "tile_n": 64}, "small warp tile"),
        ("gemm", HUGE, {"tile_k": 16}, "short rows"),
        ("gemm", HUGE, {"stages": 1}, "no pipeline"),
        ("gemm", HUGE, {"tile_k": 128, "stages": 5}, "deeper than needed"),
        ("gemm", HUGE, {"group": 1}, "group reads more"),
        ("gemm", HUGE, {"group": 16}, "group too high"),
        ("gemm", (4096, 4096, 64), {"stages": 4}, "deeper than K"),
        # Its operands stay in the cache.
        ("gemm", (1024, 1024, 1024), {}, "group without effect"),
        ("transpose", FLAT, {"threads": 64, "tile_i": 128, "tile_j": 64}, "work of a thread"),
        ("transpose", FLAT, {"threads": 512, "tile_i": 16, "tile_j": 64}, "idle threads"),
        ("transpose", FLAT, {"align_offset": 3}, "padding without effect"),
        ("row_sum", (32768, 4096), {"lanes": 0, "loads": 4}, "loads are auto's"),
        ("row_sum", (32768, 4096), {"threads": 64, "lanes": 128, "loads": 1}, "threads idle"),
        ("row_sum", (32768, 4096), {"threads": 512, "lanes": 512, "loads": 16}, "row too short"),
    ],
)
def test_rule_by_which_a_configuration_is_left_out(
    name: str, shape: tuple[int, ...], changes: dict[str, object], rule: str
) -> None:
    operator = find_operator(name)
    dtype = "float32" if name == "transpose" else "float16"
    refusal = operator.refuse(shape, dtype, operator.default_config() | changes, SM90)
    assert refusal is not None
    assert refusal.rule == rule
    assert refusal.text.endswith(".")


def test_wavefronts_of_a_transposed_tile() -> None:
    # 64 x 64 words, vectors of 4: 8 lanes side by side, 4 rows apart from one another.
    assert shared_wavefronts(64, 64, 4, 4, 65, 1) == 1
    assert shared_wavefronts(64, 64, 4, 4, 1, 65) == 1
    assert shared_wavefronts(64, 64, 4, 4, 1, 64) == 8
