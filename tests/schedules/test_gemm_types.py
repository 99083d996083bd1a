"""Products of every type that tensor cores multiply, B stored K x N (``gemm``) or N x K."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from typer.testing import CliRunner

import tvm_layout_ext as tlx
from tests.schedules.running import H200, cuda_of, kernel_bytes, require_no_spills, run
from tests.tune.helpers import make_record
from tvm_layout_ext import decisions, te
from tvm_layout_ext.cli import app
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.schedules import gemm, gemm_nt, matmul
from tvm_layout_ext.tune import Log, Record
from tvm_layout_ext.tune.measure import environment
from tvm_layout_ext.tune.measure.verify import WrongResultError, require_close
from tvm_layout_ext.tune.space.functions import bare
from tvm_layout_ext.tune.space.knobs import Config
from tvm_layout_ext.tune.space.recognise import recognise
from tvm_layout_ext.tune.space.task import Task, make_task

#: Types beside the two that were swept.
NEW = ("float32", "int8", "uint8", "float8_e4m3fn", "float8_e5m2")
FLOATS = ("float32", "float8_e4m3fn", "float8_e5m2")
WORK = [*(("gemm", dtype) for dtype in NEW), *(("gemm_nt", dtype) for dtype in gemm.DTYPES)]
LARGE = (8192, 8192, 8192)


@pytest.mark.matrix
@pytest.mark.parametrize("shape", [(100, 72, 96), (17, 33, 70)])
@pytest.mark.parametrize("swizzle", ["auto", "xor", "pad", "none"])
@pytest.mark.parametrize(("name", "dtype"), WORK)
def test_results_are_numpys_under_every_swizzle(
    name: str, dtype: str, swizzle: str, shape: tuple[int, int, int]
) -> None:
    task = make_task(name, shape, dtype)
    report = run(task, task.space.default() | {"swizzle": swizzle}, 3)
    assert report.hazards == []
    assert swizzle == "none" or report.bank_conflicts == 0


@pytest.mark.parametrize("dtype", gemm.DTYPES)
def test_the_reference_is_that_of_the_other_layout(dtype: str) -> None:
    a, b = gemm_nt.OPERATOR.inputs((24, 40, 32), dtype, np.random.default_rng(7))
    want = gemm.OPERATOR.reference(a, np.ascontiguousarray(b.T))
    np.testing.assert_array_equal(gemm_nt.OPERATOR.reference(a, b), want)


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
    ("shape", "dtype", "count", "digest"),
    [
        ((4096, 4096, 4096), "float16", 1992, "3b0d354f3f4f9a0a"),
        ((128, 4096, 4096), "float16", 2857, "469c0bb09133a761"),
        ((64, 64, 64), "float16", 560, "33eaa352478ce3c8"),
        ((64, 64, 64), "float32", 816, "1ee5bee221cead4c"),
        ((64, 64, 64), "int8", 400, "24dac9e0ca0554d4"),
        ((64, 64, 64), "float8_e4m3fn", 340, "7a404f5d26efd3de"),
    ],
)
def test_spaces_that_sweeps_name_by_index_stay_as_they_are(
    shape: tuple[int, int, int], dtype: str, count: int, digest: str
) -> None:
    legal = make_task("gemm", shape, dtype).space.legal
    text = json.dumps(legal).encode()
    assert (len(legal), hashlib.sha256(text).hexdigest()[:16]) == (count, digest)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_spaces_of_halves_are_those_of_the_other_layout(dtype: str) -> None:
    nt, nn = (make_task(name, (96, 128, 160), dtype).space for name in ("gemm_nt", "gemm"))
    assert (nt.legal, nt.default()) == (nn.legal, nn.default())


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


@pytest.mark.parametrize("dtype", ["float32", "int8", "float16"])
def test_defaults_are_the_fastest_measured_tiles_where_they_fill_the_machine(dtype: str) -> None:
    def tile(shape: tuple[int, int, int]) -> list[Any]:
        config = make_task("gemm_nt", shape, dtype).space.default()
        names = ("tile_m", "tile_n", "tile_k", "warps_m", "warps_n", "stages", "prefetch")
        return [config[name] for name in names]

    deep = 128 // np.dtype(dtype).itemsize
    small = [128, 128, max(32, 64 // np.dtype(dtype).itemsize), 2, 2, 4, 1]
    large = small if dtype == "float16" else [256, 128, deep, 4, 2, 3, 1]
    # 8 x 15 tiles of 256 x 128 are nine tenths of 132 multiprocessors, 8 x 14 are not.
    assert tile((2048, 1920, 1024)) == large
    assert tile((2048, 1792, 1024)) == small


@pytest.mark.parametrize(("name", "dtype"), WORK)
@pytest.mark.parametrize("swizzle", ["auto", "pad"])
@pytest.mark.parametrize("split_k", [1, 2])
@pytest.mark.matrix
def test_stated_bytes_are_those_of_the_kernels(
    name: str, dtype: str, swizzle: str, split_k: int
) -> None:
    task = make_task(name, (256, 256, 512), dtype)
    config = task.space.default() | {"swizzle": swizzle, "stages": 2, "split_k": split_k}
    stated = gemm.shared_bytes(dtype, config, b_transposed=name == "gemm_nt")
    assert stated == max(kernel_bytes(task.module(config)))


def test_rows_of_the_tile_are_padded_as_they_lie() -> None:
    """Three versions of 256 + 128 rows of A and B, each with 16 bytes more."""
    config = gemm.OPERATOR.default_config() | {
        "tile_m": 256, "tile_k": 128, "stages": 3, "warps_m": 4, "swizzle": "pad"
    }  # fmt: skip
    assert gemm.shared_bytes("int8", config, b_transposed=True) == 3 * (256 + 128) * (128 + 16)
    # B stored K x N has 128 rows of 128 + 8 bytes: its elements are loaded one by one.
    assert gemm.shared_bytes("int8", config) == 3 * (256 * (128 + 16) + 128 * (128 + 8))


@pytest.mark.parametrize("dtype", gemm.DTYPES)
def test_layouts_are_told_apart(dtype: str) -> None:
    shape = (96, 96, 96)
    for own, other in (("gemm", "gemm_nt"), ("gemm_nt", "gemm")):
        func = make_task(own, shape, dtype).unscheduled["main"]
        found = recognise(func, own)
        assert found is not None
        assert (found[0].name, *found[1:]) == (own, shape, dtype)
        assert recognise(func, other) is None


def timed(task: Task, config: Config) -> Record:
    """A record of the GPU's."""
    return make_record(
        workload=task.workload, config=config, times=(1e-5,), median=1e-5, conflict_model=None,
        runner="cuda", device="NVIDIA H200", versions=environment.versions(),
    )  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), [("gemm", "float32"), ("gemm_nt", "int8")])
