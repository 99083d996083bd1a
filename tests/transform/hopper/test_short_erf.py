"""``1 + erf(x)`` behind a product: as exact as what is stored, and only there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm import s_tir, tirx

import tvm_layout_ext as tlx
from tests.programs import warpgroups as w
from tvm_layout_ext import te
from tvm_layout_ext.ir.queries import loads_in
from tvm_layout_ext.transform.hopper.short_erf import shorten_erf

ROWS, COLUMNS, TERMS = 128, 64, 8


def number(value: float) -> Any:
    return tirx.const(value, "float32")


def erf(x: Any, factor: float = 1.0) -> Any:
    return te.erf(x * number(factor))


ROOT = 0.5**0.5
#: GELU as frontends write it.
GELUS: dict[str, Callable[[Any], Any]] = {
    "torch": lambda x: x * number(0.5) * (number(1) + erf(x, ROOT)),
    "relax": lambda x: x * (number(0.5) + erf(x, ROOT) * number(0.5)),
    "turned": lambda x: x * (number(0.5) * erf(x, ROOT) + number(0.5)),
}


def scheduled(gelu: Callable[[Any], Any], result: str) -> s_tir.Schedule:
    """GELU of ``a[i] * b[j]``: all terms but the first are zero."""
    A, B = (te.placeholder((n, TERMS), "float16", name=x) for n, x in ((ROWS, "A"), (COLUMNS, "B")))
    k = te.reduce_axis((0, TERMS), "k")
    product = te.compute(
        (ROWS, COLUMNS),
        lambda i, j: te.sum(A[i, k].astype("float32") * B[j, k].astype("float32"), axis=k),
        name="product",
    )
    out = te.compute(product.shape, lambda i, j: gelu(product[i, j]).astype(result), name="out")
    return w.schedule(s_tir.Schedule(te.create_prim_func([A, B, out])), (128, 64))


@pytest.mark.parametrize("result", ["float16", "bfloat16"])
@pytest.mark.parametrize("form", GELUS)
def test_gelu_is_off_by_no_more_than_a_rounding(form: str, result: str) -> None:
    sch = scheduled(GELUS[form], result)
    (kernel,) = w.program(sch).kernels.values()
    text = kernel.script()
    assert "erff" not in text
    assert "exp2f" in text
    a, b = np.zeros((ROWS, TERMS), np.float16), np.zeros((COLUMNS, TERMS), np.float16)
    a[:, 0] = np.linspace(-9, 9, ROWS)
    b[:, 0] = np.linspace(0.001, 1, COLUMNS)
    a[0, 0], a[-1, 0] = -60000, 60000
    report = tlx.simulate(sch, a, b, target=w.SM90A, progress=False)
    assert report.hazards == []
    x = np.outer(a[:, 0].astype(float), b[:, 0].astype(float))
    want = np.vectorize(lambda x: 0.5 * x * math.erfc(-x * ROOT))(x)
    found = next(iter(report.outputs.values())).astype(float)
    eps = 2.0**-11 if result == "float16" else 2.0**-8
    assert (np.abs(found - want) <= (eps + 6e-5) * np.abs(want) + 1e-6).all()


def test_what_is_stored_in_float32_is_computed_as_written() -> None:
    (kernel,) = w.program(scheduled(GELUS["torch"], "float32")).kernels.values()
    assert "erff" in kernel.script()


@pytest.mark.parametrize(
    "other",
    [
        lambda x: number(1) - erf(x),
        lambda x: number(2) + erf(x),
        lambda x: number(-1) + number(-1) * erf(x),
        lambda x: x + erf(x),
        lambda x: tirx.const(1, "float16") + te.erf(x.astype("float16")),
    ],
)
def test_other_sums_of_an_error_function_stay(other: Callable[[Any], Any]) -> None:
    value = other(tirx.Var("x", "float32"))
    assert tvm_ffi.structural_equal(shorten_erf(value), value)


def test_what_the_argument_reads_is_written_once() -> None:
    values = tirx.decl_buffer((1,), "float32", "values")
    short = shorten_erf(number(1) + erf(values[0], ROOT))
    assert len(loads_in(short)) == 1
