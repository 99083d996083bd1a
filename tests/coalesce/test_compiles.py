"""Mapped blocks whose CUDA no compiler took: what is told is what runs, and nvcc takes it."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from tvm import s_tir, te

import tvm_layout_ext as tlx
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.tune.measure.builder.cubin import machine_code

TARGET = tlx.cuda_target("sm_90a")


def scheduled(inputs: list[Any], result: Any) -> tuple[Any, s_tir.Schedule]:
    sch = s_tir.Schedule(te.create_prim_func([*inputs, result]))
    return sch.auto_coalesce("B"), sch


def by_row(shape: tuple[int, int], dtype: str, of: Any) -> Any:
    """What a function makes of each element and a value of its row."""
    a, b = te.placeholder(shape, dtype, "A"), te.placeholder(shape[:1], dtype, "b")
    return scheduled([a, b], te.compute(shape, lambda i, j: of(a[i, j], b[i]), "B"))


def reshaped(shape: tuple[int, ...], out: tuple[int, ...], dtype: str) -> Any:
    a = te.placeholder(shape, dtype, "A")

    def of(*at: Any) -> Any:
        flat = sum(i * prod(out[d + 1 :]) for d, i in enumerate(at))
        return a(*[flat // prod(shape[d + 1 :]) % n for d, n in enumerate(shape)])

    return scheduled([a], te.compute(out, of, "B"))


def merged_heads() -> Any:
    a = te.placeholder((2, 12, 64, 64), "float16", "A")
    of = lambda b, s, c: a[b, c // 64, s, c % 64]  # noqa: E731
    return scheduled([a], te.compute((2, 64, 768), of, "B"))


def in_float32(a: Any, b: Any) -> Any:
    return (a.astype("float32") + b.astype("float32")).astype(a.dtype)


CASES = {
    "a byte over 4 lanes": lambda: by_row((64, 12), "int8", lambda a, b: a + b),
    "a float over 8 lanes": lambda: by_row((64, 256), "float16", in_float32),
    "bytes by way of floats": lambda: by_row((64, 256), "int8", in_float32),
    "a cast of FP8": lambda: by_row((64, 256), "float8_e4m3fn", lambda a, _: a.astype("float16")),
    "a reshape of short rows": lambda: reshaped((256, 49, 4), (256, 196), "float16"),
    "a reshape to other rows": lambda: reshaped((1024, 7, 4), (7, 1024, 4), "float16"),
    "merged heads": merged_heads,
}


@pytest.mark.nvcc
@pytest.mark.parametrize("case", CASES)
def test_nvcc_takes_the_code(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "nvcc")
    _, sch = CASES[case]()
    machine_code(tlx.build(sch, target=TARGET).mod.imports[0].inspect_source(), "sm_90a")


@pytest.mark.parametrize(
    ("shape", "out", "lanes"),
    [((256, 49, 4), (256, 196), 8), ((1024, 7, 4), (7, 1024, 4), 4), ((9, 50, 2), (10, 90), 2)],
)
def test_a_reshape_moves_the_vectors_that_are_told(
    shape: tuple[int, ...], out: tuple[int, ...], lanes: int
) -> None:
    outcome, sch = reshaped(shape, out, "float16")
    a = np.arange(prod(shape)).astype("float16").reshape(shape)
    report = tlx.simulate(sch, a, None, target=TARGET)
    np.testing.assert_array_equal(report.outputs["B"], a.reshape(out))
    assert f"vectors of {lanes};" in outcome.text
    assert {access.vector_bytes for access in report.accesses} == {2 * lanes}


def test_heads_merge_in_vectors_of_16_bytes() -> None:
    outcome, sch = merged_heads()
    a = np.random.default_rng(0).standard_normal((2, 12, 64, 64)).astype("float16")
    report = tlx.simulate(sch, a, None, target=TARGET)
    wanted = a.transpose(0, 2, 1, 3).reshape(2, 64, 768)
    np.testing.assert_array_equal(report.outputs["B"], wanted)
    assert {access.vector_bytes for access in report.accesses} == {16}
    assert [(t.sectors, t.least) for t in outcome.after] == [(16, 16), (16, 16)]


def test_a_scale_of_each_group_leaves_vectors_whole() -> None:
    a, b = te.placeholder((8, 512), "float16", "A"), te.placeholder((8, 4), "float16", "b")
    outcome, sch = scheduled(
        [a, b], te.compute((8, 512), lambda i, j: a[i, j] * b[i, j // 128], "B")
    )
    x, y = np.full((8, 512), 3, "float16"), np.arange(32, dtype="float16").reshape(8, 4)
    report = tlx.simulate(sch, x, y, None, target=TARGET)
    np.testing.assert_array_equal(report.outputs["B"], x * y.repeat(128, 1))
    assert "vectors of 8" in outcome.text


def test_arithmetic_of_fp8_is_refused_by_name() -> None:
    _, sch = by_row((64, 24), "float8_e4m3fn", lambda a, b: a + b)
    with pytest.raises(ScheduleError, match="no arithmetic and no comparisons of float8_e4m3fn"):
        tlx.build(sch, target=TARGET)
