"""Vectors that TVM's CUDA would move as other bytes: refused by name, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir, tirx
from tvm.script import tirx as T

import tvm_layout_ext as tlx
from tests.programs.emitted import cuda_text
from tests.programs.mapped import computed, share
from tests.sampling import pairs
from tvm_layout_ext import cuda_target
from tvm_layout_ext.cubin import CompileError, machine_code
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.ir.vector_types import lacking, lanes_of_type
from tvm_layout_ext.schedules import stencil
from tvm_layout_ext.simulate import simulate

TARGET = cuda_target("sm_90a")
FP8 = ("float8_e4m3fn", "float8_e5m2")


def vectors(
    dtype: str, lanes: int, of: Callable[[Any], Any] = lambda element: element
) -> s_tir.Schedule:
    """What a function makes of each element, a vector a thread."""
    sch = computed((64 * lanes,), lambda a, i: of(a[i]), dtype)
    share(sch, 32, lanes)
    return sch


def _simulated(sch: s_tir.Schedule) -> Any:
    return simulate(sch, np.zeros(int(sch.mod["main"].params[0].shape[0]), bool), None)


@pytest.mark.parametrize("what", [tlx.lower, tlx.build, tvm.compile, _simulated])
@pytest.mark.parametrize("lanes", [2, 3, 4, 8])
def test_vectors_of_truth_values_were_twice_as_wide(what: Callable[..., Any], lanes: int) -> None:
    """``bool`` moved as ``ushort2``; two lanes wrote over the next thread's."""
    with TARGET, pytest.raises(ScheduleError) as refused:
        what(vectors("bool", lanes).mod if what is tvm.compile else vectors("bool", lanes))
    assert str(refused.value) == (
        f"A vector of {lanes} bool cannot be loaded from A, as CUDA code has none of truth values "
        "and TVM writes those of 2 to 4 twice as wide; do not vectorize this loop, or keep the "
        "values as int8."
    )


def test_what_the_refusal_says_is_legal_is_right() -> None:
    values = np.arange(64) % 3 == 0
    for lanes, dtype in ((1, "bool"), (4, "int8")):
        sch = vectors(dtype, lanes)
        given = np.resize(values, 64 * lanes).astype(dtype)
        np.testing.assert_array_equal(simulate(sch, given, None).outputs["B"], given)


@pytest.mark.parametrize("annotated", [False, True])
def test_stores_of_comparisons_are_refused(annotated: bool) -> None:
    sch = vectors("float32", 4, lambda element: element > 0.5)
    if annotated:
        sch.annotate(sch.get_sblock("B"), "layout_ext.test", 1)
    with pytest.raises(ScheduleError, match=r"^A vector of 4 bool cannot be stored to B, as CUDA"):
        tlx.lower(sch)


def masked(offset: int, unrolled: bool) -> s_tir.Schedule:
    """Four values a thread, by a mask that is read from an offset on; ``offset * j`` in a loop."""

    @T.prim_func(s_tir=True)
    def func(
        M: T.Buffer((272,), "bool"), A: T.Buffer((256,), "float32"), B: T.Buffer((256,), "float32")
    ):
        for t, j, v in T.grid(32, 2, 4):
            with T.sblock("B"):
                vt, vj, vv = T.axis.remap("SSS", [t, j, v])
                B[vt * 8 + vj * 4 + vv] = T.Select(
                    M[vt * 8 + vj * offset + (0 if unrolled else offset) + vv],
                    A[vt * 8 + vj * 4 + vv],
                    T.float32(0),
                )

    sch = s_tir.Schedule(func)
    thread, loop, vector = sch.get_loops(sch.get_sblock("B"))
    sch.bind(thread, "threadIdx.x")
    if unrolled:
        sch.unroll(loop)
    sch.vectorize(vector)
    return sch


def test_truth_values_that_are_loaded_one_by_one_stay_legal() -> None:
    """TVM loads a vector by elements where its first is never a multiple of its length."""

    @T.prim_func(s_tir=True)
    def func(
        M: T.Buffer((129,), "bool"), A: T.Buffer((128,), "int32"), B: T.Buffer((128,), "int32")
    ):
        for t, v in T.grid(32, 4):
            with T.sblock("B"):
                vt, vv = T.axis.remap("SS", [t, v])
                B[vt * 4 + vv] = A[vt * 4 + vv] * T.Cast("int32", M[vt * 4 + vv + 1])

    sch = s_tir.Schedule(func)
    thread, vector = sch.get_loops(sch.get_sblock("B"))
    sch.bind(thread, "threadIdx.x")
    sch.vectorize(vector)
    mask, values = np.arange(129) % 3 == 0, np.arange(128, dtype="int32")
    found = simulate(sch, mask, values, None, target=TARGET).outputs["B"]
    np.testing.assert_array_equal(found, np.where(mask[1:], values, 0))
    assert "*(ushort" not in cuda_text(sch)