def test_a_record_is_found_for_the_function_and_for_other_shapes(
    name: str, dtype: str, tmp_path: Path
) -> None:
    task = make_task(name, (128, 128, 128), dtype)
    config = task.space.default() | {"stages": 2}
    Log(tmp_path).append(timed(task, config))
    for shape, told in (((128, 128, 128), "Record "), ((192, 128, 256), "No record of ")):
        other = make_task(name, shape, dtype)
        with decisions.collect() as made:
            found = tlx.apply_best(other.unscheduled, tmp_path, H200)
        wanted = other.module(config)
        assert tvm_ffi.structural_equal(bare(found["main"]), bare(wanted["main"])), made
        (text,) = (one.text for one in made if one.maker == "ApplyBest")
        assert text.startswith(told)
        assert f"the nearest, {name} 128x128x128" in text or shape == task.shape
    third = make_task({"gemm": "gemm_nt"}.get(name, "gemm"), (192, 128, 256), dtype).unscheduled
    assert not tlx.apply_best(third, tmp_path, H200)["main"].attrs.get("tirx.is_scheduled", 0)


@pytest.mark.nvcc
@pytest.mark.matrix
@pytest.mark.parametrize(("name", "dtype"), WORK)
def test_the_default_spills_no_register(name: str, dtype: str, tmp_path: Path) -> None:
    task = make_task(name, LARGE, dtype)
    require_no_spills(cuda_of(task.module(task.space.default())), tmp_path)
