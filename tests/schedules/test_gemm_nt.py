"""The operator ``gemm_nt``, B stored N x K: results, defaults, what it shares with ``gemm``."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi

import tvm_layout_ext as tlx
from tests.tune.helpers import make_record
from tvm_layout_ext import decisions
from tvm_layout_ext.build import shared_buffers
from tvm_layout_ext.schedules import gemm, gemm_nt
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.tune import Log
from tvm_layout_ext.tune.measure import environment
from tvm_layout_ext.tune.measure.verify import poison, require_close
from tvm_layout_ext.tune.space.functions import bare
from tvm_layout_ext.tune.space.recognise import recognise
from tvm_layout_ext.tune.space.task import make_task

LARGE = (8192, 8192, 8192)


@pytest.mark.matrix
@pytest.mark.parametrize("shape", [(100, 72, 96), (17, 33, 70)])
@pytest.mark.parametrize("swizzle", ["auto", "xor", "pad", "none"])
@pytest.mark.parametrize("dtype", gemm.DTYPES)
def test_results_are_numpys_under_every_swizzle(
    dtype: str, swizzle: str, shape: tuple[int, int, int]
) -> None:
    task = make_task("gemm_nt", shape, dtype)
    a, b = task.draw(3)
    assert (a.shape, b.shape) == ((shape[0], shape[2]), (shape[1], shape[2]))
    want = task.operator.reference(a, b)
    config = task.space.default() | {"swizzle": swizzle}
    report = simulate(task.module(config), a, b, poison(want.shape, str(want.dtype)))
    (got,) = report.outputs.values()
    require_close(got, want, task.operator.tolerance(shape, dtype))
    assert report.hazards == []
    assert swizzle == "none" or report.bank_conflicts == 0


@pytest.mark.parametrize("dtype", gemm.DTYPES)
def test_the_reference_is_that_of_the_other_layout(dtype: str) -> None:
    a, b = gemm_nt.OPERATOR.inputs((24, 40, 32), dtype, np.random.default_rng(7))
    want = gemm.OPERATOR.reference(a, np.ascontiguousarray(b.T))
    np.testing.assert_array_equal(gemm_nt.OPERATOR.reference(a, b), want)


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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_spaces_of_halves_are_those_of_the_other_layout(dtype: str) -> None:
    nt, nn = (make_task(name, (96, 128, 160), dtype).space for name in ("gemm_nt", "gemm"))
    plain = [[one for one in each.legal if one["wgmma"] == "none"] for each in (nt, nn)]
    assert plain[0] == plain[1]
    assert nt.default() == nn.default()


@pytest.mark.parametrize(
    ("dtype", "count", "digest"),
    [
        ("float32", 816, "1ee5bee221cead4c"),
        ("int8", 400, "24dac9e0ca0554d4"),
        ("float8_e4m3fn", 340, "7a404f5d26efd3de"),
    ],
)
def test_spaces_of_the_other_layout_stay_as_they_are(dtype: str, count: int, digest: str) -> None:
    legal = make_task("gemm", (64, 64, 64), dtype).space.legal
    assert {config.pop("wgmma") for config in legal} == {"none"}
    text = json.dumps(legal).encode()
    assert (len(legal), hashlib.sha256(text).hexdigest()[:16]) == (count, digest)


@pytest.mark.parametrize("swizzle", ["auto", "pad"])
@pytest.mark.parametrize("dtype", ["float32", "int8", "float16", "float8_e5m2"])
@pytest.mark.matrix
def test_stated_bytes_are_those_of_the_kernel(dtype: str, swizzle: str) -> None:
    task = make_task("gemm_nt", (256, 256, 512), dtype)
    config = task.space.default() | {"swizzle": swizzle, "stages": 2, "split_k": 1}
    program = tlx.device_program(task.module(config), target=tlx.cuda_target("sm_90a"))
    (kernel,) = program.kernels.values()
    stated = gemm.shared_bytes(dtype, config, b_transposed=True)
    assert stated == sum(shared_buffers(kernel).values())


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


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_another_shape_takes_the_nearest_record(dtype: str, tmp_path: Path) -> None:
    recorded = make_task("gemm_nt", (128, 128, 128), dtype)
    config = recorded.space.default() | {"stages": 2}
    record = make_record(
        workload=recorded.workload, config=config, times=(1e-5,), median=1e-5,
        runner="cuda", device="NVIDIA H200", versions=environment.versions(), conflict_model=None,
    )  # fmt: skip
    Log(tmp_path).append(record)
    task = make_task("gemm_nt", (192, 128, 256), dtype)
    with decisions.collect() as made:
        found = tlx.apply_best(task.unscheduled, tmp_path, tlx.cuda_target("sm_90a"))
    assert tvm_ffi.structural_equal(bare(found["main"]), bare(task.module(config)["main"])), made
    (told,) = (one.text for one in made if one.maker == "ApplyBest")
    assert "the nearest, gemm_nt 128x128x128" in told
    other = make_task("gemm", (192, 128, 256), dtype).unscheduled
    kept = tlx.apply_best(other, tmp_path, tlx.cuda_target("sm_90a"))
    assert not kept["main"].attrs.get("tirx.is_scheduled", 0)


@pytest.mark.nvcc
@pytest.mark.parametrize("dtype", gemm.DTYPES)
@pytest.mark.matrix
def test_the_default_spills_no_register(dtype: str, tmp_path: Path) -> None:
    task = make_task("gemm_nt", LARGE, dtype)
    built = tlx.build(task.module(task.space.default()), target=tlx.cuda_target("sm_90a"))
    (tmp_path / "kernel.cu").write_text(built.mod.imports[0].inspect_source())
    command = ["nvcc", "-arch=sm_90a", "-cubin", "-Xptxas", "-v", "-o", "kernel.cubin", "kernel.cu"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "0 bytes spill stores, 0 bytes spill loads" in ran.stderr
