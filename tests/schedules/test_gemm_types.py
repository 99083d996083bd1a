"""The operator ``gemm`` of every type that tensor cores multiply: results, spaces, refusals."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from typer.testing import CliRunner

import tvm_layout_ext as tlx
from tests.tune.helpers import make_record
from tvm_layout_ext import decisions, te
from tvm_layout_ext.build import shared_buffers
from tvm_layout_ext.cli import app
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.schedules import gemm, matmul
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.tune import Log
from tvm_layout_ext.tune.measure import environment
from tvm_layout_ext.tune.measure.verify import WrongResultError, poison, require_close
from tvm_layout_ext.tune.space.functions import bare
from tvm_layout_ext.tune.space.recognise import recognise
from tvm_layout_ext.tune.space.task import make_task

#: Types beside the two that were swept.
NEW = ("float32", "int8", "uint8", "float8_e4m3fn", "float8_e5m2")
FLOATS = ("float32", "float8_e4m3fn", "float8_e5m2")


@pytest.mark.matrix
@pytest.mark.parametrize("shape", [(100, 72, 96), (17, 33, 70)])
@pytest.mark.parametrize("swizzle", ["auto", "pad", "none"])
@pytest.mark.parametrize("dtype", NEW)
def test_results_are_numpys_under_every_swizzle(
    dtype: str, swizzle: str, shape: tuple[int, int, int]
) -> None:
    task = make_task("gemm", shape, dtype)
    config = task.space.default() | {"swizzle": swizzle}
    inputs = task.draw(3)
    want = task.operator.reference(*inputs)
    report = simulate(task.module(config), *inputs, poison(want.shape, str(want.dtype)))
    (got,) = report.outputs.values()
    assert got.dtype == want.dtype
    require_close(got, want, task.operator.tolerance(shape, dtype))
    assert report.hazards == []
    assert swizzle == "none" or report.bank_conflicts == 0


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", NEW)
def test_tuned_from_the_command_line(dtype: str, tmp_path: Path) -> None:
    words = ["tune", "gemm", "--shape", "64", "64", "64", "--dtype", dtype]
    words += ["--trials", "2", "--runner", "simulate", "--log", str(tmp_path)]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 0, ran.output
    records = Log(tmp_path).read().records
    assert {record.status for record in records} == {"ok"}
    assert any(record.verified_on == f"gemm 64x64x64 {dtype}" for record in records)


def test_a_type_that_tensor_cores_lack_is_refused_with_those_they_have(tmp_path: Path) -> None:
    words = ["tune", "gemm", "--shape", "64", "64", "64", "--dtype", "float64"]
    ran = CliRunner().invoke(app, [*words, "--log", str(tmp_path)])
    assert ran.exit_code == 2
    told = " ".join(ran.output.split())
    assert "gemm has no dtype float64; it has float16, bfloat16, float32, int8, uint8" in told


@pytest.mark.parametrize(
    ("shape", "count", "digest"),
    [
        ((4096, 4096, 4096), 1992, "3b0d354f3f4f9a0a"),
        ((128, 4096, 4096), 2857, "469c0bb09133a761"),
        ((64, 64, 64), 560, "33eaa352478ce3c8"),
    ],
)
def test_spaces_that_sweeps_name_by_index_stay_as_they_are(
    shape: tuple[int, int, int], count: int, digest: str
) -> None:
    every = make_task("gemm", shape, "float16").space.legal
    legal = [dict(config) for config in every if config["wgmma"] == "none"]
    assert every[: len(legal)] == legal
    for config in legal:
        del config["wgmma"]
    text = json.dumps(legal).encode()
    assert (len(legal), hashlib.sha256(text).hexdigest()[:16]) == (count, digest)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_of_halves_are_those_of_older_records(dtype: str) -> None:
    shape = (96, 128, 160)
    new, old = (te.create_prim_func(one.compute(shape, dtype)) for one in (gemm, matmul))
    assert tvm_ffi.structural_equal(new, old)


def test_an_exact_product_is_not_taken_for_one_of_tf32() -> None:
    exact = matmul.OPERATOR.unscheduled((64, 64, 64), "float32")["main"]
    rounded = gemm.OPERATOR.unscheduled((64, 64, 64), "float32")["main"]
    assert recognise(exact, "gemm") is None
    assert recognise(rounded, "matmul") is None
    assert recognise(rounded, "gemm") is not None


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_integers_are_drawn_from_all_and_added_exactly(dtype: str) -> None:
    a, b = gemm.OPERATOR.inputs((40, 24, 4096), dtype, np.random.default_rng(5))
    info = np.iinfo(dtype)
    assert (a.min(), a.max()) == (info.min, info.max)
    got = gemm.OPERATOR.reference(a, b)
    assert got.dtype == np.int32
    assert (got == a.astype(np.int64) @ b.astype(np.int64)).all()
    assert gemm.OPERATOR.tolerance((40, 24, 4096), dtype) == gemm.tolerance((1, 1, 1), dtype)
    off = got.copy()
    off[3, 4] += 1
    with pytest.raises(WrongResultError, match="1 of 960 elements differ"):
        require_close(off, got, gemm.tolerance((40, 24, 4096), dtype))


def test_sums_of_integers_wrap_as_the_hardwares_do() -> None:
    a = np.full((1, 140_000), -128, np.int8)
    assert gemm.reference(a, a.T) == np.int64(140_000 * 128 * 128).astype(np.int32) < 0


def test_inputs_of_tf32_lose_nothing() -> None:
    a, b = gemm.OPERATOR.inputs((64, 48, 32), "float32", np.random.default_rng(5))
    for one in (a, b):
        assert not (one.view(np.uint32) & 0x1FFF).any()
        assert len(np.unique(one)) > 900
    assert abs(float(a.std()) - 1) < 0.1


@pytest.mark.parametrize("depth", [32, 512, 8192])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_term_that_is_missing_is_beyond_the_tolerance(dtype: str, depth: int) -> None:
    shape = (64, 64, depth)
    a, b = gemm.OPERATOR.inputs(shape, dtype, np.random.default_rng(5))
    want = gemm.reference(a, b)
    with pytest.raises(WrongResultError):
        require_close(gemm.reference(a[:, 1:], b[1:]), want, gemm.tolerance(shape, dtype))


@pytest.mark.parametrize("depth", [64, 4096, 16384])
def test_sums_that_are_cut_off_every_four_terms_are_within_the_tolerance(depth: int) -> None:
    shape = (48, 48, depth)
    a, b = gemm.OPERATOR.inputs(shape, "float32", np.random.default_rng(5))
    total = np.zeros(shape[:2], np.float32)
    for k in range(0, depth, 4):
        exact = total + a[:, k : k + 4].astype(np.float64) @ b[k : k + 4].astype(np.float64)
        near = exact.astype(np.float32)
        away = np.abs(near) > np.abs(exact)
        total = np.where(away, np.nextafter(near, np.float32(0)), near)
    require_close(total, gemm.reference(a, b), gemm.tolerance(shape, "float32"))


def test_a_step_of_a_tile_fits_instruction_and_lines() -> None:
    """Rows have 64 bytes or more along K, and whole instructions."""
    for dtype in ("float32", "int8"):
        depths = {config["tile_k"] for config in make_task("gemm", (512,) * 3, dtype).space.legal}
        assert depths == {k for k in (16, 32, 64, 128) if k * np.dtype(dtype).itemsize >= 64}


@pytest.mark.parametrize(
    ("dtype", "arch", "changes", "rule", "why"),
    [
        ("int8", "sm_90a", {"tile_k": 16}, "tile of instruction", "no multiple of the 32 of mma"),
        ("float8_e4m3fn", "sm_80", {"tile_k": 64}, "no instruction", "8.9; sm_80 is older"),
        ("int8", "sm_75", {"tile_k": 64}, "no instruction", "needs compute capability 8.0"),
        ("float32", "sm_80", {"tile_k": 64}, "shared memory", "need 262,144 bytes of 166,912"),
        # Four warps of 64 x 64: 128 sums, 128 registers of fragments that are widened, addresses.
        ("float8_e4m3fn", "sm_90a", {"tile_k": 64}, "registers", "about 276 .*; 255 are there"),
        (
            "int8", "sm_90a", {"tile_m": 256, "tile_k": 64, "warps_m": 4, "warps_n": 4},
            "registers", "about 132 .*; 128 are there",
        ),
    ],
)  # fmt: skip
def test_what_is_not_legal_names_its_rule(
    dtype: str, arch: str, changes: dict[str, Any], rule: str, why: str
) -> None:
    config = gemm.OPERATOR.default_config() | changes
    refusal = gemm.check((512, 512, 512), dtype, config, architecture(arch))
    assert refusal is not None
    assert refusal.rule == rule
    assert re.search(why, refusal.text)


def test_fp8_is_not_widened_where_the_hardware_has_it() -> None:
    config = gemm.OPERATOR.default_config() | {"tile_k": 64, "stages": 2}
    assert gemm.check((512, 512, 512), "float8_e4m3fn", config, architecture("sm_89")) is None


def test_fp8_takes_eight_warps_by_default_and_slices_where_they_pay() -> None:
    large, few = (
        make_task("gemm", (m, 4096, 4096), "float8_e4m3fn").space.default() for m in (4096, 64)
    )
    assert (large["tile_m"], large["warps_m"], large["warps_n"], large["split_k"]) == (128, 2, 4, 1)
    assert few["split_k"] > 1


@pytest.mark.parametrize("dtype", NEW)
@pytest.mark.parametrize("swizzle", ["auto", "pad"])
@pytest.mark.parametrize("split_k", [1, 2])
@pytest.mark.matrix
def test_stated_bytes_are_those_of_the_kernels(dtype: str, swizzle: str, split_k: int) -> None:
    task = make_task("gemm", (256, 256, 512), dtype)
    config = task.space.default() | {"swizzle": swizzle, "stages": 2, "split_k": split_k}
    program = tlx.device_program(task.module(config), target=tlx.cuda_target("sm_90a"))
    kernels = program.kernels.values()
    assert gemm.shared_bytes(dtype, config) == max(sum(shared_buffers(k).values()) for k in kernels)


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_a_record_is_found_for_the_function(dtype: str, tmp_path: Path) -> None:
    task = make_task("gemm", (64, 64, 64), dtype)
    record = make_record(
        workload=task.workload, config=task.space.default(), times=(1e-5,), median=1e-5,
        runner="cuda", device="NVIDIA H200", versions=environment.versions(), conflict_model=None,
    )  # fmt: skip
    Log(tmp_path).append(record)
    with decisions.collect() as made:
        found = tlx.apply_best(task.unscheduled, tmp_path, tlx.cuda_target("sm_90a"))
    wanted = task.module(task.space.default())
    assert tvm_ffi.structural_equal(bare(found["main"]), bare(wanted["main"])), made


@pytest.mark.nvcc
@pytest.mark.matrix
@pytest.mark.parametrize("dtype", NEW)
def test_the_default_spills_no_register(dtype: str, tmp_path: Path) -> None:
    task = make_task("gemm", (8192, 8192, 8192), dtype)
    built = tlx.build(task.module(task.space.default()), target=tlx.cuda_target("sm_90a"))
    (tmp_path / "kernel.cu").write_text(built.mod.imports[0].inspect_source())
    command = ["nvcc", "-arch=sm_90a", "-cubin", "-Xptxas", "-v", "-o", "kernel.cubin", "kernel.cu"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "0 bytes spill stores, 0 bytes spill loads" in ran.stderr
