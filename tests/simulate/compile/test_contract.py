"""Which products the simulated GPU joins with a sum; nvcc's SASS for each is told beside it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import te, tirx

import tvm_layout_ext as tlx
from tests.programs import kernels
from tvm_layout_ext.simulate import simulate

#: Squared it is 1 + 2^-11 + 2^-24, of which float32 has no last term.
ROOT = np.float32(1 + 2**-12)
SQUARE, REST = np.float32(1 + 2**-11), np.float32(2**-24)
#: By which 1e30 has a rounded product that is larger.
FACTOR = 0.0902


def run(function: Any, *values: Any, vector: int = 1, arch: str = "sm_90a") -> Any:
    """Result of an expression of numbers."""
    arrays = [np.full(128, value) for value in values]
    sch = kernels.elementwise(function, [str(a.dtype) for a in arrays], 128, vector)
    report = simulate(sch, *arrays, target=tlx.cuda_target(arch))
    assert report.hazards == []
    (found,) = set(report.outputs["B"].astype("float64").tolist())
    return found


def kernel(*lines: str) -> Any:
    body = "\n        ".join(lines)
    return tvm.script.from_source(f"""
@T.prim_func(s_tir=True)
def main(A: T.Buffer((32,), "float32"), B: T.Buffer((32,), "float32"),
         C: T.Buffer((32,), "float32"), D: T.Buffer((64,), "float32")):
    for t in T.thread_binding(32, "threadIdx.x"):
        {body}
