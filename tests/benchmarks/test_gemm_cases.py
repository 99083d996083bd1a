"""The GEMM's cases and tables, and the variants of the ceiling, as far as no GPU is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import ceiling
from benchmarks.gemm_candidates import BEST, STAGED, TABLE, all_cases, summary_cases
from benchmarks.gemm_kernels import Case, tuned
from benchmarks.gemm_tables import overview
from benchmarks.stock_tvm import StockCase
from tvm_layout_ext.gpu.hardware import architecture, blocks_per_sm
from tvm_layout_ext.schedules import gemm

LIMIT = architecture("sm_90a").shared_per_block
_RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_RESULTS / f"{name}.json").read_text())
    return found


@pytest.mark.parametrize("cases", [summary_cases(), all_cases()], ids=["summary", "all"])
def test_every_case_is_legal_and_says_whether_it_prefetches(cases: list[Case]) -> None:
    for case in cases:
        if isinstance(case, StockCase):
            continue
        config = tuned(case.config)
        dtype = "int8" if case.operand.startswith("float8") else case.operand
        refusal = gemm.check(case.shape, dtype, config, architecture("sm_90a"))
        assert refusal is None, (case, refusal)
        assert "prefetch=" in case.config


def test_the_summary_has_the_best_at_every_shape_and_one_tile_at_every_depth() -> None:
    cases = summary_cases()
    assert len(set(cases)) == len(cases) < 110
    assert all(Case(shape, config) in cases for shape in TABLE for config in BEST)
    assert {tuned(config)["stages"] for config in STAGED} == set(range(1, 7))
    assert all(Case(TABLE[0], config) in cases for config in STAGED)
    assert {case.operand for case in cases} == {
        "float16", "bfloat16", "int8", "float32", "float8_e4m3fn"
    }  # fmt: skip


def group(ratios: dict[str, float], dtype: str = "float16", layout: str = "nt") -> dict[str, Any]:
    rows = [{"config": name, "tflops": 100 * x, "error": ""} for name, x in ratios.items()]
    return {"shape": (8, 8, 8), "type": dtype, "layout": layout, "rows": rows}


def test_the_overview_takes_the_best_right_row_of_each_group() -> None:
    first = group({"a": 0.5, "b": 0.4, "cuBLAS": 1.0})
    first["rows"].append({"config": "wrong", "tflops": 200.0, "error": "5 elements differ"})
    text = overview([first, group({"a": 0.3, "b": 0.8, "cuBLAS": 1.0})])
    lines = text.splitlines()
    assert lines[1].split()[-4:] == ["50.0", "100.0", "0.500", "a"]
    assert lines[2].split()[-2:] == ["0.800", "b"]
    assert "0.632 of cuBLAS, geometric mean over 2 shapes" in text


def test_the_overview_means_over_float16_stored_along_k_only_and_what_has_a_peer() -> None:
    groups = [group({"a": 0.5, "cuBLAS": 1.0}), group({"a": 0.9, "cuBLAS": 1.0}, "int8")]
    groups.append(group({"a": 0.9, "cuBLAS": 1.0}, layout="nn"))
    assert "0.500 of cuBLAS, geometric mean over 1 shapes" in overview(groups)
    alone = overview([group({"a": 0.5})])
    assert "geometric" not in alone
    assert "100" not in alone


def test_the_ceilings_variants_are_those_that_were_measured() -> None:
    rows = {row["name"]: row for row in result("h200_mma_ceiling")["rows"]}
    assert rows.keys() == {variant.name for variant in ceiling.VARIANTS} | {"cuBLAS"}
    for variant in ceiling.VARIANTS:
        defaults = {"MODE": ceiling.WHOLE}
        assert defaults | rows[variant.name]["macros"] == defaults | variant.macros
        assert not rows[variant.name]["wrong"]
        assert variant.shared * variant.macros.get("MINB", 1) <= LIMIT


def test_the_table_of_the_ceiling_has_a_line_a_row() -> None:
    rows = result("h200_mma_ceiling")["rows"]
    lines = ceiling.table(rows).splitlines()
    assert len(lines) == len(rows) + 1
    assert lines[-1] == " 737.2 cuBLAS"


def test_rows_of_the_sweep_are_ratios_to_cublas() -> None:
    record = result("h200_gemm_sweep_best")
    (library,) = (row["tflops"] for row in record["rows"] if row["config"] == "cuBLAS")
    for row in record["rows"]:
        assert row["tflops"] / library == pytest.approx(row["of_cublas"], abs=1e-3)


def test_blocks_that_a_multiprocessor_holds_are_those_that_the_driver_said() -> None:
    facts = architecture("sm_90a")
    rows = [
        row
        for group in result("h200_gemm")["groups"]
        for row in group["rows"]
        if "registers" in row
    ]
    assert len(rows) >= 50
    for row in rows:
        config = tuned(row["config"].removeprefix("stock TVM ").split(" shared=")[0])
        threads = 32 * config["warps_m"] * config["warps_n"]
        computed = blocks_per_sm(facts, threads, row["registers"], row["shared_bytes"])
        assert computed == row["blocks_per_sm"], row["config"]


def test_blocks_are_limited_by_each_of_threads_registers_shared_memory_and_their_number() -> None:
    facts = architecture("sm_90a")
    assert blocks_per_sm(facts, 1024, 16, 0) == 2
    assert blocks_per_sm(facts, 32, 16, 0) == 32
    assert blocks_per_sm(facts, 128, 255, 0) == 2
    assert blocks_per_sm(facts, 128, 32, 113 * 1024) == 2
    assert blocks_per_sm(facts, 128, 32, 113 * 1024 + 1) == 1
    assert blocks_per_sm(facts, 1024, 128, 0) == 0
