"""Tables of the GEMM's times, from times made up for the purpose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks import gemm
from benchmarks.gemm_candidates import PARTS, part_cases
from benchmarks.gemm_kernels import Case
from benchmarks.gemm_tables import depths, overview, swizzles, table
from benchmarks.stock_tvm import CANDIDATES

#: 2 * 1000^3 operations: a millisecond is 2 TFLOPS.
SHAPE = (1000, 1000, 1000)
TILE = "tile_m=128 tile_n=128"


def row(config: str, *milliseconds: float, blocks: int = 2) -> dict[str, Any]:
    seconds = sorted(ms / 1e3 for ms in milliseconds)
    facts = {"registers": 168, "spill_bytes": 0, "shared_bytes": 32768, "blocks_computed": blocks}
    timed = {"seconds": seconds[1], "all_seconds": seconds, "tflops": 2e-3 / seconds[1]}
    return {"config": config, "error": "", "blocks_per_sm": blocks, **facts, **timed}


def group(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"shape": SHAPE, "type": "float16", "layout": "nt", "rows": list(rows)}


def test_depths_give_every_version_its_occupancy_speed_and_ratio() -> None:
    found = depths(
        group(
            row(f"{TILE} stages=4 prefetch=1", 0.5, 0.6, 0.5, blocks=1),
            row(f"{TILE} stages=1 prefetch=1", 1.0, 1.0, 2.0, blocks=3),
            row(f"{TILE} stages=2 prefetch=1", 0.8, 0.8, 0.8),
            row(f"{TILE} stages=3 prefetch=0", 0.1, 0.1, 0.1),
            {"config": "cuBLAS", "error": "", "tflops": 9.0},
        )
    ).splitlines()
    assert found[0] == f"versions of {TILE} prefetch=1"
    assert [line.split()[0] for line in found[1:4]] == ["N=1", "N=2", "N=4"]
    assert "3 blocks a multiprocessor (computed 3)" in found[1]
    assert found[1].endswith("2.0 (  1.0 to   2.0) TFLOPS  1.000x")
    assert found[3].endswith("4.0 (  3.3 to   4.0) TFLOPS  2.000x")
    assert found[4] == "  best N=4 over N=1: 2.000x; deepest N=4 holds 1 of 3 blocks"
    assert len(found) == 5  # one version alone is no family


def test_depths_of_kernels_that_were_only_compiled_have_no_times() -> None:
    rows = [row(f"{TILE} stages={n}", 1, 1, 1) for n in (1, 2)]
    for each in rows:
        del each["seconds"], each["all_seconds"], each["tflops"]
    found = depths({"shape": SHAPE, "rows": rows})
    assert "N=2  168 registers  32,768 B  2 blocks a multiprocessor" in found
    assert "TFLOPS" not in found
    assert "best" not in found


@pytest.mark.parametrize(
    ("xor", "pad", "verdict"),
    [
        ((1.0, 1.0, 1.0), (2.0, 2.0, 2.0), "-50.0% of pad's time, spread 0.0%: not slower"),
        ((1.0, 1.1, 1.2), (1.0, 1.0, 1.0), "+10.0% of pad's time, spread 20.0%: not slower"),
        ((1.0, 1.1, 1.1), (1.0, 1.0, 1.2), "+10.0% of pad's time, spread 20.0%: not slower"),
        ((1.1, 1.15, 1.2), (1.0, 1.0, 1.05), "+15.0% of pad's time, spread 10.0%: SLOWER"),
    ],
)
def test_xor_is_slower_only_beyond_the_spread(
    xor: tuple[float, ...], pad: tuple[float, ...], verdict: str
) -> None:
    found = swizzles(
        group(
            row(f"{TILE} stages=2 swizzle=xor", *xor),
            row(f"{TILE} stages=2 swizzle=pad", *pad),
            row(f"{TILE} stages=2 swizzle=none", 4, 4, 4),
            row(f"{TILE} stages=3 swizzle=xor", 1, 1, 1),
            row(f"{TILE} stages=3", 1, 1, 1),
        )
    ).splitlines()
    assert found[0] == f"swizzles of {TILE}, TFLOPS"
    assert len(found) == 2
    assert "none    0.5 (  0.5 to   0.5)" in found[1]
    assert found[1].endswith(verdict)


def test_a_wrong_kernel_is_compared_with_nothing() -> None:
    wrong = row(f"{TILE} stages=2 swizzle=pad", 1, 1, 1) | {"error": "5 elements differ"}
    assert not swizzles(group(row(f"{TILE} stages=2 swizzle=xor", 1, 1, 1), wrong))


def test_the_overview_names_the_best_of_stock_tvm_as_a_peer() -> None:
    rows = [row("stock TVM a", 1.0, 1.0, 1.0), row("stock TVM b", 0.8, 0.8, 0.8)]
    text = overview([group(row("ours", 0.5, 0.5, 0.5), row("cuBLAS", 0.4, 0.4, 0.4), *rows)])
    assert "ours is 1.60x of the best of 2 of stock TVM b" in text
    assert "0.800  ours" in text
    assert "WRONG" not in table("title", rows)


def test_the_parts_hold_every_depth_and_every_swizzle_of_the_same_tile() -> None:
    modes: dict[str, set[str]] = {}
    for case in part_cases(["swizzles"]):
        rest, _, mode = case.config.partition(" swizzle=")
        modes.setdefault(rest, set()).add(mode)
    assert len(modes) == 8
    assert all(found == {"xor", "pad", "none"} for found in modes.values())
    assert sum(case.config.startswith("stock TVM") for case in PARTS["stock"]) >= 6
    assert not any(case.config.startswith("stock TVM") for case in PARTS["stages"])
    assert len(part_cases(["stages", "stages"])) == len(PARTS["stages"])


class _Fake:
    """A product that no GPU runs."""

    def __init__(self, case: Case, image: bytes, facts: dict[str, Any]) -> None:
        self.case = case

    def blocks_per_sm(self) -> int:
        return 2

    def error(self) -> str:
        return "3 elements differ" if "stages=6" in self.case.config else ""


def _fake_times(calls: dict[str, Any], rounds: int) -> dict[str, tuple[float, list[float]]]:
    return {name: (2e-4, [1e-4, 2e-4, 3e-4][:rounds]) for name in calls}


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"registers": 168, "spill_bytes": 0, "shared_bytes": 65536, "block": (32, 2, 2)}
    for name, value in {
        "Product": _Fake,
        "operands": lambda case: (None, None),
        "torch_product": lambda case, a, b: len,
        "_call": lambda product, a, b: len,
        "medians": _fake_times,
        "peak": lambda: 600.0,
        "compile_all": lambda cases, folder, processes: [],
        "load": lambda case, folder: (b"", facts),
        "environment": dict,
    }.items():
        monkeypatch.setattr(gemm, name, value)


@pytest.mark.usefixtures("fakes")
def test_one_part_is_timed_written_and_printed(tmp_path: Path) -> None:
    out = tmp_path / "times.json"
    ran = CliRunner().invoke(gemm.app, ["time", "--only", "stock", "--out", str(out)])
    assert ran.exit_code == 0, ran.output
    (only,) = json.loads(out.read_text())["groups"]
    assert only["shape"] == [4096, 4096, 4096]
    assert {len(r["all_seconds"]) for r in only["rows"]} == {3}
    assert len(only["rows"]) == len(PARTS["stock"]) + 1
    assert f"ours is 1.00x of the best of {len(CANDIDATES)} of stock TVM" in ran.output


@pytest.mark.usefixtures("fakes")
def test_a_wrong_kernel_fails_the_run_and_is_shown() -> None:
    ran = CliRunner().invoke(gemm.app, ["time", "--only", "stages", "--only", "swizzles"])
    assert ran.exit_code == 1
    assert "WRONG: 3 elements differ" in ran.output
    assert ran.output.count("best N=") == 10
    assert ran.output.count("of pad's time") == 8


@pytest.mark.usefixtures("fakes")
def test_compile_prints_the_occupancy_that_the_kernels_should_have() -> None:
    ran = CliRunner().invoke(gemm.app, ["compile", "--only", "stages"])
    assert ran.exit_code == 0, ran.output
    assert "? blocks a multiprocessor (computed 3)" in ran.output


def test_a_part_that_is_not_there_is_refused() -> None:
    ran = CliRunner().invoke(gemm.app, ["time", "--only", "everything"])
    assert ran.exit_code == 2
    assert "There is no part everything" in ran.output
