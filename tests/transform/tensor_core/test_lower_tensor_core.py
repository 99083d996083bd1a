"""LowerTensorCore leaves what it is given as it is, and takes sums in whatever order they stand."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.programs.running import gives
from tvm_layout_ext import te
from tvm_layout_ext.schedules import gemm

CONFIG = gemm.OPERATOR.default_config() | {"tile_m": 64, "tile_n": 64}


def test_a_schedule_may_be_lowered_twice() -> None:
    """The second lowering found intrinsics where it looked for blocks that ask for them."""
    sch = gemm.schedule(gemm.compute((64, 64, 64), "float16"), CONFIG)
    text = sch.mod.script()
    first = tlx.lower(sch)
    assert sch.mod.script() == text
    tvm.ir.assert_structural_equal(tlx.lower(sch)["main"].body, first["main"].body, True)


def product(shape: tuple[int, ...], dtype: str, sums: str, element: Callable[..., Any]) -> Any:
    """A sum over 40 of products of A (50 x 40) and B (40 x 72) that an element of C takes."""
    A, B = te.placeholder((50, 40), dtype, "A"), te.placeholder((40, 72), dtype, "B")
    k = te.reduce_axis((0, 40), "k")
    C = te.compute(
        shape,
        lambda *at: te.sum(
            element(lambda *i: A[i].astype(sums), lambda *i: B[i].astype(sums), *at, k), axis=k
        ),
        name="C",
    )
    return te.create_prim_func([A, B, C]).with_attr("global_symbol", "main")


def assert_multiplies(func: Any, dtype: str, transposed: bool) -> None:
    sch = s_tir.Schedule(func)
    gemm.multiply(sch, "C", CONFIG)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 8, size).astype(dtype) for size in ((50, 40), (40, 72)))
    want = a.astype(np.float64) @ b.astype(np.float64)
    report = gives(sch.mod, a, b, None, C=want.T if transposed else want)
    assert report.bank_conflicts == 0


@pytest.mark.matrix
@pytest.mark.parametrize("a_first", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize(("dtype", "sums"), [("float16", "float32"), ("int8", "int32")])
def test_factors_and_result_may_be_the_other_way_round(
    dtype: str, sums: str, transposed: bool, a_first: bool
) -> None:
    """``B * A``, or a result stored by columns, was not found to be the instruction's product."""

    def element(a: Any, b: Any, i: Any, j: Any, k: Any) -> Any:
        i, j = (j, i) if transposed else (i, j)
        return a(i, k) * b(k, j) if a_first else b(k, j) * a(i, k)

    func = product((72, 50) if transposed else (50, 72), dtype, sums, element)
    assert_multiplies(func, dtype, transposed)


def test_what_is_added_to_may_stand_second() -> None:
    func = product((50, 72), "float16", "float32", lambda a, b, i, j, k: b(k, j) * a(i, k))
    swapped, count = re.subn(r"(C\[[^]]*\]) = \1 \+ (.*)", r"\1 = \2 + \1", func.script())
    assert count == 1
    assert_multiplies(tvm.script.from_source(swapped), "float16", transposed=False)
