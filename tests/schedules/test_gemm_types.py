"""Products of every type that tensor cores multiply, B stored K x N (``gemm``) or N x K."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pytest

from tests.schedules.running import run
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.schedules import gemm, gemm_nt, matmul
from tvm_layout_ext.tune.measure.reference.problem import WrongResultError, require_close
from tvm_layout_ext.tune.space.recognise import recognise
from tvm_layout_ext.tune.space.space import Space
from tvm_layout_ext.tune.space.task import make_task

#: Types beside the two that were swept.
NEW = ("float32", "int8", "uint8", "float8_e4m3fn", "float8_e5m2")
FLOATS = ("float32", "float8_e4m3fn", "float8_e5m2")
WORK = [*(("gemm", dtype) for dtype in NEW), *(("gemm_nt", dtype) for dtype in gemm.DTYPES)]


@pytest.mark.costly
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
    every = make_task("gemm", shape, dtype).space.legal
    legal = [dict(config) for config in every if config["wgmma"] == "none"]
    assert every[: len(legal)] == legal
    for config in legal:
        del config["wgmma"]
    text = json.dumps(legal).encode()
    assert (len(legal), hashlib.sha256(text).hexdigest()[:16]) == (count, digest)


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


def test_fp8_takes_eight_warps_by_default_and_slices_where_they_pay() -> None:
    large, few = (
        make_task("gemm", (m, 4096, 4096), "float8_e4m3fn").space.default() for m in (4096, 64)
    )
    assert (large["tile_m"], large["warps_m"], large["warps_n"], large["split_k"]) == (128, 2, 4, 1)
    assert few["split_k"] > 1


@pytest.mark.parametrize("dtype", ["float32", "int8", "float16"])
def test_defaults_are_the_fastest_measured_tiles_where_they_fill_the_machine(dtype: str) -> None:
    def tile(shape: tuple[int, int, int]) -> list[Any]:
        # Without wgmma, which sm_90a would take.
        config = Space(gemm_nt.OPERATOR, shape, dtype, architecture("sm_90")).default()
        names = ("tile_m", "tile_n", "tile_k", "warps_m", "warps_n", "stages", "prefetch")
        return [config[name] for name in names]

    deep = 128 // np.dtype(dtype).itemsize
    small = [128, 128, max(32, 64 // np.dtype(dtype).itemsize), 2, 2, 4, 1]
    large = small if dtype == "float16" else [256, 128, deep, 4, 2, 3, 1]
    # 8 x 15 tiles of 256 x 128 are nine tenths of 132 multiprocessors, 8 x 14 are not.
    assert tile((2048, 1920, 1024)) == large
    assert tile((2048, 1792, 1024)) == small
