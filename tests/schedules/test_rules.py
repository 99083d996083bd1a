"""Rules by which configurations of ready schedules are illegal, or not worth trying."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.tune.space.operator import find_operator

HUGE, FLAT, SLIM = (4096, 4096, 4096), (8192, 8192), (128, 4096, 4096)
WARPS = {"warps_m": 4, "warps_n": 4}


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
        ("cast_transpose", (64, 64), "float32", {"tile_i": 32, "tile_j": 32, "warps": 8},
         "threads idle"),
        ("matmul", (64, 64, 64), "float32", {"tile_m": 16}, "threads"),
        ("matmul", (64, 64, 64), "float32", {"split_k": 8}, "more slices than steps"),
        ("gemm", (256, 256, 256), "float16", {"tile_m": 256}, "registers"),
        ("gemm", (16, 256, 256), "float16", {}, "tile too large"),
        ("gemm", (128, 4096, 64), "float16", {"split_k": 4}, "more slices than steps"),
        ("stream_reduce", (64, 4096), "float16", {"warps": 8, "rows": 4}, "threads idle"),
        ("stream_reduce", (64, 4096), "float16", {"columns": 128}, "threads idle"),
        ("stream_reduce", (64, 100), "float16", {}, "tile too large"),
        ("stream_reduce", (2, 4096), "float16", {}, "tile too large"),
        ("stream_reduce", (64, 4096), "float16", {"rows": 32, "columns": 1024, "warps": 2},
         "code size"),
        ("stream_reduce", (64, 4096), "float16",
         {"rows": 32, "columns": 1024, "warps": 8, "stages": 6}, "shared memory"),
        ("stencil", (512, 512), "float32", {"tile_x": 256}, "threads idle"),
        ("stencil", (512, 512), "float32", {"tile_x": 32, "threads": 256, "tile_y": 4},
         "threads idle"),
        ("stencil", (40, 512), "float32", {}, "tile too large"),
        ("stencil", (512, 40), "float32", {}, "tile too large"),
    ],
)  # fmt: skip
def test_illegal_configuration_names_its_rule(
    name: str, shape: tuple[int, ...], dtype: str, changes: dict[str, Any], rule: str
) -> None:
    operator = find_operator(name)
    start = {"read_vector": 2, "write_vector": 2} if dtype == "float64" else {}
    config = operator.default_config() | start | changes
    refusal = operator.check(shape, dtype, config, architecture("sm_90a"))
    assert refusal is not None
    assert refusal.rule == rule
    assert refusal.text.endswith(".")


@pytest.mark.parametrize(
    ("dtype", "arch", "changes", "rule", "why"),
    [
        ("float16", "sm_90a", {"tile_m": 256}, "registers", "about 372 registers, 256 of them"),
        ("float16", "sm_90a", {"tile_m": 256, "warps_n": 1, "prefetch": 0}, "registers",
         "about 596 registers, 512 of them"),
        ("float16", "sm_86", {"tile_m": 256, "tile_k": 128, "warps_m": 4, "stages": 1,
         "swizzle": "pad"}, "shared memory", r"The tiles need 104,448 bytes of 101,376\."),
        ("float16", "sm_90a", {"tile_m": 256, "tile_k": 128, "warps_m": 4, "stages": 1,
         "swizzle": "pad"}, None, ""),
        ("float16", "sm_80", {"cluster": 2, "stages": 2}, "no clusters",
         r"sm_80 launches no clusters of blocks\."),
        ("float16", "sm_80", {"cluster": 1, "stages": 2}, None, ""),
        ("int8", "sm_90a", {"tile_k": 16}, "tile of instruction", "no multiple of the 32 of mma"),
        ("float8_e4m3fn", "sm_80", {"tile_k": 64}, "no instruction", "8.9; sm_80 is older"),
        # sm_89 need not widen what sm_90 does.
        ("float8_e4m3fn", "sm_89", {"tile_k": 64, "stages": 2}, None, ""),
        ("int8", "sm_75", {"tile_k": 64}, "no instruction", "needs compute capability 8.0"),
        ("float32", "sm_80", {"tile_k": 64}, "shared memory", "need 262,144 bytes of 166,912"),
        # Four warps of 64 x 64: 128 sums, 128 registers of fragments that are widened, addresses.
        ("float8_e4m3fn", "sm_90a", {"tile_k": 64}, "registers", "about 276 .*; 255 are there"),
        ("int8", "sm_90a", {"tile_m": 256, "tile_k": 64, **WARPS}, "registers",
         "about 132 .*; 128 are there"),
    ],
)  # fmt: skip
def test_a_gemm_that_an_architecture_cannot_hold_or_multiply_says_why(
    dtype: str, arch: str, changes: dict[str, Any], rule: str | None, why: str
) -> None:
    operator = find_operator("gemm")
    config = operator.default_config() | changes
    refusal = operator.check((512, 512, 512), dtype, config, architecture(arch))
    assert (refusal and refusal.rule) == rule
    assert refusal is None or re.search(why, refusal.text)


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
        ("gemm", HUGE, {"split_k": 2}, "slices of a full grid"),
        ("gemm", (128, 4096, 33 * 32), {"split_k": 8, "group": 1}, "empty slices"),
        ("gemm", (128, 4096, 16 * 32), {"split_k": 8, "group": 1}, "short slices"),
        ("gemm", SLIM, {"split_k": 2, "swizzle": "none", "group": 1}, "moved once a tiling"),
        ("gemm", SLIM, {"split_k": 2, "prefetch": 0, "group": 1}, "moved once a tiling"),
        ("gemm", HUGE, {"cluster": 2, "swizzle": "pad"}, "moved once a tiling"),
        ("gemm", SLIM, {"split_k": 2, "cluster": 2, "group": 1}, "slices in clusters"),
        ("gemm", (4096, 4096 + 128, 4096), {"cluster": 4}, "grid of no whole clusters"),
        ("gemm", (512, 2048, 8192),
         {"split_k": 2, "tile_m": 256, "tile_n": 256, **WARPS, "stages": 2, "group": 1},
         "shared memory"),
        ("transpose", FLAT, {"threads": 64, "tile_i": 128, "tile_j": 64}, "work of a thread"),
        ("transpose", FLAT, {"threads": 512, "tile_i": 16, "tile_j": 64}, "idle threads"),
        ("transpose", FLAT, {"align_offset": 3}, "padding without effect"),
        ("row_sum", (32768, 4096), {"lanes": 0, "loads": 4}, "loads are auto's"),
        ("row_sum", (32768, 4096), {"threads": 64, "lanes": 128, "loads": 1}, "threads idle"),
        ("row_sum", (32768, 4096), {"threads": 512, "lanes": 512, "loads": 16}, "row too short"),
    ],
)  # fmt: skip
def test_rule_by_which_a_configuration_is_not_tried(
    name: str, shape: tuple[int, ...], changes: dict[str, Any], rule: str
) -> None:
    operator = find_operator(name)
    dtype, config = "float32" if name == "transpose" else "float16", operator.default_config()
    refusal = operator.refuse(shape, dtype, config | changes, architecture("sm_90a"))
    assert refusal is not None
    assert refusal.rule == rule
    assert refusal.text.endswith(".")