def test_truth_values_that_meet_a_multiple_once_their_loop_is_unrolled_are_refused() -> None:
    with pytest.raises(ScheduleError, match=r"^A vector of 4 bool cannot be loaded from M, as"):
        tlx.lower(masked(6, unrolled=True), target=TARGET)


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("lanes", [3, 5, 6, 7, 10, 14, 20])
def test_vectors_of_six_fp8_lost_two_elements(dtype: str, lanes: int) -> None:
    """A ``uint1`` moved 4 of the 6 bytes."""
    with pytest.raises(ScheduleError) as refused:
        tlx.lower(vectors(dtype, lanes), target=TARGET)
    assert str(refused.value) == (
        f"A vector of {lanes} {dtype} cannot be loaded from A, as TVM's CUDA code moves FP8 in "
        "whole groups of 4 and leaves the rest out; 2, 4, 8, 12 or 16 elements are legal."
    )


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 12, 16])
def test_whole_groups_of_fp8_stay_legal(dtype: str, lanes: int) -> None:
    assert f"uint{lanes // 4}*" in cuda_text(vectors(dtype, lanes)) or lanes <= 4


def test_fp8_of_older_gpus_is_moved_as_bytes() -> None:
    lowered = tlx.lower(vectors("float8_e4m3fn", 3), target=cuda_target("sm_80"))
    assert lacking(lowered["main"], (8, 0)) is None
    lowered = tlx.lower(vectors("float8_e4m3fn", 6), target=cuda_target("sm_80"))
    assert lacking(lowered["main"], (8, 0)) == (
        "The kernel loads vectors of 6 float8_e4m3fn (A), and CUDA code has those of 2, 3, 4, 8 or "
        "16."
    )


def _compiles(sch: s_tir.Schedule) -> bool:
    try:
        machine_code(cuda_text(sch), "sm_90a")
    except (RuntimeError, CompileError):
        return False
    return True


@pytest.mark.nvcc
@pytest.mark.matrix
@pairs(
    most=48,
    dtype=[
        "int8",
        "uint8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
    ],
    lanes=[2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 32],
)
def test_types_that_cuda_lacks_are_exactly_those_that_do_not_compile(
    dtype: str, lanes: int
) -> None:
    sch = vectors(dtype, lanes)
    text = lacking(tlx.lower(sch, target=TARGET)["main"], (9, 0))
    assert (text is None) == _compiles(sch) == (lanes in (lanes_of_type(dtype, (9, 0)) or ()))


@pytest.mark.nvcc
@pytest.mark.matrix
@pytest.mark.parametrize("lanes", [2, 3, 4, 6, 8, 16])
@pytest.mark.parametrize("between", ["int16", "int32", "float16", "float32"])
def test_nothing_that_compiles_lacks_a_type_in_between(between: str, lanes: int) -> None:
    sch = vectors("int8", lanes, lambda one: (one.astype(between) * tirx.const(3, between))
                  .astype("int8"))  # fmt: skip
    text = lacking(tlx.lower(sch, target=TARGET)["main"], (9, 0))
    assert text is None or not _compiles(sch)
    if between != "float16" and lanes == 16:
        assert text == (
            f"The kernel computes vectors of 16 {between}, and CUDA code has those of 2, 3, 4, 6 "
            "or 8."
        )


@pytest.mark.parametrize("arch", ["sm_75", "sm_80"])
@pytest.mark.parametrize("dtype", FP8)
def test_float8_may_only_be_moved_where_no_instruction_computes_with_it(
    dtype: str, arch: str
) -> None:
    """TVM's conversion made 2**-7 of a zero, and cp.async filled what it keeps in 32 bits."""
    config = stencil.OPERATOR.default_config() | {"tile_x": 64, "steps": 4, "stages": 2}
    with cuda_target(arch):
        sch = stencil.schedule(stencil.compute((40, 128), dtype), config)
        sch.swizzle(sch.get_sblock("halo"), 0, "auto")
    with pytest.raises(ScheduleError, match=rf"float8.* on {arch} FP8 may only be moved"):
        tlx.lower(sch, target=cuda_target(arch))
    tlx.lower(sch, target=cuda_target("sm_89"))
