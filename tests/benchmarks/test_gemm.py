"""The GEMM's cases, its tables from times made up for the purpose, and blocks a multiprocessor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.gemm_candidates import all_cases, summary_cases
from benchmarks.gemm_kernels import tuned
from benchmarks.gemm_tables import overview
from benchmarks.stock_tvm import StockCase
from tvm_layout_ext.gpu.hardware import architecture, blocks_per_sm
from tvm_layout_ext.schedules import gemm

_TIMES = Path(__file__).parents[2] / "benchmarks" / "results" / "h200_gemm.json"
SM90 = architecture("sm_90a")
#: 2 * 1000^3 operations: a millisecond is 2 TFLOPS.
SHAPE = (1000, 1000, 1000)


def test_every_case_is_legal_and_says_whether_it_prefetches() -> None:
    for case in {*summary_cases(), *all_cases()}:
        if not isinstance(case, StockCase):
            dtype = "int8" if case.operand.startswith("float8") else case.operand
            assert gemm.check(case.shape, dtype, tuned(case.config), SM90) is None, case
            assert "prefetch=" in case.config


def row(config: str, milliseconds: float, error: str = "") -> dict[str, Any]:
    timed = {"seconds": milliseconds / 1e3, "tflops": 2 / milliseconds}
    return {"config": config, "error": error, **timed}


def group(*rows: dict[str, Any], dtype: str = "float16", layout: str = "nt") -> dict[str, Any]:
    return {"shape": SHAPE, "type": dtype, "layout": layout, "rows": list(rows)}


def test_the_overview_takes_the_best_right_row_and_means_over_float16_along_k() -> None:
    library, wrong = row("cuBLAS", 0.4), row("wrong", 0.1, error="5 elements differ")
    stock = [row("stock TVM a", 1.0), row("stock TVM b", 0.8)]
    ours = [row("a", 1.0), row("b", 0.5)]
    groups = [
        group(*ours, library, wrong, *stock),
        group(row("a", 0.8), library),
        group(row("a", 0.4), library, dtype="int8"),
        group(row("a", 0.4), library, layout="nn"),
    ]
    text = overview(groups)
    assert "0.800  b" in text
    assert "ours is 1.60x of the best of 2 of stock TVM b" in text
    # The root of 0.8 * 0.5.
    assert "0.632 of cuBLAS, geometric mean over 2 shapes" in text
    assert "geometric" not in overview([group(*ours)])


def test_blocks_that_a_multiprocessor_holds_are_those_that_the_driver_said() -> None:
    groups = json.loads(_TIMES.read_text())["groups"]
    rows = [row for group in groups for row in group["rows"] if "registers" in row]
    assert len(rows) >= 50
    for one in rows:
        config = tuned(one["config"].removeprefix("stock TVM ").split(" shared=")[0])
        threads = 32 * config["warps_m"] * config["warps_n"]
        computed = blocks_per_sm(SM90, threads, one["registers"], one["shared_bytes"])
        assert computed == one["blocks_per_sm"], one["config"]
