"""Constant weights come to 4 or 8 bits: which do, what they hold, and what kernels make of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op
from tvm_ffi import structural_equal

from tests.models.cpu import by_cpu
from tests.models.running import TARGET, Scheduled, check, scheduled
from tests.programs.relaxed import emit, relax_module
from tvm_layout_ext import DefaultSchedule
from tvm_layout_ext.models.for_torch.weights_apart import WeightsApart
from tvm_layout_ext.models.pipeline import RelaxPipeline, lowered_passes
from tvm_layout_ext.models.quantised.group_quantise import GROUP, group_quantised
from tvm_layout_ext.models.quantised.pack_weights import PackWeights
from tvm_layout_ext.models.relax_values import name_of

BITS = (4, 8)
#: By names of TVM's
TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}


def drawn(*shape: int, dtype: str = "float16", seed: int = 0) -> np.ndarray[Any, Any]:
    """Weights around zero."""
    return np.random.default_rng(seed).normal(0, 0.1, shape).astype(TYPES[dtype])


def unpacked(words: np.ndarray[Any, Any], scales: Any, bits: int) -> np.ndarray[Any, Any]:
    """Weights in ``float64``, each digit by itself."""
    each = 32 // bits
    digits = np.stack([words >> bits * e & (1 << bits) - 1 for e in range(each)], -1)
    counts = digits.reshape(len(words), -1).astype("float64") - (1 << bits - 1)
    return counts * np.repeat(scales.astype("float64"), GROUP, 1)


def rounded(weight: np.ndarray[Any, Any], bits: int, dtype: str) -> np.ndarray[Any, Any]:
    """Weights N x K as they are multiplied."""
    return unpacked(*group_quantised(weight, bits, dtype), bits).astype(TYPES[dtype])


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    ("own", "dtype"),
    [("float16", "float16"), ("bfloat16", "bfloat16"), ("float32", "bfloat16")],
)
@pytest.mark.parametrize("order", "CF")
def test_each_weight_is_the_nearest_of_its_group(
    bits: int, own: str, dtype: str, order: Any
) -> None:
    weight = drawn(300, 512, dtype=own)  # Of several parts, the last one shorter.
    weight[3, 64:96] = 0
    words, scales = group_quantised(np.asarray(weight, order=order), bits, dtype)
    assert (words.dtype, words.shape) == (np.uint32, (300, 512 * bits // 32))
    assert (scales.dtype, scales.shape) == (TYPES[dtype], (300, 16))
    got, want = unpacked(words, scales, bits), weight.astype("float64")
    groups = want.reshape(300, -1, GROUP)
    largest = np.abs(groups).max(-1)
    np.testing.assert_allclose(np.abs(scales.astype("float64")), largest / (1 << bits - 1), 4e-3)
    steps, half = np.abs(np.repeat(scales.astype("float64"), GROUP, 1)), 1 << bits - 1
    # The other end has one number less, and scales are rounded.
    most = np.where(np.abs(want) > steps * (half - 1.5), 1 + half / 256, 0.5001)
    assert (np.abs(got - want) <= steps * most).all()
    assert not got[3, 64:96].any()


def test_the_largest_of_a_group_keeps_its_value_and_all_numbers_are_used() -> None:
    weight = np.zeros((2, GROUP), "float16")
    weight[0, :16], weight[1, :16] = np.arange(16) - 8, 8 - np.arange(16)
    np.testing.assert_array_equal(unpacked(*group_quantised(weight, 4, "float16"), 4), weight)


def linear(x: Any, weight: np.ndarray[Any, Any], dtype: str = "float16") -> Any:
    """A product by a constant N x K, added up in 32 bits."""
    turned = emit(op.permute_dims(relax.const(weight, dtype)))
    return emit(op.astype(emit(op.matmul(x, turned, out_dtype="float32")), dtype))


def packed(mod: tvm.IRModule, bits: int) -> tvm.IRModule:
    """A module whose words and scales are constants."""
    one = PackWeights(bits)
    return one.as_constants(one(mod))


def assert_near(found: Any, want: np.ndarray[Any, Any]) -> None:
    """Fail unless an array of 16 bits has these numbers."""
    atol = 0.01 * np.abs(want).max()
    np.testing.assert_allclose(found.astype("float64"), want, rtol=0.01, atol=atol)


def given(mod: tvm.IRModule) -> list[str]:
    """Types and shapes of what is given beside ``x0``."""
    return [f"{one.ty.dtype} {[*map(int, one.ty.shape)]}" for one in mod["main"].params[1:]]


def _turned(x: Any, weight: np.ndarray[Any, Any]) -> Any:
    """K x N, as GPT-2 has it."""
    turned = relax.const(np.ascontiguousarray(weight.T), str(weight.dtype))
    return emit(op.matmul(x, turned, out_dtype="float32"))


def _wide(x: Any, weight: np.ndarray[Any, Any]) -> Any:
    """What ``MixedPrecision`` leaves: a constant of 32 bits that is rounded."""
    half = emit(op.astype(relax.const(weight.astype("float32")), str(weight.dtype)))
    return emit(op.matmul(x, emit(op.permute_dims(half)), out_dtype="float32"))


def _linear(x: Any, weight: np.ndarray[Any, Any]) -> Any:
    return linear(x, weight, str(weight.dtype))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("build", [_linear, _turned, _wide])
def test_a_product_by_what_is_unpacked(build: Callable[..., Any], dtype: str, bits: int) -> None:
    weight = drawn(256, 384, dtype=dtype)
    mod = relax_module(lambda x: build(x, weight), (3, 384), dtype=dtype)
    assert given(PackWeights(bits)(mod)) == [
        f"uint32 [256, {384 * bits // 32}]",
        f"{dtype} [256, 12]",
    ]
    x = drawn(3, 384, dtype=dtype, seed=1)
    want = x.astype("float64") @ rounded(weight, bits, dtype).astype("float64").T
    (found,) = by_cpu(packed(mod, bits), [x])
    assert_near(found, want)
    plain = x.astype("float64") @ weight.astype("float64").T
    assert 1e-4 < np.abs(want - plain).max() < (0.6 if bits == 4 else 0.04)


@pytest.mark.parametrize(
    ("shape", "dtype", "said"),
    [
        ((255, 512), "float16", "255 x 512 (1), which have fewer than 256 columns"),
        ((512, 192), "float16", "512 x 192 (1), whose 192 terms are no multiple of 128"),
        ((512, 256), "float32", "512 x 256 (1), which are multiplied in float32"),
        ((512, 100), "float16", ""),  # Too small to tell of.
    ],
)
def test_what_stays_is_told(
    shape: tuple[int, int], dtype: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    mod = relax_module(lambda x: linear(x, drawn(*shape), dtype), (3, shape[1]), dtype=dtype)
    assert structural_equal(PackWeights(4)(mod), mod)
    told = [one.getMessage() for one in caplog.records]
    assert len(told) == 2 * bool(said)
    if told:
        assert said in told[0]
        assert told[1] == "No weight comes to 4 bits."


def test_weights_that_are_not_finite_stay(caplog: pytest.LogCaptureFixture) -> None:
    weight = drawn(256, 256)
    weight[7, 9] = np.inf
    mod = relax_module(lambda x: linear(x, weight), (3, 256))
    assert structural_equal(PackWeights(8)(mod), mod)
    assert "not all finite" in caplog.text


def _tied(x: Any) -> Any:
    """Rows of a table, its product, and two products by another weight."""
    table = relax.const(drawn(300, 256))
    rows = emit(op.take(table, x, 0))
    weight = relax.const(drawn(256, 256, seed=1))
    for _ in range(2):
        rows = emit(op.matmul(rows, emit(op.permute_dims(weight))))
    return emit(op.matmul(rows, emit(op.permute_dims(table))))


def test_a_table_that_is_gathered_stays_and_a_weight_of_two_products_is_held_once() -> None:
    mod = relax_module(_tied, ((5,), "int32"))
    after = PackWeights(4)(mod)
    assert given(after) == [
        "uint32 [256, 32]", "float16 [256, 8]", "uint32 [300, 32]", "float16 [300, 8]",
    ]  # fmt: skip
    (block,) = after["main"].body.blocks
    calls = [one.value for one in block.bindings]
    (taken,) = (one for one in calls if name_of(one) == "take")
    assert str(taken.args[0].ty.dtype) == "float16"
    made = [one for one in after.functions.values() if isinstance(one, tirx.PrimFunc)]
    assert len(made) == 2
    x = np.array([0, 299, 3, 7, 8], "int32")
    table, weight = drawn(300, 256), rounded(drawn(256, 256, seed=1), 4, "float16")
    rows = table[x].astype("float64")
    for one in (weight, weight, rounded(table, 4, "float16")):
        rows = rows @ one.astype("float64").T
    (found,) = by_cpu(packed(mod, 4), [x])
    assert_near(found, rows)


def _gated(x: Any, y: Any) -> Any:
    """A gated MLP with a bias and a residual."""
    gate, up = (linear(x, drawn(256, 256, seed=seed)) for seed in (0, 1))
    both = emit(op.multiply(emit(op.nn.silu(gate)), up))
    down = emit(op.add(linear(both, drawn(256, 256, seed=2)), relax.const(drawn(256, seed=3))))
    return emit(op.add(down, y))


def functions(mod: tvm.IRModule, bits: int) -> list[Scheduled]:
    """What becomes of the functions of a module whose weights are packed."""
    with TARGET:
        mod = tvm.transform.Sequential(lowered_passes(TARGET, (), PackWeights(bits)))(mod)
    return scheduled(
        tvm.IRModule(
            {gv: one for gv, one in mod.functions.items() if isinstance(one, tirx.PrimFunc)}
        )
    )


@pytest.mark.parametrize(("rows", "count"), [(4, 2), ("n", 3)])
def test_what_surrounds_products_is_part_of_them(rows: Any, count: int) -> None:
    """Also where the host chooses: gates of any number of rows would be unpacked into memory."""
    found = functions(relax_module(_gated, (rows, 256), (rows, 256)), 4)
    assert [one.choice.rule for one in found] == ["packed weights"] * count


def test_many_rows_are_multiplied_by_warpgroups() -> None:
    found = functions(relax_module(_gated, (96, 256), (96, 256)), 8)
    rules = [one.choice.rule for one in found]
    assert sorted(rules) == ["blocks", "gated products", "warpgroups"]


def words(one: Scheduled, dtype: str) -> dict[str, np.ndarray[Any, Any]]:
    """All words, and scales of both signs."""
    rng = np.random.default_rng(7)
    found = {}
    for param in one.before.params:
        shape = [*map(int, param.shape)]
        if str(param.dtype) == "uint32":
            found[param.name] = rng.integers(0, 1 << 32, shape, "uint32")
        elif "scales" in param.name:
            found[param.name] = rng.uniform(-1e-3, 1e-3, shape).astype(TYPES[dtype])
        elif param.name == "x0":
            found["x0"] = rng.standard_normal(shape, "float32").astype(TYPES[dtype])
    return found


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 40])
def test_kernels_are_right(bits: int, dtype: str, rows: int) -> None:
    def build(x: Any) -> Any:
        product = linear(x, drawn(256, 256, dtype=dtype), dtype)
        return emit(op.add(product, relax.const(drawn(256, dtype=dtype), dtype)))

    (one,) = functions(relax_module(build, (rows, 256), dtype=dtype), bits)
    assert "unpacked in registers" in one.choice.text
    check(one, "packed weights", **words(one, dtype))


def test_words_and_scales_are_given_by_whoever_holds_weights() -> None:
    """As other constants: parameters are those of the module, and nothing is unpacked before."""
    mod = relax_module(lambda x: linear(x, drawn(1024, 1024)), (1, 1024))
    apart = WeightsApart()

    pipeline = RelaxPipeline(TARGET, DefaultSchedule(), [apart], PackWeights(4))
    after = pipeline(mod)
    assert [str(one.dtype) for one in apart.weights] == ["uint32", "float16"]
    assert len(after["main"].params) == 3
    want = group_quantised(drawn(1024, 1024), 4, "float16")
    for got, array in zip(apart.weights, want, strict=True):
        np.testing.assert_array_equal(got.numpy(), array)
