"""The tensor-core GEMM: stages, groups and swizzles keep its results, free of conflicts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.programs.emitted import cuda_text
from tests.programs.products import Product, simulated
from tests.sampling import pairs
from tests.schedule.primitives.test_use_tensor_core import TYPES
from tests.schedules.running import H200, kernel_bytes
from tvm_layout_ext import ScheduleError, TargetError, decisions
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.gpu.tile_copies import copy_of
from tvm_layout_ext.schedules import gemm

DEFAULT = gemm.OPERATOR.default_config()
SMALL = DEFAULT | {"tile_m": 64, "tile_n": 64}
LIMIT = architecture("sm_90a").shared_per_block
MODES = ("auto", "xor", "pad", "none")


def scheduled(product: Product, config: dict[str, Any]) -> s_tir.Schedule:
    sch = s_tir.Schedule(product.func())
    gemm.multiply(sch, "C", config, product.instruction)
    return sch


@pytest.mark.costly
@pytest.mark.matrix
@pairs(
    stages=[1, 2, 3, 4, 5, 6],
    mode=MODES,
    shape=[(192, 128, 160), (200, 72, 88), (64, 64, 32)],
    group=[1, 4],
    b_transposed=[False, True],
)
def test_stages_and_swizzles_keep_results_without_hazards(
    stages: int, mode: str, shape: tuple[int, int, int], group: int, b_transposed: bool
) -> None:
    config = SMALL | {"stages": stages, "swizzle": mode, "group": group}
    product = replace(TYPES["f16"], shape=shape, b_transposed=b_transposed)
    report = simulated(product, scheduled(product, config))
    assert (report.bank_conflicts == 0) == (mode != "none")


@pytest.mark.matrix
@pairs(
    name=TYPES,
    k_major=[False, True],
    m=[64, 128, 256],
    n=[64, 128, 256],
    k=[16, 32, 64, 128],
    mode=["auto", "pad", "xor"],
)
def test_tiles_that_fit_meet_no_bank_twice(
    name: str, k_major: bool, m: int, n: int, k: int, mode: str
) -> None:
    """Stores, fragment loads and epilogue of every tile; the others are refused by their bytes."""
    product = replace(TYPES[name], shape=(m, n, k), a_transposed=not k_major, b_transposed=k_major)
    tile = {"tile_m": m, "tile_n": n, "tile_k": k, "warps_m": 4, "warps_n": 4}
    config = DEFAULT | tile | {"stages": 1, "swizzle": mode}
    size = itemsize(TYPES[name].operand)
    if k == 16 and size == 1:
        with pytest.raises(ScheduleError, match=r"multiple of k is 16; .* needs multiples of 32"):
            scheduled(product, config)
        return
    sch = scheduled(product, config)
    if (needed := shared_size(sch)) > LIMIT:
        with pytest.raises(TargetError, match=f"needs {needed:,} bytes .* may have {LIMIT:,}"):
            tlx.build(sch.mod, target=H200)
        return
    with decisions.collect() as made:
        report = simulated(product, sch)
    assert report.bank_conflicts == 0
    assert report.hazards == []
    if mode == "pad":
        # The extra bytes of a row are those that are stated.
        row, line = k if k_major else m, 128 // size
        stride = row + copy_of(8 * size, k_major, row, "pad").pad
        (told,) = {str(x) for x in made if x.maker == "SwizzleSharedMemory" and "A_" in str(x)}
        assert f"pad({line}, {stride % line})" in told


@pytest.mark.parametrize(
    ("name", "k_major", "chosen"),
    [
        ("f16", False, "xor(8, 1, 8)"),
        ("tf32", True, "xor(4, 1, 8)"),
        ("tf32", False, "xor(8, 1, 4)"),
        ("e5m2", True, "xor(16, 2, 4)"),
        # Triton's (8, 2, 8) is for copies of 8 bytes; these have 16, and reads take every 4th row.
        ("e5m2", False, "xor(16, 4, 4)"),
    ],
)
def test_a_derived_swizzle_follows_the_order_of_the_reads(
    name: str, k_major: bool, chosen: str
) -> None:
    product = replace(TYPES[name], a_transposed=not k_major)
    sch = scheduled(product, SMALL | {"tile_k": 64, "stages": 1, "swizzle": "xor"})
    with decisions.collect() as made:
        tlx.lower(sch.mod, target=H200)
    told = {str(x) for x in made if x.maker == "SwizzleSharedMemory" and "A_" in str(x)}
    assert any(f": {chosen}, " in one for one in told), told


def itemsize(dtype: str) -> int:
    return int(np.dtype(getattr(ml_dtypes, dtype, dtype)).itemsize)


@pytest.mark.costly
@pytest.mark.matrix
@pytest.mark.parametrize("n", [1, 7, 33, 50, 100])
@pytest.mark.parametrize("name", TYPES)
def test_fewer_columns_than_a_tile_has_meet_no_bank_twice(name: str, n: int) -> None:
    product = replace(TYPES[name], shape=(64, n, 64))
    config = SMALL | {"tile_n": 64 if n <= 64 else 128, "stages": 1}
    report = simulated(product, scheduled(product, config))
    assert report.bank_conflicts == 0
    assert report.hazards == []


@pytest.mark.costly
@pytest.mark.matrix
@pytest.mark.parametrize("k_major", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_swizzled_copies_take_one_wavefront_a_line(name: str, k_major: bool) -> None:
    """As few as there can be: each brings all that is asked for of one line of global memory."""
    k = 128 // itemsize(TYPES[name].operand)
    for depth in (k, k // 2):
        product = replace(
            TYPES[name], shape=(64, 64, 2 * k), a_transposed=not k_major, b_transposed=k_major
        )
        config = SMALL | {"tile_k": depth, "stages": 2}
        report = simulated(product, scheduled(product, config))
        copies = [x for x in report.accesses if x.kind == "cp.async"]
        # Rows along K have 128 bytes, or 64; others lie one behind the other, whatever the depth.
        a_line = min(128, depth * 128 // k) if k_major else 128
        assert sum(x.wavefronts for x in copies) == sum(x.bytes for x in copies) // a_line
        assert report.bank_conflicts == 0


@pytest.mark.parametrize("stages", [1, 3])
def test_padded_rows_are_copied_whole(stages: int) -> None:
    """Their asynchronous copies take 10.5 wavefronts a request; by columns they would take 15."""
    product = replace(TYPES["f16"], shape=(128, 128, 128), b_transposed=True)
    config = SMALL | {"tile_k": 64, "stages": stages, "swizzle": "pad"}
    report = simulated(product, scheduled(product, config))
    kind = "cp.async" if stages > 1 else "store"
    copies = [x for x in report.accesses if x.kind == kind and x.vector_bytes == 16]
    copies = [x for x in copies if x.scope == "shared.dyn"]
    assert copies
    a_request = {x.wavefronts / x.requests for x in copies}
    assert a_request == {10.5 if stages > 1 else 4.0}
    assert report.bank_conflicts == 0


def shared_size(sch: s_tir.Schedule) -> int:
    return sum(kernel_bytes(sch.mod))


def emitted(config: dict[str, Any]) -> str:
    product = replace(TYPES["f16"], shape=(512, 512, 512), b_transposed=True)
    return cuda_text(scheduled(product, config))


def loop_along_k(kernel: str) -> str:
    """Its first loop, up to the brace that ends it; the second one stores the result."""
    start = kernel.index("{", kernel.index("\n  for (int "))
    depth = 0
    for end in range(start, len(kernel)):
        depth += {"{": 1, "}": -1}.get(kernel[end], 0)
        if depth == 0:
            return kernel[start:end]
    raise AssertionError("no end of the loop")


@pytest.mark.costly
@pytest.mark.parametrize("b_transposed", [False, True])
def test_slices_of_operands_are_copied_by_16_bytes_as_whole_ones_are(b_transposed: bool) -> None:
    product = replace(TYPES["f16"], shape=(96, 256, 512), b_transposed=b_transposed)
    texts = (cuda_text(scheduled(product, DEFAULT | {"split_k": n})) for n in (1, 2))
    whole, sliced = (text.count("cg_shared_global_16(") for text in texts)
    assert sliced == whole > 0


TILES = [
    {"tile_m": 128, "tile_n": 256, "tile_k": 32, "warps_n": 4},
    {"tile_m": 128, "tile_n": 128, "tile_k": 64},
]


@pytest.mark.costly
@pytest.mark.matrix
@pytest.mark.parametrize(("stages", "prefetch"), [(2, 0), (3, 0), (4, 0), (6, 0), (3, 1), (4, 1)])
@pytest.mark.parametrize("tile", TILES)
def test_steady_state_has_one_barrier_one_wait_and_wide_copies(
    tile: dict[str, int], stages: int, prefetch: int
) -> None:
    config = DEFAULT | tile | {"stages": stages, "prefetch": prefetch}
    kernel = emitted(config).partition("main_kernel")[2]
    loop = loop_along_k(kernel)
    # Products of 16 x 8 x 16 in a warp's 64 x 64 x tile_k.
    assert loop.count("mma.sync") == 4 * 8 * config["tile_k"] // 16
    assert loop.count("__syncthreads()") == 1
    assert re.findall(r"wait_group_(\d)\(\)", loop) == [str(stages - 2)]
    threads = 32 * config["warps_m"] * config["warps_n"]
    copied = (config["tile_m"] + config["tile_n"]) * config["tile_k"] * 2
    assert loop.count("cp_async_cg_async_cg_shared_global_16(") == copied // 16 // threads
    assert not re.search(r"cp_async_ca|shared_global_[48]\(", kernel)
    # Rows 16 apart lie a constant apart; only the step along K goes into the XOR.
    assert " ^ " in loop


#: Warps of 64 x 96 and of 96 x 64.
WIDE = [
    {"tile_m": 256, "tile_n": 192, "tile_k": 32, "warps_m": 4},
    {"tile_m": 192, "tile_n": 256, "tile_k": 64, "warps_n": 4},
]


@pytest.mark.costly
@pytest.mark.parametrize("tile", WIDE)
def test_fragments_of_tiles_of_96_lie_a_constant_apart(tile: dict[str, int]) -> None:
    """Rows of warp and of tile share bits; the tile's are added outside the XOR all the same."""
    config = DEFAULT | tile | {"stages": 3, "prefetch": 0}
    kernel = emitted(config).partition("main_kernel")[2]
    loop = kernel[kernel.index("for (int k_0_0") :]
    assert " ^ " in loop
    assert not re.search(r"\+ \d+\) \^", loop)