""")


def of_kernel(*lines: str) -> list[float]:
    """Both halves of D, of a kernel of some lines: A and B are the root, C is its square."""
    arrays = [np.full(32, value, "float32") for value in (ROOT, ROOT, SQUARE)]
    found = simulate(kernel(*lines), *arrays, np.zeros(64, "float32")).outputs["D"]
    return [float(found[0]), float(found[32])]


#: An expression of the root, its rounded square, and the root again; and what is left of it.
FORMS = {
    "a*b - c: FFMA a, b, -c": (lambda a, c, _: a * a - c, REST),
    "a*b + c: FFMA a, b, c": (lambda a, c, _: a * a + c * tirx.const(-1.0, "float32"), REST),
    "c + a*b: FFMA a, b, c": (lambda a, c, _: tirx.const(-SQUARE, "float32") + a * a, REST),
    "c - a*b: FFMA -a, b, c": (lambda a, c, _: c - a * a, -REST),
    "-(a*b) + c: FFMA -a, b, c": (lambda a, c, _: a * a * tirx.const(-1.0, "float32") + c, -REST),
    "a*b + c*d: FMUL c, d; FFMA a, b": (
        lambda a, _, d: a * a + (d * tirx.const(-1.0, "float32")) * a, REST,
    ),
    "a*b - c*d: FMUL c, d; FFMA a, b, -": (lambda a, _, d: a * a - a * d, REST),
    "max(a*b, 0) - c: FMUL, FADD": (
        lambda a, c, _: tirx.max(a * a, tirx.const(0.0, "float32")) - c, 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("vector", [1, 4])
@pytest.mark.parametrize("name", FORMS)
def test_a_product_in_a_sum_is_not_rounded(name: str, vector: int) -> None:
    expression, want = FORMS[name]
    assert run(expression, ROOT, SQUARE, ROOT, vector=vector) == want


def test_the_factor_of_three_products_that_is_a_product_is_rounded() -> None:
    """SASS: FMUL a, b; FFMA by d."""
    three = np.float32(3)
    found = run(lambda a, d, c: a * a * d - c, ROOT, three, three * SQUARE)
    exact = float(SQUARE) * 3 - float(three * SQUARE)
    assert found == exact


def test_a_quotient_of_float32_is_a_product_by_a_reciprocal() -> None:
    """SASS: MUFU.RCP b, FMUL c, FFMA a. Of equal ones the rounding is left."""
    big, three = np.float32(1e30), np.float32(3)
    reciprocal = np.float32(1) / three
    found = run(lambda a, b, c: a / b - c / b, big, three, big)
    assert found == float(np.float32(float(big) * float(reciprocal) - float(big * reciprocal)))
    assert abs(found) > 1e20
    assert run(lambda a, b: a / b, ROOT, three) == ROOT / three


@pytest.mark.parametrize(
    ("dtype", "digits"), [("float64", 52), ("float16", 10), ("bfloat16", 7)]
)  # fmt: skip
def test_other_types(dtype: str, digits: int) -> None:
    kind = getattr(ml_dtypes, dtype) if dtype == "bfloat16" else np.dtype(dtype).type
    root = kind(1 + 2.0 ** -(digits // 2 + 1))
    found = run(lambda a, c: a * a - c, root, root * root)
    assert found == float(root) ** 2 - float(root * root) or dtype == "float64"
    assert found != 0


def test_bfloat16_has_products_of_its_own_since_sm_90() -> None:
    root = ml_dtypes.bfloat16(1 + 2**-4)
    assert run(lambda a, c: a * a - c, root, root * root, arch="sm_90a") != 0
    assert run(lambda a, c: a * a - c, root, root * root, arch="sm_80") == 0


def test_a_variable_that_only_sums_use_is_no_product_of_its_own() -> None:
    """SASS: two FFMA."""
    found = of_kernel(
        "x: T.let[T.float32] = A[t] * B[t]", "D[t] = x - C[t]", "D[t + 32] = C[t] - x"
    )
    assert found == [REST, -REST]


def test_a_variable_that_something_else_uses_is_rounded() -> None:
    """SASS: FMUL, FADD, FMNMX."""
    found = of_kernel(
        "x: T.let[T.float32] = A[t] * B[t]", "D[t] = x - C[t]", "D[t + 32] = T.max(x, C[t])"
    )
    assert found == [0, SQUARE]


def test_factors_of_a_variable_are_those_of_when_it_was_bound() -> None:
    found = of_kernel(
        "r = T.alloc_buffer((1,), scope='local')",
        "r[0] = A[t]",
        "x: T.let[T.float32] = r[0] * B[t]",
        "r[0] = C[t]",
        "D[t] = x - r[0]",
        "D[t + 32] = r[0]",
    )
    assert found == [REST, SQUARE]


def test_a_sum_of_products_is_rounded_once_a_term() -> None:
    """The usual dot product of ``te.sum``, by a thread and across threads."""
    size = 64
    A, B = (te.placeholder((32, size), "float32", name=name) for name in "AB")
    k = te.reduce_axis((0, size), "k")
    C = te.compute((32,), lambda i: te.sum(A[i, k] * B[i, k], axis=k), name="C")
    sch = tvm.s_tir.Schedule(te.create_prim_func([A, B, C]))
    sch.bind(sch.get_loops(sch.get_sblock("C"))[0], "threadIdx.x")
    a, b = (kernels.random((32, size), seed=seed) for seed in (0, 1))
    want = np.zeros(32, "float32")
    for one in range(size):
        want = (a[:, one].astype("float64") * b[:, one] + want).astype("float32")
    np.testing.assert_array_equal(simulate(sch, a, b).outputs["C"], want)
    rounded = np.zeros(32, "float32")
    for one in range(size):
        rounded = a[:, one] * b[:, one] + rounded
    assert (rounded != want).any()


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "int8"])
def test_integers_are_as_they_were(dtype: str) -> None:
    a, b, c = (kernels.random((256,), dtype, seed) for seed in range(3))
    sch = kernels.elementwise(lambda x, y, z: x * y - z + z * y, [dtype] * 3)
    with np.errstate(over="ignore"):
        want = a * b - c + c * b
    np.testing.assert_array_equal(simulate(sch, a, b, c).outputs["B"], want)


@pytest.mark.parametrize(("hidden", "weight"), [(-1e30, np.inf), (-3e38, 0.0)])
def test_the_rest_of_a_large_product_is_seen(hidden: float, weight: float) -> None:
    """Powers of a difference that is zero only where both products are rounded."""
    values = np.float32([hidden, FACTOR, -1e30])
    assert run(lambda s, f, m: tirx.exp2(s * f - m * f), *values) == weight
