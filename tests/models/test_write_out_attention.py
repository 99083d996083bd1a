"""Attention without a kernel: two products on tensor cores, and a softmax, of either 16 bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm.relax import op

import tvm_layout_ext as tlx
from tests.models import running
from tests.models.cpu import by_cpu
from tests.models.running import scheduled
from tests.programs.relaxed import relax_module
from tvm_layout_ext.models.attention.write_out import WriteOutAttention
from tvm_layout_ext.models.relax_values import operators_of

BATCH, HEADS, SIZE = 2, 3, 12


def module(
    dtype: str, rows: Any, keys: Any, causal: str = "", biased: bool = False, **options: Any
) -> tvm.IRModule:
    def build(*given: Any) -> Any:
        return op.nn.attention(*given, causal_mask=causal or None, **options)

    shapes = [(BATCH, n, HEADS, SIZE) for n in (rows, keys, keys)]
    bias = [(BATCH, 1, rows, keys)] if biased else []
    return relax_module(build, *shapes, *bias, dtype=dtype)


def exact(arrays: list[Any], causal: str = "", scale: float = SIZE**-0.5) -> Any:
    q, k, v, *bias = (one.astype("float64") for one in arrays)
    scores = np.einsum("brhd,bkhd->bhrk", q, k) * scale + sum(bias)
    rows, keys = scores.shape[-2:]
    if causal:
        behind = keys - rows if causal == "BottomRight" else 0
        scores = np.where(np.tri(rows, keys, behind, bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhrk,bkhd->brhd", weights / weights.sum(-1, keepdims=True), v)


def arrays_of(mod: tvm.IRModule) -> list[Any]:
    rng, found = np.random.default_rng(0), []
    for param in mod["main"].params:
        shape = tuple(running.extent_of(one) for one in param.ty.shape.values)
        dtype = str(param.ty.dtype)
        found.append(rng.standard_normal(shape).astype(getattr(ml_dtypes, dtype, dtype)))
    return found


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("rows", "keys", "causal"),
    [(5, 9, ""), (9, 5, "TopLeft"), (5, 9, "TopLeft"), (5, 9, "BottomRight"), ("n", 9, "TopLeft")],
)
def test_values_are_those_of_attention(
    rows: Any, keys: int, causal: str, biased: bool, dtype: str
) -> None:
    mod = module(dtype, rows, keys, causal, biased)
    written = WriteOutAttention()(mod)
    assert "nn.attention" not in operators_of(written)
    assert "nn.attention_bias" not in operators_of(written)
    arrays = arrays_of(mod)
    (got,) = by_cpu(written, arrays)
    near = {"float16": 4e-3, "bfloat16": 3e-2}[dtype]
    np.testing.assert_allclose(got.astype("float64"), exact(arrays, causal), near, near)


def test_a_scale_of_its_own_is_kept() -> None:
    mod = module("float16", 5, 9, scale=0.75)
    arrays = arrays_of(mod)
    (got,) = by_cpu(WriteOutAttention()(mod), arrays)
    np.testing.assert_allclose(got.astype("float64"), exact(arrays, scale=0.75), 4e-3, 4e-3)


@pytest.mark.parametrize(
    ("dtype", "rows", "causal"),
    [("float32", 5, ""), ("float16", 9, "BottomRight"), ("float16", "n", "BottomRight")],
)
def test_others_stay(dtype: str, rows: Any, causal: str) -> None:
    """Of float32, and where it is not known which keys are hidden, or some rows see none."""
    mod = module(dtype, rows, 8, causal)
    assert "nn.attention" in operators_of(WriteOutAttention()(mod))


@pytest.mark.costly
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_both_products_are_on_tensor_cores(
    arch: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "TARGET", tlx.cuda_target(arch))
    found = scheduled(module(dtype, 40, 40, "TopLeft"))
    assert not any(one.choice.fell_back for one in found)
    rules = [one.choice.rule for one in found if "matmul" in one.name]
    assert rules == ["tensor cores"] * 2
    assert "rows" in [one.choice.rule for one in found if "softmax" in one.name]
    for one in found:
        running.check(one)


def test_places_behind_the_first_are_products_and_a_softmax() -> None:
    """TVM cannot lower the operator where sizes are expressions: equal ones are others to it."""

    def build(*given: Any) -> Any:
        end = given[0].ty.shape.values[1]
        return op.nn.attention(*(op.strided_slice(one, [1], [1], [end]) for one in given))

    found = scheduled(relax_module(build, *[(2, "n", 2, 64)] * 3))
    assert {"attention"}.isdisjoint(one.choice.rule for one in found)
    for one in found:
        running.check(one)
