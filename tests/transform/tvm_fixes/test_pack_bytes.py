from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T

from tests.programs.emitted import cuda_text
from tests.programs.mapped import computed
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.simulate.model.values import split_type
from tvm_layout_ext.transform import PackBytes


def packed(func: Any) -> Any:
    return PackBytes()(tvm.IRModule({"main": func}))["main"]


def test_what_tvm_writes_itself_stays() -> None:
    @T.prim_func(s_tir=True)
    def short(B: T.Buffer((64,), "int8"), C: T.Buffer((64,), "float16")) -> None:
        T.func_attr({"layout_ext.annotated": 1})
        B[T.Ramp(0, 1, 4)] = T.Broadcast(T.int8(3), 4)
        C[T.Ramp(0, 1, 8)] = T.Broadcast(T.float16(1), 8)

    tvm.ir.assert_structural_equal(packed(short), short)


def _values(dtype: str) -> Any:
    found = np.random.default_rng(0).integers(-100, 100, (4, 512))
    return found.astype(split_type(dtype)[0])


def _mapped(dtype: str, body: Any, columns: int = 512) -> Any:
    sch = computed((4, 512), lambda a, i, j: body(a, i, j), dtype, out=(4, columns))
    sch.auto_coalesce("B")
    return sch


def _of(dtype: str, value: int) -> Any:
    return tirx.const(value, dtype)


_WHOLE = ("int8", "uint8", "int16", "uint16")
_CASES = [
    *((dtype, "add") for dtype in _WHOLE),
    *((dtype, "first") for dtype in _WHOLE),
    *((dtype, "pad") for dtype in (*_WHOLE, "float8_e4m3fn", "float8_e5m2")),
]


def _case(dtype: str, what: str) -> tuple[Any, Any, Any]:
    """A schedule, what it reads, and what it should give."""
    a = _values(dtype)
    if what == "add":
        return _mapped(dtype, lambda t, i, j: t[i, j] + _of(dtype, 7)), a, a + np.array(7, a.dtype)
    if what == "first":
        return _mapped(dtype, lambda t, i, j: t[i, j] + t[i, 0]), a, a + a[:, :1]

    def inside(t: Any, i: Any, j: Any) -> Any:
        return tirx.if_then_else(j < 512, t[i, j], _of(dtype, 0))

    return _mapped(dtype, inside, 528), a, np.pad(a, ((0, 0), (0, 16)))


@pytest.mark.parametrize(("dtype", "what"), _CASES)
def test_results_are_numpys_in_vectors_of_16_bytes(dtype: str, what: str) -> None:
    sch, a, wanted = _case(dtype, what)
    report = simulate(sch, a, None)
    np.testing.assert_array_equal(report.outputs["B"].view("uint8"), wanted.view("uint8"))
    assert max(access.vector_bytes for access in report.accesses) == 16


@pytest.mark.parametrize(("dtype", "what"), _CASES)
def test_no_vector_of_words_is_made_of_elements(dtype: str, what: str) -> None:
    sch, _, _ = _case(dtype, what)
    for count, arguments in re.findall(r"make_u?int([24])\(([^;]*)\);", cuda_text(sch)):
        assert arguments.count(",") == int(count) - 1


def test_literals_are_spread_by_their_bits() -> None:
    def power(t: Any, i: Any, j: Any) -> Any:
        base = tirx.const(10000.0, "float32")
        return tirx.pow(base, t[i, j].astype("float32")).astype("float16")

    sch = _mapped("float16", power)
    assert "&(0x" not in cuda_text(sch)  # A literal has no address.
    a = np.random.default_rng(0).uniform(0, 1, (4, 512)).astype("float16")
    got = simulate(sch, a, None).outputs["B"]
    np.testing.assert_allclose(got, 10000 ** a.astype("float32"), rtol=1e-3)
