"""Functions of 16-bit floats are computed in float32 and rounded once."""

from __future__ import annotations

from math import erf
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op

from tests.models.running import TARGET, check, only, scheduled
from tests.programs.emitted import cuda_text, nvcc_says
from tests.programs.relaxed import relax_module
from tvm_layout_ext import simulate
from tvm_layout_ext.ir.queries import nodes_in
from tvm_layout_ext.models.sums.widen_functions import legalize_ops


def _softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


EXACT: dict[str, Any] = {
    "exp": np.exp,
    "log": np.log,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "round": np.round,
    "nn.silu": lambda x: x / (1 + np.exp(-x)),
    "nn.gelu": lambda x: x * (0.5 + 0.5 * np.vectorize(erf)(x * 0.5**0.5)),
    "nn.gelu_tanh": lambda x: (
        0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x * x * x)))
    ),
    "nn.softmax": _softmax,
    "nn.log_softmax": lambda x: np.log(_softmax(x)),
}
#: Largest distance of a number from the nearest float, in parts of it.
ROUNDING = {"float16": 2**-11, "bfloat16": 2**-8}


def module(name: str, dtype: str, shape: tuple[int, ...], axis: int | None = None) -> tvm.IRModule:
    function: Any = op
    for part in name.split("."):
        function = getattr(function, part)
    axes = [] if axis is None else [axis]
    return relax_module(lambda x: function(x, *axes), shape, dtype=dtype)


