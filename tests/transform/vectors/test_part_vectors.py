"""Vectors stay whole around calls of which TVM has no vector form."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tvm import tirx

from tests.programs.emitted import cuda_text
from tests.programs.mapped import computed, share
from tests.programs.running import gives
from tvm_layout_ext.simulate import simulate


def gelu(a: Any, i: Any, j: Any) -> Any:
    x = a[i, j].astype("float32")
    return (x * (0.5 + 0.5 * tirx.erf(x * 0.5**0.5))).astype(a.dtype)


def test_gelu_loads_and_stores_vectors() -> None:
    sch = computed((32, 512), gelu, "float16")
    sch.auto_coalesce("B")
    a = np.random.default_rng(0).normal(0, 2, (32, 512)).astype("float16")
    report = simulate(sch, a, None, progress=False)
    (got,) = report.outputs.values()
    wide = a.astype("float64")
    want = wide * 0.5 * (1 + np.vectorize(math.erf)(wide * 0.5**0.5))
    np.testing.assert_allclose(got.astype("float64"), want, 2**-10, 2**-20)
    assert {one.vector_bytes for one in report.accesses if one.scope == "global"} == {16}
    assert "for (" not in cuda_text(sch).rpartition("__global__")[2]


def test_two_loads_and_an_end_that_is_no_whole_vector() -> None:
    sch = computed(
        (7, 100), lambda a, i, j: tirx.rsqrt(a[i, j] + a[i, j]) * a[i, 99], "float32", (7, 99)
    )
    sch.auto_coalesce("B")
    a = np.random.default_rng(0).uniform(1, 2, (7, 100)).astype("float32")
    (got,) = simulate(sch, a, None, progress=False).outputs.values()
    np.testing.assert_allclose(got, a[:, 99:] / np.sqrt(2 * a[:, :99]), 1e-6)


@pytest.mark.parametrize("rule", [
    lambda a, i, j: tirx.if_then_else(j > 7, tirx.erf(a[i, tirx.max(j - 8, 0)]), 0.0),
    lambda a, i, j: tirx.erf(a[i, 511 - j]),
])  # fmt: skip
def test_others_are_left_to_tvm(rule: Any) -> None:
    sch = computed((32, 512), rule)
    sch.auto_coalesce("B")
    a = np.random.default_rng(0).normal(0, 1, (32, 512)).astype("float32")
    (got,) = simulate(sch, a, None, progress=False).outputs.values()
    erf = np.vectorize(math.erf)(a)
    shifted = np.concatenate([np.zeros((32, 8)), erf[:, :-8]], axis=1)
    assert any(np.allclose(got, want, 1e-5, 1e-6) for want in (shifted, erf[:, ::-1]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("columns", [512, 508])
def test_lanes_of_16_bits_that_lie_apart_are_loaded_one_by_one(columns: int, dtype: str) -> None:
    """TVM's CUDA has no vector of eight of them; a guard around the vector stays."""
    sch = computed((32, 512), lambda a, i, j: a[i, j // 3], dtype, (32, columns))
    sch.auto_coalesce("B", vector_bytes=16 if columns == 512 else 8)
    a = (
        np.random.default_rng(0)
        .normal(0, 1, (32, 512))
        .astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    )
    (got,) = simulate(sch, a, None, progress=False).outputs.values()
    np.testing.assert_array_equal(got, a[:, np.arange(columns) // 3])
    assert "__global__" in cuda_text(sch)


def _if(condition: Any, value: Any, other: Any = 0) -> Any:
    return tirx.if_then_else(condition, value, tirx.const(other, "float16"))


def _after(a: np.ndarray, columns: int) -> np.ndarray:
    """Move rows some columns on, with zeros before them."""
    return np.pad(a, ((0, 0), (columns, 0)))[:, : a.shape[1]]


@pytest.mark.parametrize(
    ("rule", "want", "vectors"),
    [
        (lambda a, i, j: _if(j >= 8, a[i, j - 8]), lambda a: _after(a, 8), 1),
        (lambda a, i, j: _if(j >= 8, a[i, j - 8]) + a[i, j], lambda a: _after(a, 8) + a, 2),
        (lambda a, i, j: _if(j >= 12, a[i, j - 12]), lambda a: _after(a, 12), 0),
        (
            lambda a, i, j: _if(tirx.all(j >= 8, a[i, j - 8] > 0), a[i, j]),
            lambda a: np.where(_after(a, 8) > 0, a, 0),
            0,
        ),
        (
            lambda a, i, j: _if(tirx.any(j < 8, a[i, j - 8] > 0), a[i, j]),
            lambda a: np.where((np.arange(64) < 8) | (_after(a, 8) > 0), a, 0),
            0,
        ),
        (
            lambda a, i, j: _if(a[i, 63 - j] > 0, a[i, j]),
            lambda a: np.where(a[:, ::-1] > 0, a, 0),
            0,
        ),
    ],
    ids=["all lanes", "one of two", "some lanes", "and", "or", "by a value"],
)  # fmt: skip
def test_a_load_under_a_condition_is_a_vector_under_it_or_none(
    rule: Any, want: Any, vectors: int
) -> None:
    """Beside lanes that lie apart they once were vectors in front of it, from before the buffer."""
    sch = computed((4, 64), lambda a, i, j: a[i, j // 3] + rule(a, i, j), "float16")
    share(sch, 8, 8)
    sch.annotate(sch.get_sblock("B"), "layout_ext.test", 1)
    a = np.random.default_rng(0).integers(-4, 5, (4, 64)).astype("float16")
    report = gives(sch, a, None, B=a[:, np.arange(64) // 3] + want(a))
    loads = [one.vector_bytes for one in report.accesses if one.kind == "load"]
    assert loads.count(16) == vectors
