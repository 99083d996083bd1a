"""Arrays with strides, element offsets and addresses of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm.script import tirx as T

from tests.programs.running import gives
from tvm_layout_ext.errors import SimulationError
from tvm_layout_ext.simulate import simulate


@T.prim_func(s_tir=True)
def offset_copy(a: T.handle, b: T.handle) -> None:
    o = T.int64()
    A = T.match_buffer(a, (32,), "int32", elem_offset=o)
    B = T.match_buffer(b, (32,), "int32", elem_offset=3)
    for i in T.thread_binding(32, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(32, i)
            B[v] = A[v]


@T.prim_func(s_tir=True)
def strided_store(a: T.handle, b: T.handle) -> None:
    A = T.match_buffer(a, (4, 8), "int32")
    B = T.match_buffer(b, (4, 8), "int32", strides=(12, 1))
    for i in T.thread_binding(32, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(32, i)
            B[v // 8, v % 8] = A[v // 8, v % 8]


@T.prim_func(s_tir=True)
def pairs(a: T.handle, b: T.handle) -> None:
    A = T.match_buffer(a, (64,), "float16", align=2)
    B = T.match_buffer(b, (64,), "float16")
    for i in T.thread_binding(32, "threadIdx.x"):
        for j in T.vectorized(2):
            with T.sblock("B"):
                v = T.axis.spatial(64, i * 2 + j)
                B[v] = A[v]


def numbers(size: int, dtype: str = "int32") -> Any:
    return np.arange(size).astype(dtype)


@pytest.mark.parametrize("start", [0, 5])
def test_an_element_offset_is_where_a_view_begins(start: int) -> None:
    a = numbers(64)[start : start + 32]
    gives(offset_copy, a, None, B=a)


def test_a_view_that_begins_elsewhere_than_the_function_says_is_refused() -> None:
    with pytest.raises(SimulationError, match=r"B begins 2 elements into its memory.*takes 3"):
        simulate(offset_copy, numbers(32), numbers(64)[2:34])


def test_a_view_of_other_elements_is_refused() -> None:
    whole = np.zeros(132, np.uint8)
    with pytest.raises(SimulationError, match="A begins 2 bytes into its memory"):
        simulate(offset_copy, whole[2:130].view("int32"), None)


def test_elements_between_strided_rows_are_nobodys() -> None:
    a = numbers(32).reshape(4, 8)
    gives(strided_store, a, None, B=a)


def test_a_sample_of_a_strided_output_is_masked_by_its_own_elements() -> None:
    a = numbers(32).reshape(4, 8)
    report = simulate(strided_store, a, None, grid_sample=1)
    assert not report.outputs["B"].mask.any()
    np.testing.assert_array_equal(report.outputs["B"], a)


@pytest.mark.parametrize(("start", "sectors"), [(0, 4), (2, 5)])
def test_a_parameter_of_low_alignment_lies_where_its_array_does(start: int, sectors: int) -> None:
    whole = np.zeros(96, "float16")
    first = -whole.__array_interface__["data"][0] % 32 // 2
    a = whole[first + start :][:64]
    a[:] = numbers(64, "float16")
    report = gives(pairs, a, None, B=a)
    load = next(access for access in report.accesses if access.buffer == "A")
    assert (load.vector_bytes, load.sectors) == (4, sectors)


def test_a_vector_at_a_misaligned_address_is_found() -> None:
    with pytest.raises(SimulationError, match=r"Misaligned address.* 4-byte load"):
        simulate(pairs, np.zeros(66, "float16")[1:65], None)


def test_an_array_less_aligned_than_declared_is_refused() -> None:
    @T.prim_func(s_tir=True)
    def aligned(a: T.handle, b: T.handle) -> None:
        A = T.match_buffer(a, (32,), "float16", align=8)
        B = T.match_buffer(b, (32,), "float16")
        for i in T.thread_binding(32, "threadIdx.x"):
            with T.sblock("B"):
                v = T.axis.spatial(32, i)
                B[v] = A[v]

    with pytest.raises(SimulationError, match="A begins 2 bytes past a multiple of 8"):
        simulate(aligned, np.zeros(33, "float16")[1:], None)
