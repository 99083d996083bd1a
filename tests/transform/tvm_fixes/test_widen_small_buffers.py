from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tests.programs.running import gives
from tvm_layout_ext.ir.annotations import MARK
from tvm_layout_ext.transform import WidenSmallBuffers


def allocated(count: int, dtype: str, scope: str = "shared.dyn") -> Any:
    @T.prim_func(s_tir=True)
    def func(A: T.Buffer((8,), dtype)) -> None:
        T.func_attr({MARK: True})
        S = T.alloc_buffer((count,), dtype, scope=scope)
        S[0] = A[0]
        A[1] = S[0]

    return func


def widened(func: Any) -> Any:
    return WidenSmallBuffers()(tvm.IRModule({"main": func}))["main"]


@pytest.mark.parametrize(
    ("count", "dtype", "wide"),
    [(1, "float16", 3), (2, "float16", 3), (1, "float32", 2), (4, "int8", 5)],
)
def test_a_buffer_of_32_bits_or_less_has_an_element_more(count: int, dtype: str, wide: int) -> None:
    tvm.ir.assert_structural_equal(widened(allocated(count, dtype)), allocated(wide, dtype))


@pytest.mark.parametrize(
    ("count", "dtype", "scope"),
    [(3, "float16", "shared.dyn"), (1, "float64", "shared.dyn"), (1, "float32", "local")],
)
def test_others_stay_as_they_are(count: int, dtype: str, scope: str) -> None:
    func = allocated(count, dtype, scope)
    assert widened(func).body.same_as(func.body)


def two_small_buffers() -> Any:
    @T.prim_func(s_tir=True)
    def func(A: T.Buffer((4, 4), "float16"), B: T.Buffer((4, 4), "float16")) -> None:
        for b in T.thread_binding(4, thread="blockIdx.x"):
            for t in T.thread_binding(2, thread="threadIdx.x"):
                with T.sblock("copy"):
                    T.sblock_attr({"layout_ext.launch_bounds": 1})
                    vb, vt = T.axis.remap("SS", [b, t])
                    S = T.sblock_alloc_buffer((2,), "float16", scope="shared.dyn")
                    U = T.sblock_alloc_buffer((2,), "float16", scope="shared.dyn")
                    S[vt] = A[vb, vt]
                    U[vt] = A[vb, vt + 2]
                    B[vb, vt] = S[vt]
                    B[vb, vt + 2] = U[vt]

    return func.with_attr("global_symbol", "main")


def test_two_small_buffers_have_places_beside_each_other() -> None:
    a = np.arange(16).reshape(4, 4).astype("float16")
    gives(two_small_buffers(), a, B=a)
