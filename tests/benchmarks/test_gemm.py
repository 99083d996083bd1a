"""The GEMM's cases, its tables from times made up for the purpose, and blocks a multiprocessor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gemm_candidates import all_cases, summary_cases
from benchmarks.gemm_kernels import tuned
from benchmarks.gemm_tables import depths, overview, swizzles
from benchmarks.stock_tvm import StockCase
from tvm_layout_ext.gpu.hardware import architecture, blocks_per_sm
from tvm_layout_ext.schedules import gemm

_TIMES = Path(__file__).parents[2] / "benchmarks" / "results" / "h200_gemm.json"
SM90 = architecture("sm_90a")
#: 2 * 1000^3 operations: a millisecond is 2 TFLOPS.
SHAPE = (1000, 1000, 1000)
TILE = "tile_m=128 tile_n=128"


def test_every_case_is_legal_and_says_whether_it_prefetches() -> None:
    for case in {*summary_cases(), *all_cases()}:
        if not isinstance(case, StockCase):
            dtype = "int8" if case.operand.startswith("float8") else case.operand
            assert gemm.check(case.shape, dtype, tuned(case.config), SM90) is None, case
            assert "prefetch=" in case.config


def row(config: str, *milliseconds: float, blocks: int = 2, error: str = "") -> dict[str, Any]:
    seconds = sorted(ms / 1e3 for ms in milliseconds)
    facts = {"registers": 168, "spill_bytes": 0, "shared_bytes": 32768, "blocks_computed": blocks}
    timed = {"seconds": seconds[1], "all_seconds": seconds, "tflops": 2e-3 / seconds[1]}
    return {"config": config, "error": error, "blocks_per_sm": blocks, **facts, **timed}


def group(*rows: dict[str, Any], dtype: str = "float16", layout: str = "nt") -> dict[str, Any]:
    return {"shape": SHAPE, "type": dtype, "layout": layout, "rows": list(rows)}


def steady(config: str, milliseconds: float, **more: Any) -> dict[str, Any]:
    return row(config, milliseconds, milliseconds, milliseconds, **more)


def test_the_overview_takes_the_best_right_row_and_means_over_float16_along_k() -> None:
    library, wrong = steady("cuBLAS", 0.4), steady("wrong", 0.1, error="5 elements differ")
    stock = [steady("stock TVM a", 1.0), steady("stock TVM b", 0.8)]
    ours = [steady("a", 1.0), steady("b", 0.5)]
    groups = [
        group(*ours, library, wrong, *stock),
        group(steady("a", 0.8), library),
        group(steady("a", 0.4), library, dtype="int8"),
        group(steady("a", 0.4), library, layout="nn"),
    ]
    text = overview(groups)
    assert "0.800  b" in text
    assert "ours is 1.60x of the best of 2 of stock TVM b" in text
    # The root of 0.8 * 0.5.
    assert "0.632 of cuBLAS, geometric mean over 2 shapes" in text
    assert "geometric" not in overview([group(*ours)])


def test_depths_give_every_version_its_occupancy_speed_and_ratio() -> None:
    found = depths(
        group(
            row(f"{TILE} stages=4 prefetch=1", 0.5, 0.6, 0.5, blocks=1),
            row(f"{TILE} stages=1 prefetch=1", 1.0, 1.0, 2.0, blocks=3),
            steady(f"{TILE} stages=3 prefetch=0", 0.1),
            {"config": "cuBLAS", "error": "", "tflops": 9.0},
        )
    ).splitlines()
    assert "3 blocks a multiprocessor (computed 3)" in found[1]
    assert found[1].endswith("2.0 (  1.0 to   2.0) TFLOPS  1.000x")
    assert found[2].endswith("4.0 (  3.3 to   4.0) TFLOPS  2.000x")
    assert found[3] == "  best N=4 over N=1: 2.000x; deepest N=4 holds 1 of 3 blocks"
    assert len(found) == 4  # one version alone is no family


@pytest.mark.parametrize(
    ("xor", "pad", "verdict"),
    [
        ((1.0, 1.0, 1.0), (2.0, 2.0, 2.0), "-50.0% of pad's time, spread 0.0%: not slower"),
        ((1.0, 1.1, 1.1), (1.0, 1.0, 1.2), "+10.0% of pad's time, spread 20.0%: not slower"),
        ((1.1, 1.15, 1.2), (1.0, 1.0, 1.05), "+15.0% of pad's time, spread 10.0%: SLOWER"),
    ],
)
def test_xor_is_slower_only_beyond_the_spread(
    xor: tuple[float, ...], pad: tuple[float, ...], verdict: str
) -> None:
    both = [row(f"{TILE} stages=2 swizzle={n}", *t) for n, t in (("xor", xor), ("pad", pad))]
    alone = steady(f"{TILE} stages=3 swizzle=xor", 1)
    _, line = swizzles(group(*both, alone)).splitlines()
    assert line.endswith(verdict)
    assert not swizzles(group(both[0], both[1] | {"error": "5 elements differ"}))


def test_blocks_that_a_multiprocessor_holds_are_those_that_the_driver_said() -> None:
    groups = json.loads(_TIMES.read_text())["groups"]
    rows = [row for group in groups for row in group["rows"] if "registers" in row]
    assert len(rows) >= 50
    for one in rows:
        config = tuned(one["config"].removeprefix("stock TVM ").split(" shared=")[0])
        threads = 32 * config["warps_m"] * config["warps_n"]
        computed = blocks_per_sm(SM90, threads, one["registers"], one["shared_bytes"])
        assert computed == one["blocks_per_sm"], one["config"]


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks"),
    [
        (1024, 16, 0, 2),
        (32, 16, 0, 32),
        (128, 255, 0, 2),
        (128, 32, 113 * 1024, 2),
        (128, 32, 113 * 1024 + 1, 1),
        (1024, 128, 0, 0),
    ],
)
def test_blocks_are_limited_by_threads_registers_shared_memory_and_their_number(
    threads: int, registers: int, shared: int, blocks: int
) -> None:
    assert blocks_per_sm(SM90, threads, registers, shared) == blocks
