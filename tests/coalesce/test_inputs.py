"""auto_coalesce of buffers with strides, offsets, low alignment and very many elements: values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import s_tir, te

from tests.programs.coalesced import mapped, nests, numbers, widths
from tests.programs.running import gives
from tvm_layout_ext.errors import ScheduleError

FAR = 1 << 30


static_strides = nests(
    "A 64x30 float32 strides=(36,1), B 64x30 float32 strides=(32,1)",
    "B: i 64, j 30: B[vi, vj] = A[vi, vj]",
)


def test_rows_with_static_strides() -> None:
    whole = numbers((64, 36))
    _, report = mapped(static_strides, whole[:, :30], np.zeros((64, 32), "float32")[:, :30])
    np.testing.assert_array_equal(report.outputs["B"], whole[:, :30])
    # 30 elements are no multiple of 4: the last two of a row go one by one.
    assert widths(report, "A") == {4, 16}


symbolic_strides = nests(
    "A nxm float32 strides=(s,t), B nxm",
    "B: i n, j m: B[vi, vj] = A[vi, vj]",
    symbols="n m s t",
)


@pytest.mark.parametrize(
    "view",
    [
        lambda whole: whole,
        lambda whole: whole[3:40, 5:61],
        lambda whole: whole[::2, ::3],
        lambda whole: whole.T,
        lambda whole: whole[1:2, :1],
    ],
    ids=["whole", "box", "steps", "turned", "one"],
)
def test_a_view_with_strides_that_only_the_call_knows(view: Any) -> None:
    a = view(numbers((64, 70)))
    _, report = mapped(symbolic_strides, a, None)
    np.testing.assert_array_equal(report.outputs["B"], a)


def copied(length: int, argument: str) -> Any:
    buffers = f"A {length} float16 {argument}, B {length} float16"
    return nests(buffers, f"B: i {length}: B[vi] = A[vi]", symbols="first")


@pytest.mark.parametrize(("factor", "bytes_a_lane"), [(1, 2), (2, 4), (4, 8), (8, 16), (64, 16)])
def test_an_element_offset_gets_the_vectors_that_its_factor_allows(
    factor: int, bytes_a_lane: int
) -> None:
    a = numbers((1200,), "float16")[factor : factor + 1000]
    _, report = mapped(copied(1000, f"elem_offset=first offset_factor={factor}"), a, None)
    np.testing.assert_array_equal(report.outputs["B"], a)
    assert widths(report, "A") == {bytes_a_lane}


def test_a_fixed_element_offset() -> None:
    a = numbers((1040,), "float16")[12:1036]
    _, report = mapped(copied(1024, "elem_offset=12"), a, None)
    np.testing.assert_array_equal(report.outputs["B"], a)
    assert widths(report, "A") == {8}


@pytest.mark.parametrize("align", [2, 4, 8])
def test_a_base_pointer_less_aligned_gets_narrower_vectors(align: int) -> None:
    """The simulated memory begins as badly as it may: wider vectors would be found misaligned."""
    whole = numbers((1024,), "float16")
    first = (align - whole.__array_interface__["data"][0]) % 16 // 2
    a = whole[first : first + 1000]
    _, report = mapped(copied(1000, f"align={align}"), a, None)
    np.testing.assert_array_equal(report.outputs["B"], a)
    assert widths(report, "A") == {align}


ROW = f"T.int64(3)xT.int64(256) int8 strides=(T.int64({FAR}),T.int64(1))"
far_apart = nests(
    f"A {ROW}, B {ROW.replace(str(FAR), str(FAR + 16))}",
    "B: i T.int64(3), j T.int64(256): B[vi, vj] = A[vi, vj]",
)


def rows_far_apart(stride: int) -> Any:
    """Three rows of 256 bytes, the last one beyond 2^31; memory in between is never touched."""
    whole = np.zeros(2 * stride + 256, "int8")
    return np.lib.stride_tricks.as_strided(whole, (3, 256), (stride, 1))


def test_elements_beyond_two_to_the_31_are_loaded_and_stored() -> None:
    a = rows_far_apart(FAR)
    a[...] = numbers((3, 256), "int8")
    _, report = mapped(far_apart, a, rows_far_apart(FAR + 16))
    np.testing.assert_array_equal(report.outputs["B"], a)
    assert widths(report, "A") == widths(report, "B") == {16}


def far_picked(dtype: str) -> Any:
    return nests(
        f"A {ROW}, R T.int64(8) {dtype}, B T.int64(8)xT.int64(256) int8",
        "B: i T.int64(8), j T.int64(256): B[vi, vj] = A[R[vi], vj]",
    )


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_rows_picked_beyond_two_to_the_31_elements(dtype: str) -> None:
    table = rows_far_apart(FAR)
    table[...] = numbers((3, 256), "int8")
    picked = np.array([0, 2, 1, 2, 0, 1, 2, 2]).astype(dtype)
    _, report = mapped(far_picked(dtype), table, picked, None)
    np.testing.assert_array_equal(report.outputs["B"], table[picked])
    assert widths(report, "A") == {16}


def test_strides_that_32_bit_indices_cannot_reach_over_are_refused() -> None:
    buffers = f"A 3x256 int8 strides=({FAR},1), B 3x256 int8"
    sch = s_tir.Schedule(nests(buffers, "B: i 3, j 256: B[vi, vj] = A[vi, vj]"))
    with pytest.raises(ScheduleError, match=r"A of block B spans 2,147,483,904 elements.*int64"):
        sch.auto_coalesce("B")


def turned_into_strides(size: int | None) -> Any:
    n = size or "n"
    return nests(
        f"A {n}x33x3, B 33x3x{n} float32 strides=(60,20,1)",
        f"B: i 33, j 3, m {n}: B[vi, vj, vm] = A[vm, vi, vj]",
        symbols="n",
        kind="int32",
    )


@pytest.mark.parametrize("size", [None, 16])
def test_loops_that_merge_in_a_store_with_strides_are_staged_one_by_one(size: Any) -> None:
    """TVM gave the store's three strides to registers of two dims."""
    a = numbers((16, 33, 3))
    outcome, report = mapped(
        turned_into_strides(size), a, np.zeros((33, 3, 20), "float32")[..., :16]
    )
    np.testing.assert_array_equal(report.outputs["B"], a.transpose(1, 2, 0))
    assert "tile" in outcome.report
    assert report.bank_conflicts == 0


