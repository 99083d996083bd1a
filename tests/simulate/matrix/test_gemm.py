"""TVM's tensorized GEMMs on the simulated GPU: results, wavefronts, hazards."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.programs import kernels
from tests.programs.tensor_kernels import CASES, gemm
from tvm_layout_ext.build import device_program
from tvm_layout_ext.simulate import Report, simulate

SIZE = 128
BLOCKS, WARPS = 4, 4
#: Two tiles of A a warp, for each of 4 * 2 steps along K; as many of B.
LOADS = BLOCKS * WARPS * 8 * 2


def inputs(dtype: str, size: int = SIZE) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    if dtype == "int8":
        return tuple(rng.integers(-128, 128, (size, size), dtype=np.int8) for _ in "AB")
    kind = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
    return tuple(rng.standard_normal((size, size)).astype(kind) for _ in "AB")


def reference(name: str, a: Any, b: Any) -> tuple[Any, Any]:
    """The product, and the sums of its terms' sizes."""
    left, right = a.astype(np.float64), b.astype(np.float64)
    right = right.T if CASES[name].trans_b else right
    return left @ right, np.abs(left) @ np.abs(right)


def ldmatrix(report: Report) -> dict[str, Any]:
    return {a.buffer.split("_")[0]: a for a in report.accesses if a.kind == "ldmatrix"}


@pytest.mark.matrix
@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_gemm_is_right(name: str, marked: bool) -> None:
    case = CASES[name]
    a, b = inputs(case.dtype)
    report = simulate(gemm(name, SIZE, marked=marked), a, b, None)
    assert report.hazards == []
    assert report.redundant == []
    expected, sizes = reference(name, a, b)
    if case.total == "int32":
        np.testing.assert_array_equal(report.outputs["C"], expected)
        return
    # As matrix_product says: one rounding an instruction.
    bits = 24 if case.total == "float32" else 11
    error = np.abs(report.outputs["C"].astype(np.float64) - expected)
    assert (error <= SIZE / case.k * 2.0**-bits * sizes).all()


@pytest.mark.parametrize("scope", ["f16", "f16 dyn"])
def test_wavefronts_without_padding(scope: str) -> None:
    report = simulate(gemm(scope), *inputs("float16"), None)
    found = ldmatrix(report)
    # Rows of A are 64 bytes apart, so 8 rows meet by 4; rows of B 128 bytes, so all 8 meet.
    assert (found["A"].requests, found["A"].wavefronts) == (LOADS, LOADS * 4 * 4)
    assert (found["B"].requests, found["B"].wavefronts) == (LOADS, LOADS * 4 * 8)
    assert found["A"].bank_conflicts + found["B"].bank_conflicts == LOADS * 4 * (3 + 7)


def test_padding_takes_all_conflicts_of_the_loads_away() -> None:
    report = simulate(gemm("f16", padding=8), *inputs("float16"), None)
    found = ldmatrix(report)
    assert {a: f.wavefronts for a, f in found.items()} == {"A": LOADS * 4, "B": LOADS * 4}


def test_rows_of_bytes_are_counted_as_bytes() -> None:
    found = ldmatrix(simulate(gemm("i8 trans"), *inputs("int8"), None))
    # 32 bytes a row: 8 rows meet by 2.
    assert found["A"].wavefronts == found["B"].wavefronts == LOADS // 2 * 4 * 2


@pytest.mark.parametrize(
    ("call", "which", "buffer"),
    [("tirx.ptx_legacy.ldmatrix", 1, "B_shared_warp"), ("tirx.mma_fill_legacy", 0, "C_warp")],
)
def test_registers_that_nothing_wrote_are_poison(call: str, which: int, buffer: str) -> None:
    program = kernels.without(device_program(gemm("f16")), call, which)
    report = simulate(program, *inputs("float16"), None)
    assert {(h.kind, h.buffer) for h in report.hazards} == {("poison", buffer)}