def given(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    found = np.random.default_rng(0).normal(0, 2, shape)
    return np.abs(found + (found == 0)).astype(getattr(ml_dtypes, dtype, dtype))


def result(name: str, x: np.ndarray, axis: int | None = None) -> np.ndarray:
    return simulated(module(name, str(x.dtype), x.shape, axis), x)


def called(call: Any, *arrays: np.ndarray) -> np.ndarray:
    """What a call of arrays gives."""
    return simulated(relax_module(call, *((one.shape, str(one.dtype)) for one in arrays)), *arrays)


def simulated(mod: tvm.IRModule, *arrays: np.ndarray) -> np.ndarray:
    """What the one kernel of a function gives, without hazards."""
    func = only(mod).after.with_attr("global_symbol", "main")
    report = simulate(func, *arrays, None, target=TARGET, progress=False)
    assert not report.hazards
    (got,) = report.outputs.values()
    return got


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("name", EXACT)
def test_results_are_exact_but_for_one_rounding(name: str, dtype: str) -> None:
    x = given(dtype, (6, 520))
    want = EXACT[name](x.astype("float64"))
    got = result(name, x).astype("float64")
    # Float32 adds 2^-20 or less, of numbers whose size is 1 or more.
    near = ROUNDING[dtype] * np.abs(want) * 1.001 + 2**-20 + 2**-25 * (dtype == "float16")
    assert (np.abs(got - want) <= near).all()


def test_a_softmax_of_many_equal_values_adds_them_up() -> None:
    """In float16 a sum of ones stands still at 2048."""
    got = result("nn.softmax", np.zeros((1, 8192), "float16"))
    assert (got == np.float16(1 / 8192)).all()


def test_a_softmax_along_its_axis_is_one_kernel() -> None:
    x = given("float16", (16, 40, 8))
    got = result("nn.softmax", x, 1)
    want = _softmax(x.astype("float64").transpose(0, 2, 1)).transpose(0, 2, 1)
    np.testing.assert_allclose(got.astype("float64"), want, 2**-10, 2**-20)


#: Sums, of a mean of 20, which float16 does not hold before they are divided.
SUMS: dict[str, Any] = {
    "mean": lambda x, axes: x.mean(axes),
    "variance": lambda x, axes: x.var(axes),
    "std": lambda x, axes: x.std(axes),
    "sum": lambda x, axes: x.sum(axes),
}


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("axes", [[2], [1], [1, 2]])
def test_sums_are_of_float32(name: str, dtype: str, axes: list[int]) -> None:
    x = np.random.default_rng(0).uniform(19, 21, (2, 60, 72))
    x = (x / 100 if name == "sum" else x).astype(getattr(ml_dtypes, dtype, dtype))
    got = called(lambda x: getattr(op, name)(x, axes), x).astype("float64")
    want = SUMS[name](x.astype("float64"), tuple(axes))
    assert (np.abs(got - want) <= 1.01 * ROUNDING[dtype] * np.abs(want) + 1e-4).all()


def test_a_sum_is_fused_with_what_it_adds_up() -> None:
    got = called(lambda x: op.sum(op.multiply(x, x), [1, 2]), np.ones((1, 64, 96), "float16"))
    assert (got == 64 * 96).all()


POOLS: dict[str, Any] = {
    "of all": lambda x: op.nn.adaptive_avg_pool2d(x, (1, 1)),
    "of none": lambda x: op.nn.adaptive_avg_pool2d(x),
    "along rows": lambda x: op.nn.avg_pool2d(x, (1, 96), padding=(0, 1)),
    "channels last": lambda x: op.nn.adaptive_avg_pool2d(x, (1, 1), "NHWC"),
}


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("name", POOLS)
def test_pools_are_added_up_in_float32(name: str, dtype: str) -> None:
    """Of ones, whose sum stands still at 256 in bfloat16."""
    x = np.ones((1, 1, 96, 96) if name != "channels last" else (1, 96, 96, 8), "float32")
    got = called(POOLS[name], x.astype(getattr(ml_dtypes, dtype, dtype)))
    ends = (np.float32(95 / 96).astype(got.dtype), 1)
    assert np.isin(got.astype("float32"), np.asarray(ends, "float32")).all()
    assert name == "along rows" or (got == 1).all()


@pytest.mark.parametrize("dtype", [*ROUNDING, "float32"])
@pytest.mark.parametrize("to", [(5, 3), (7, 2), (12, 4)])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_adaptive_pools_of_several_windows(layout: str, to: tuple[int, int], dtype: str) -> None:
    """TVM's have loops that no rule schedules; of 12 out of 9 rows, windows have one and two."""
    shape = (2, 4, 9, 8) if layout == "NCHW" else (2, 9, 8, 4)
    x = given(dtype, shape)
    mod = relax_module(lambda x: op.nn.adaptive_avg_pool2d(x, to, layout), shape, dtype=dtype)
    assert not only(mod).choice.fell_back
    want = x.astype("float64")
    for axis, many in zip((layout.index("H"), layout.index("W")), to, strict=True):
        size = shape[axis]
        windows = [range(i * size // many, -(-(i + 1) * size // many)) for i in range(many)]
        want = np.stack([want.take(one, axis).mean(axis) for one in windows], axis)
    got = simulated(mod, x).astype("float64")
    np.testing.assert_allclose(got, want, ROUNDING.get(dtype, 2**-21) * 1.01, 0)


def _normed(x: np.ndarray, axes: tuple[int, ...], gamma: np.ndarray, beta: Any) -> np.ndarray:
    off = x - x.mean(axes, keepdims=True)
    return off / np.sqrt((off * off).mean(axes, keepdims=True) + 1e-5) * gamma + beta


#: What TVM has of float16 alone: of how many arrays, how it is called, and what it gives.
OF_BFLOAT16: dict[str, Any] = {
    "layer_norm": (
        3,
        lambda x, gamma, beta: op.nn.layer_norm(x, gamma, beta, [-1]),
        lambda x, gamma, beta: _normed(x, (2,), gamma, beta),
    ),
    "instance_norm": (
        3,
        lambda x, gamma, beta: op.nn.instance_norm(x, gamma, beta, 2, [1]),
        lambda x, gamma, beta: _normed(x, (1,), gamma, beta),
    ),
    "power": (2, op.power, np.power),
    "a number's power": (1, lambda x: op.power(x, relax.const(3, "bfloat16")), lambda x: x**3),
    "log_add_exp": (2, op.log_add_exp, np.logaddexp),
}


@pytest.mark.parametrize("name", OF_BFLOAT16)
def test_what_tvm_has_of_float16_alone_is_exact_but_for_one_rounding(name: str) -> None:
    count, call, exact = OF_BFLOAT16[name]
    arrays = [given("bfloat16", shape) for shape in ((4, 6, 64), (64,), (64,))[:count]]
    got = called(call, *arrays).astype("float64")
    want = exact(*(one.astype("float64") for one in arrays))
    assert (np.abs(got - want) <= 2**-8 * np.abs(want) * 1.001 + 2**-16).all()


@pytest.mark.parametrize("dtype", ROUNDING)
def test_a_group_norm_of_what_is_widened_is_one_kernel(dtype: str) -> None:
    shape = (2, 8, 4, 4)
    numbers = [relax.const(np.full(8, one, "float32")) for one in (0.7, 1.3)]

    def build(x: Any) -> Any:
        wide = op.nn.group_norm(op.astype(x, "float32"), *numbers, 2, 1, [2, 3])
        return op.astype(wide, dtype)

    one = only(relax_module(build, shape, dtype=dtype))
    assert not one.choice.fell_back
    array, scales = given(dtype, shape), [np.full(8, one, "float32") for one in (0.7, 1.3)]
    func = one.after.with_attr("global_symbol", "main")
    report = simulate(func, array, *scales, None, target=TARGET, progress=False)
    (got,) = report.outputs.values()
    groups = array.astype("float64").reshape(2, 2, -1)
    want = _normed(groups, (2,), np.float64(0.7), 1.3).reshape(shape)
    near = ROUNDING[dtype] * np.abs(want) * 1.001 + 2**-16
    assert (np.abs(got.astype("float64") - want) <= near).all()


@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite"])
def test_bfloat16_may_be_asked_whether_it_is_a_number(name: str) -> None:
    x = np.asarray([1, np.nan, np.inf, -np.inf], ml_dtypes.bfloat16)
    want = getattr(np, name)(x.astype("float32"))
    assert np.array_equal(result(name, x).astype(bool), want)


def test_float32_is_as_tvm_makes_it() -> None:
    (one,) = scheduled(module("sigmoid", "float32", (64, 64)))
    assert not list(nodes_in(one.before.body, tirx.Cast))


@pytest.mark.costly
@pytest.mark.nvcc
@pytest.mark.parametrize("name", EXACT)
def test_cuda_of_them_compiles(name: str, tmp_path: Path) -> None:
    (one,) = scheduled(module(name, "float16", (64, 1024)))
    assert isinstance(one.after, tirx.PrimFunc)
    assert not nvcc_says(cuda_text(one.after), tmp_path, "-w", "-cubin")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_function_of_a_number_and_pixels_between_others_lower(dtype: str) -> None:
    def build(*given: Any) -> Any:
        scale = op.exp(relax.const(np.asarray(0.5, dtype)))
        return op.multiply(op.image.grid_sample(*given), scale)

    mod = relax_module(build, (1, 2, 4, 4), (1, 2, 3, 5), dtype=dtype)
    assert str(legalize_ops()(mod)["main"].ret_ty.dtype) == dtype


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_tensors_of_an_infinite_value_of_any_size(dtype: str) -> None:
    """TVM asks whether "float" is in its type, which is no text any more."""
    n = tirx.Var("n", "int64")

    def build(x: Any) -> Any:
        return op.maximum(x, op.full((n, 4), relax.const(-float("inf"), dtype), dtype))

    check(only(relax_module(build, (n, 4), dtype=dtype)))


def test_an_instance_norm_counts_more_pixels_than_float16_has_numbers() -> None:
    """TVM counts 96 x 96 x 96 in the type of the image, as infinitely many: nothing but NaN."""
    shape = (1, 2, 256, 260)
    mod = relax_module(
        lambda x, g, b: op.nn.instance_norm(x, g, b, channel_axis=1, axes=[2, 3]), shape, (2,), (2,)
    )
    one = only(mod)
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype("float16")
    gamma, beta = (rng.standard_normal(2).astype("float16") for _ in "gb")
    report = simulate(one.program, x, gamma, beta, np.zeros_like(x), progress=False)
    wide = x.astype("float64")
    away = wide - wide.mean((2, 3), keepdims=True)
    scale, shift = (array.astype("float64")[:, None, None] for array in (gamma, beta))
    want = away / np.sqrt(away.var((2, 3), keepdims=True) + 1e-5) * scale + shift
    (found,) = report.outputs.values()
    np.testing.assert_allclose(found, want, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("slope", [0.01, 1.0, 1.5, -0.5])
def test_a_leaky_relu_behind_a_sum_has_vectors(dtype: str, slope: float) -> None:
    def build(x: Any, y: Any) -> Any:
        return op.nn.leakyrelu(op.nn.relu(op.add(x, y)) - y, slope)

    one = only(relax_module(build, (64, 128), (64, 128), dtype=dtype))
    check(one)
    # As a choice of what is loaded each thread would branch for each element.
    assert 0 < slope <= 1 or "Select" in str(one.before)
    assert "if_then_else" not in str(one.before)


def test_a_leaky_relu_keeps_what_is_not_finite() -> None:
    mod = relax_module(lambda x: op.nn.leakyrelu(x, 0.25), (8,), dtype="float16")
    x = np.array([np.nan, np.inf, -np.inf, 4, -4, 0, -0.0, 65504], "float16")
    report = simulate(only(mod).program, x, np.zeros_like(x), progress=False)
    (found,) = report.outputs.values()
    np.testing.assert_array_equal(found, np.where(x > 0, x, x * np.float16(0.25)))