guarded_transpose = nests(
    "A 100x60, B 60x100", "B: i 60, j 100: T.where(j < 77); B[vi, vj] = A[vj, vi]"
)


guarded_shift = nests(
    "A 50x301 float16, B 50x300 float16",
    "B: i 50, j 300: T.where(j < 217); B[vi, vj] = A[vi, vj + 1]",
)


guarded_sum = nests("A 64x4096, B 64", "B: i 64, k 4096: T.where(k < 4000); B[vi] += A[vi, vk]")


@pytest.mark.parametrize("stage", ["auto", "none"])
@pytest.mark.parametrize("case", ["transpose", "shift", "sum"])
def test_a_block_that_runs_only_where_a_condition_holds_keeps_it(case: str, stage: str) -> None:
    """``transform_block_layout`` of TVM 0.27 leaves variables of loops that are gone in it."""
    func, a, limit = {
        "transpose": (guarded_transpose, numbers((100, 60)), 77),
        "shift": (guarded_shift, numbers((50, 301), "float16"), 217),
        "sum": (guarded_sum, numbers((64, 4096)), 4000),
    }[case]
    every = {"transpose": a.T, "shift": a[:, 1:], "sum": a}[case]
    inside = np.arange(every.shape[1]) < limit
    sch = s_tir.Schedule(func)
    sch.auto_coalesce("B", stage=stage)
    before = np.full(every.shape if case != "sum" else 64, -1, a.dtype)
    kept = np.where(inside, every, 0 if case == "sum" else -1)
    gives(sch, a, before, B=kept.sum(1) if case == "sum" else kept)


def test_a_guarded_block_is_not_staged() -> None:
    sch = s_tir.Schedule(guarded_transpose)
    with pytest.raises(ScheduleError, match="Block B runs only where j < 77 holds"):
        sch.auto_coalesce("B", stage="shared")


def test_a_block_without_dims_is_refused_by_name() -> None:
    a = te.placeholder((), "float32", "A")
    sch = s_tir.Schedule(te.create_prim_func([a, te.compute((), lambda: a() + 1.0, "B")]))
    with pytest.raises(ScheduleError, match="Block B has no loop of its own"):
        sch.auto_coalesce("B")


def test_a_block_inside_a_block_whose_loop_is_bound_is_refused() -> None:
    a = te.placeholder((24, 17), "float32", "A")
    b = te.compute((24, 17), lambda i, j: a[i, j] * 2, "B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    i, j = sch.get_loops("B")
    sch.blockize(j)
    sch.bind(i, "threadIdx.x")
    with pytest.raises(ScheduleError, match="inside block B_o, whose loop i is already bound"):
        sch.auto_coalesce("B")
