"""Results against NumPy: types, operators, math functions, casts, vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import s_tir, te, tirx

from tests.programs import kernels, simulated
from tests.programs.running import gives
from tvm_layout_ext.errors import NotModelled, ScheduleError
from tvm_layout_ext.simulate import simulate

FLOATS = ["float64", "float32", "float16", "bfloat16"]
NARROW = ["float8_e4m3fn", "float8_e5m2"]
INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


def run(function: Any, *arrays: Any, vector: int = 1) -> Any:
    dtypes = [str(array.dtype) for array in arrays]
    schedule = kernels.elementwise(function, dtypes, arrays[0].size, vector)
    report = simulate(schedule, *arrays)
    assert report.hazards == []
    assert report.redundant == []
    return report.outputs["B"]


def pair(dtype: str) -> tuple[Any, Any]:
    return kernels.random((256,), dtype), kernels.random((256,), dtype, seed=1)


@pytest.mark.parametrize("vector", [1, 2, 4])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["add", "subtract", "multiply", "true_divide"])
def test_float_arithmetic_rounds_to_its_type(op: str, dtype: str, vector: int) -> None:
    a, b = pair(dtype)
    names = {
        "add": "__add__",
        "subtract": "__sub__",
        "multiply": "__mul__",
        "true_divide": "__truediv__",
    }
    got = run(lambda x, y: getattr(x, names[op])(y), a, b, vector=vector)
    assert got.dtype == a.dtype
    np.testing.assert_array_equal(got, getattr(np, op)(a, b))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_arithmetic_wraps(dtype: str) -> None:
    info = np.iinfo(dtype)
    a = np.random.default_rng(0).integers(info.min, info.max, 256, dtype=dtype, endpoint=True)
    b = np.random.default_rng(1).integers(info.min, info.max, 256, dtype=dtype, endpoint=True)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(run(lambda x, y: x * y - y, a, b), a * b - b)


def test_narrow_integers_compute_as_int_before_they_are_compared() -> None:
    a = np.full(256, 100, "int8")
    got = run(
        lambda x: tirx.if_then_else(x + x > x, tirx.const(1, "int32"), tirx.const(0, "int32")), a
    )
    # 100 + 100 is 200 in C's int, which int8 would wrap to -56.
    np.testing.assert_array_equal(got, np.ones(256, "int32"))


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("floordiv", np.floor_divide),
        ("floormod", np.mod),
        ("truncdiv", lambda a, b: np.trunc(a / b).astype("int32")),
        ("truncmod", np.fmod),
    ],
)
def test_integer_division(name: str, reference: Any) -> None:
    a = np.random.default_rng(0).integers(-1000, 1000, 256).astype("int32")
    b = np.random.default_rng(1).integers(1, 30, 256).astype("int32")
    b[::2] *= -1
    np.testing.assert_array_equal(run(getattr(tirx, name), a, b), reference(a, b))


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint8"])
def test_shifts_and_bits(dtype: str) -> None:
    a = kernels.random((256,), dtype)
    b = (kernels.random((256,), dtype, 1) % 7).astype(dtype)
    got = run(lambda x, y: ((x << y) ^ (x >> y)) & (x | y), a, b)
    np.testing.assert_array_equal(got, ((a << b) ^ (a >> b)) & (a | b))


_UNARY = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "atan": np.arctan,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": np.vectorize(__import__("math").erf, otypes=[np.float64]),
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
    "nearbyint": np.rint,
    "abs": np.abs,
}
#: Asked of wide types alone.
_WIDE_ONLY = {
    "log1p": np.log1p,
    "asin": np.arcsin,
    "acos": np.arccos,
    "asinh": np.arcsinh,
    "atanh": np.arctanh,
}
_TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, dtype) for dtype in FLOATS for name in _UNARY),
        *((name, dtype) for dtype in FLOATS[:2] for name in _WIDE_ONLY),
    ],
)
def test_math_functions(name: str, dtype: str) -> None:
    x = (0.05 + 0.9 * np.random.default_rng(0).random(256)).astype(kernels.numpy_dtype(dtype))
    got = run(getattr(tirx, name), x).astype("float64")
    wanted = (_UNARY | _WIDE_ONLY)[name](x.astype("float64"))
    np.testing.assert_allclose(got, wanted, rtol=_TOLERANCE[dtype], atol=_TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("power", np.power),
        ("atan2", np.arctan2),
        ("fmod", np.fmod),
        ("hypot", np.hypot),
        ("copysign", np.copysign),
        ("nextafter", np.nextafter),
    ],
)
def test_binary_math_functions(name: str, reference: Any) -> None:
    a, b = (np.abs(x) + np.float32(0.1) for x in pair("float32"))
    np.testing.assert_allclose(run(getattr(tirx, name), a, b), reference(a, b), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64"])
def test_bit_counts(dtype: str) -> None:
    a = kernels.random((256,), dtype)
    np.testing.assert_array_equal(run(tirx.popcount, a), np.bitwise_count(a))
    bits = np.dtype(dtype).itemsize * 8
    leading = [bits - int(value).bit_length() for value in a]
    np.testing.assert_array_equal(run(tirx.clz, a), leading)


def test_nan_tests_and_nan_losing_minimum() -> None:
    a, b = pair("float32")
    a[::3] = np.nan
    np.testing.assert_array_equal(run(tirx.isnan, a), np.isnan(a))
    np.testing.assert_array_equal(run(tirx.max, a, b), np.fmax(a, b))


@pytest.mark.parametrize("vector", [1, 4])
@pytest.mark.parametrize("target", [*FLOATS, *NARROW])
@pytest.mark.parametrize("source", [*FLOATS, *NARROW])
def test_float_casts(source: str, target: str, vector: int) -> None:
    a = kernels.random((256,), source)
    got = run(lambda x: x.astype(target), a, vector=vector)
    wanted = (
        a.astype("float32").astype(kernels.numpy_dtype(target))
        if target in NARROW
        else a.astype(kernels.numpy_dtype(target))
    )
    np.testing.assert_array_equal(got, wanted)


def test_float8_casts_saturate_as_cuda_does() -> None:
    a = np.array([1e6, -1e6, 448.0, 1.0] * 64, "float32")
    got = run(lambda x: x.astype("float8_e4m3fn"), a).astype("float32")
    np.testing.assert_array_equal(got[:4], [448, -448, 448, 1])


@pytest.mark.parametrize("target", ["int8", "int32", "int64", "uint8", "uint32"])
def test_float_to_integer_truncates(target: str) -> None:
    a = (np.random.default_rng(0).random(256) * 100).astype("float32")
    np.testing.assert_array_equal(run(lambda x: x.astype(target), a), a.astype(target))


def test_float_to_integer_saturates_and_nan_is_zero() -> None:
    a = np.array([3e10, -3e10, np.nan, -2.9] * 64, "float32")
    got = run(lambda x: x.astype("int32"), a)
    np.testing.assert_array_equal(got[:4], [2**31 - 1, -(2**31), 0, -2])


@pytest.mark.parametrize(
    ("program", "dtype"),
    [
        (simulated.halves_as_words, "float16"),
        (simulated.words_as_bytes, "uint32"),
        (simulated.bytes_as_words, "int8"),
    ],
)
def test_reinterpret_regroups_the_bits_of_vectors(program: Any, dtype: str) -> None:
    size = int(program.params[0].ty.shape[0])
    a = kernels.random((size,), dtype)
    report = simulate(program, a, None)
    assert report.hazards == []
    np.testing.assert_array_equal(report.outputs["B"].view("uint8"), a.view("uint8"))


def test_reinterpret_keeps_poison_where_it_was() -> None:
    a = kernels.random((128,), "float16")
    report = simulate(simulated.half_poison_as_words, a, np.zeros(64, "uint32"))
    np.testing.assert_array_equal(
        report.outputs["B"].reshape(32, 2)[:, 0], a.view("uint32").reshape(32, 2)[:, 0]
    )
    (hazard,) = report.hazards
    assert "own" in str(hazard)


@pytest.mark.parametrize("dtype", ["bool", *INTEGERS, *FLOATS, *NARROW])
def test_every_type_can_be_copied(dtype: str) -> None:
    a = kernels.random((256,), dtype)
    vector = 16 // a.dtype.itemsize if dtype != "bool" else 1  # TVM writes no vectors of bool.
    schedule = kernels.elementwise(lambda x: x, [dtype], 32 * vector * 4, vector)
    a = np.resize(a, 32 * vector * 4)
    report = gives(schedule, a, B=a)
    assert [access.vector_bytes for access in report.accesses] == [vector * a.dtype.itemsize] * 2


def test_booleans() -> None:
    a, b = pair("bool")
    np.testing.assert_array_equal(run(lambda x, y: tirx.all(x, tirx.Not(y)), a, b), a & ~b)


def test_matmul_of_bfloat16() -> None:
    A, B = (kernels.random((64, 64), "bfloat16", seed) for seed in (0, 1))
    report = simulate(kernels.matmul(64, "bfloat16", "float32"), A, B)
    wanted = A.astype("float32") @ B.astype("float32")
    np.testing.assert_allclose(report.outputs["C"], wanted, rtol=1e-4, atol=1e-4)


def test_unknown_function_is_named() -> None:
    from tests.programs import simulated

    with pytest.raises(NotModelled, match="my_device_function"):
        simulate(simulated.unknown_extern, kernels.random((64,)))


@pytest.mark.parametrize("dtype", NARROW)
def test_float8_arithmetic_is_refused_as_cuda_refuses_it(dtype: str) -> None:
    with pytest.raises(ScheduleError, match=f"CUDA has no arithmetic .* of {dtype}"):
        run(lambda x, y: x + y, *pair(dtype))


def test_outputs_of_equal_names_are_numbered() -> None:
    # Relax fuses a norm and its statistics into a function of three results T_add.
    a = te.placeholder((4,), "float32", "A")
    results = [te.compute((4,), rule, name="B") for rule in (lambda i: a[i], lambda i: a[i] + 1)]
    sch = s_tir.Schedule(te.create_prim_func([a, *results]))
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        sch.bind(sch.get_loops(block)[0], "threadIdx.x")
    outputs = simulate(sch.mod, np.zeros(4, "float32")).outputs
    assert {name: float(value[0]) for name, value in outputs.items()} == {"B": 0, "B_1": 1}
