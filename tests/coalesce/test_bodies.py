"""Blocks with ``if`` and ``let`` statements, with two results, and with one loop for all dims."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx
from tvm.s_tir.schedule.testing import verify_trace_roundtrip
from tvm.script import tirx as T

from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.simulate.report import Report


def numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(-9, 10, shape).astype(dtype)


def run(func: Any, *arrays: Any, stage: str = "auto") -> tuple[Any, Report]:
    """Map block B, replay the trace, and run it without hazards."""
    sch = s_tir.Schedule(func)
    outcome = sch.auto_coalesce("B", stage=stage)
    verify_trace_roundtrip(sch, func, debug_mask="none")
    report = simulate(sch, *arrays)
    assert not report.hazards
    assert outcome.seconds <= 2 * outcome.seconds_before
    return outcome, report


def sectors(report: Report, buffer: str, kind: str) -> int:
    return sum(a.sectors for a in report.accesses if (a.buffer, a.kind) == (buffer, kind))


def widths(report: Report, buffer: str) -> set[int]:
    return {a.vector_bytes for a in report.accesses if a.buffer == buffer and a.sectors}


def filled(size: int, limit: int, dtype: str) -> Any:
    @T.prim_func(s_tir=True)
    def func(A: T.Buffer((size,), dtype), B: T.Buffer((size,), dtype)) -> None:
        for i in range(size):
            with T.sblock("B"):
                vi = T.axis.spatial(size, i)
                if vi < limit:
                    B[vi] = A[vi]
                else:
                    B[vi] = T.Cast(dtype, 3)

    return func


@pytest.mark.parametrize(
    ("size", "limit", "dtype", "width"),
    [
        (1000, 700, "float32", 16),
        (1000, 701, "float32", 4),
        (1024, 512, "float16", 16),
        (33, 7, "int8", 1),
    ],
)
def test_both_branches_are_as_wide_as_the_condition_lets_them(
    size: int, limit: int, dtype: str, width: int
) -> None:
    """A condition that cuts a vector would have it go element by element."""
    a = numbers(size, dtype=dtype)
    outcome, report = run(filled(size, limit, dtype), a, None)
    np.testing.assert_array_equal(report.outputs["B"], np.where(np.arange(size) < limit, a, 3))
    assert outcome.path == "direct"
    assert widths(report, "A") == widths(report, "B") == {width}
    least = -(-limit * a.itemsize // 32)
    assert sectors(report, "A", "load") == least
    assert sectors(report, "B", "store") <= -(-size * a.itemsize // 32) + 1


@T.prim_func(s_tir=True)
def masked(
    A: T.Buffer((64, 128), "float32"),
    M: T.Buffer((64,), "int32"),
    B: T.Buffer((64, 128), "float32"),
) -> None:
    for j, i in T.grid(128, 64):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            if M[vi] > 0:
                B[vi, vj] = A[vi, vj]


def test_a_loaded_condition_of_a_row_leaves_its_vectors_whole() -> None:
    a, m, b = numbers(64, 128), numbers(64, dtype="int32"), numbers(64, 128) * 100
    _, report = run(masked, a, m, b.copy())
    np.testing.assert_array_equal(report.outputs["B"], np.where(m[:, None] > 0, a, b))
    assert widths(report, "A") == widths(report, "B") == {16}
    # The condition is loaded once: no tail of single elements stands beside the vectors.
    assert sum(access.buffer == "M" for access in report.accesses) == 1


@T.prim_func(s_tir=True)
def chosen(A: T.Buffer((999,), "float16"), B: T.Buffer((999,), "float16")) -> None:
    for i in range(999):
        with T.sblock("B"):
            vi = T.axis.spatial(999, i)
            v = T.bind(A[vi])
            if v > T.float16(0):
                B[vi] = v
            else:
                B[vi] = T.float16(0)


def test_a_condition_on_each_element_leaves_single_elements() -> None:
    a = numbers(999, dtype="float16")
    _, report = run(chosen, a, None)
    np.testing.assert_array_equal(report.outputs["B"], np.maximum(a, 0))
    assert widths(report, "A") == {2}


@T.prim_func(s_tir=True)
def squared(A: T.Buffer((33, 64), "float16"), B: T.Buffer((33, 64), "float16")) -> None:
    for i, j in T.grid(33, 64):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            w = T.bind(32 - vi)
            v = T.bind(A[w, vj])
            B[vi, vj] = v * v


def test_the_value_of_a_let_stands_for_its_name() -> None:
    a = numbers(33, 64, dtype="float16")
    outcome, report = run(squared, a, None)
    np.testing.assert_array_equal(report.outputs["B"], a[::-1] * a[::-1])
    assert outcome.path == "direct"
    assert widths(report, "A") == widths(report, "B") == {16}
    assert sectors(report, "A", "load") == a.nbytes // 32


@T.prim_func(s_tir=True)
def truth(A: T.Buffer((512,), "float32"), B: T.Buffer((512,), "float32")) -> None:
    for i in range(512):
        with T.sblock("B"):
            vi = T.axis.spatial(512, i)
            c = T.bind(A[vi] > T.float32(0))
            B[vi] = T.Select(c, A[vi], T.float32(0))


def test_a_named_truth_value_has_no_vector() -> None:
    """TVM 0.27 makes no vector of it: the program could not be lowered."""
    a = numbers(512)
    _, report = run(truth, a, None)
    np.testing.assert_array_equal(report.outputs["B"], np.maximum(a, 0))
    assert widths(report, "A") == {4}


@T.prim_func(s_tir=True)
def let_transposed(A: T.Buffer((104, 72), "float32"), B: T.Buffer((72, 104), "float32")) -> None:
    for i, j in T.grid(72, 104):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            v = T.bind(A[vj, vi])
            B[vi, vj] = v + v


@T.prim_func(s_tir=True)
def half_transposed(A: T.Buffer((104, 72), "float32"), B: T.Buffer((72, 104), "float32")) -> None:
    for i, j in T.grid(72, 104):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            if vi < 61:
                B[vi, vj] = A[vj, vi] + A[vj, vi]
            else:
                B[vi, vj] = T.float32(0)


@pytest.mark.parametrize(("func", "rows"), [(let_transposed, 72), (half_transposed, 61)])
def test_a_transpose_with_statements_is_staged(func: Any, rows: int) -> None:
    a = numbers(104, 72)
    outcome, report = run(func, a, None)
    expected = np.where(np.arange(72)[:, None] < rows, 2 * a.T, 0)
    np.testing.assert_array_equal(report.outputs["B"], expected)
    assert outcome.path == "staged"
    assert report.bank_conflicts == 0
    assert sectors(report, "A", "load") == sectors(report, "B", "store") == a.nbytes // 32


@T.prim_func(s_tir=True)
def sparse(A: T.Buffer((128, 96), "float32"), B: T.Buffer((96, 128), "float32")) -> None:
    for i, j in T.grid(96, 128):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            if vi < 1:
                B[vi, vj] = A[vj, vi]
            else:
                B[vi, vj] = T.float32(0)


def test_a_tile_is_not_read_for_the_few_elements_that_a_condition_takes() -> None:
    a = numbers(128, 96)
    outcome, report = run(sparse, a, None)
    np.testing.assert_array_equal(report.outputs["B"][0], a[:, 0])
    assert not report.outputs["B"][1:].any()
    assert outcome.path == "direct"
    assert sectors(report, "A", "load") == 128


@T.prim_func(s_tir=True)
def written_in_part(A: T.Buffer((128, 96), "float32"), B: T.Buffer((96, 128), "float32")) -> None:
    for i, j in T.grid(96, 128):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            if vi < 40:
                B[vi, vj] = A[vj, vi]


@T.prim_func(s_tir=True)
def read_in_part(
    A: T.Buffer((128, 96), "float32"),
    M: T.Buffer((96,), "int32"),
    B: T.Buffer((96, 128), "float32"),
) -> None:
    for i, j in T.grid(96, 128):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            if M[vi] > 0:
                B[vi, vj] = A[vj, vi]
            else:
                B[vi, vj] = T.float32(0)


def test_what_cannot_be_staged_under_a_condition_says_why() -> None:
    a, b = numbers(128, 96), numbers(96, 128)
    outcome, report = run(written_in_part, a, b.copy())
    assert "Block B stores B only where a condition holds" in outcome.report
    np.testing.assert_array_equal(
        report.outputs["B"], np.where(np.arange(96)[:, None] < 40, a.T, b)
    )
    m = numbers(96, dtype="int32")
    outcome, report = run(read_in_part, a, m, None)
    assert "reads A only where what it loads says so" in outcome.report
    np.testing.assert_array_equal(report.outputs["B"], np.where(m[:, None] > 0, a.T, 0))


@T.prim_func(s_tir=True)
def updated(B: T.Buffer((1000,), "float32")) -> None:
    for i in range(1000):
        with T.sblock("B"):
            vi = T.axis.spatial(1000, i)
            if vi < 701:
                B[vi] = B[vi] + T.float32(1)


def test_an_update_in_place_under_a_condition() -> None:
    b = numbers(1000)
    _, report = run(updated, b.copy())
    np.testing.assert_array_equal(report.outputs["B"], b + (np.arange(1000) < 701))


@T.prim_func(s_tir=True)
def counted(A: T.Buffer((1000,), "int32"), C: T.Buffer((16,), "int32")) -> None:
    for i in range(1000):
        with T.sblock("B"):
            vi = T.axis.spatial(1000, i)
            v = T.bind(A[vi])
            if v >= 0:
                T.evaluate(T.call_extern("int32", "atomicAdd", T.address_of(C[v]), 1))


def test_an_atomic_under_a_condition() -> None:
    a = numbers(1000, dtype="int32")
    _, report = run(counted, a, np.zeros(16, "int32"))
    np.testing.assert_array_equal(report.outputs["C"], np.bincount(a[a >= 0], minlength=16))


@T.prim_func(s_tir=True)
def masked_sum(A: T.Buffer((64, 64), "float32"), B: T.Buffer((64,), "float32")) -> None:
    for i, k in T.grid(64, 64):
        with T.sblock("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            if vk < 40:
                B[vi] = B[vi] + A[vi, vk]


def test_a_reduction_under_an_if_is_refused() -> None:
    sch = s_tir.Schedule(masked_sum)
    before = sch.mod
    with pytest.raises(ScheduleError, match=r"Block B is opaque.*reductions of stores and let"):
        sch.auto_coalesce("B")
    tvm.ir.assert_structural_equal(sch.mod, before)


def sum_of_squares(rows: int, columns: int, axis: int) -> Any:
    @T.prim_func(s_tir=True)
    def by_rows(A: T.Buffer((rows, columns), "float32"), B: T.Buffer((rows,), "float32")) -> None:
        for i, k in T.grid(rows, columns):
            with T.sblock("B"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    B[vi] = T.float32(0)
                v = T.bind(A[vi, vk])
                B[vi] = B[vi] + v * v

    @T.prim_func(s_tir=True)
    def by_columns(
        A: T.Buffer((rows, columns), "float32"), B: T.Buffer((columns,), "float32")
    ) -> None:
        for i, k in T.grid(columns, rows):
            with T.sblock("B"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    B[vi] = T.float32(0)
                v = T.bind(A[vk, vi])
                B[vi] = B[vi] + v * v

    return by_rows if axis == 1 else by_columns


@pytest.mark.parametrize(
    ("axis", "said"), [(1, "TVM knows no reducer"), (0, "a thread for each result")]
)
def test_a_reduction_with_a_let_is_done_by_a_thread_for_each_result(axis: int, said: str) -> None:
    """TVM takes no such body for a reducer's, and the program could not be lowered."""
    a = numbers(33, 256)
    outcome, report = run(sum_of_squares(33, 256, axis), a, None)
    np.testing.assert_array_equal(report.outputs["B"], (a * a).sum(axis))
    assert outcome.path == "reduction"
    assert said in outcome.report


@T.prim_func(s_tir=True)
def cut_somewhere(A: T.Buffer((512,), "float32"), B: T.Buffer((512,), "float32"), n: T.int32):
    for i in range(512):
        with T.sblock("B"):
            vi = T.axis.spatial(512, i)
            if vi < n:
                B[vi] = A[vi]
            else:
                B[vi] = T.float32(0)


def test_a_bound_that_is_not_known_may_cut_any_vector() -> None:
    a = numbers(512)
    _, report = run(cut_somewhere, a, None, 333)
    np.testing.assert_array_equal(report.outputs["B"], np.where(np.arange(512) < 333, a, 0))
    assert widths(report, "A") == widths(report, "B") == {4}


def test_a_condition_of_a_large_buffer_leaves_vectors_whole() -> None:
    """Too many iterations to look at them one by one."""
    sch = s_tir.Schedule(filled(1 << 24, 1 << 23, "float32"))
    assert "vector i 4" in sch.auto_coalesce("B").report


def chosen_beside_a_let(limit: int) -> Any:
    @T.prim_func(s_tir=True)
    def func(A: T.Buffer((64, 16), "float32"), B: T.Buffer((64, 16), "float32")) -> None:
        for i, j in T.grid(64, 16):
            with T.sblock("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                w = T.bind(A[vi, vj])
                B[vi, vj] = T.if_then_else(vj < limit, w, w + T.float32(1))

    return func


@pytest.mark.parametrize(("limit", "width"), [(8, 16), (6, 8), (5, 4)])
def test_a_choice_beside_a_let_cuts_no_vector(limit: int, width: int) -> None:
    """Vectors of 4 were stored element by element: 512 sectors where 128 were moved before."""
    a = numbers(64, 16)
    _, report = run(chosen_beside_a_let(limit), a, None)
    np.testing.assert_array_equal(report.outputs["B"], a + (np.arange(16) >= limit))
    assert widths(report, "B") == {width}
    assert sectors(report, "A", "load") == sectors(report, "B", "store") == 64 * 16 * 4 // 32


def best_of(shape: tuple[int, int], axis: int, dtype: str, *, known: bool) -> Any:
    """Argmax with a tensor of numbers; TVM knows the reducer only in one of its spellings."""

    def combine(x: Any, y: Any) -> Any:
        keep = x[1] >= y[1] if known else tirx.Not(x[1] < y[1])
        return tirx.Select(keep, x[0], y[0]), tirx.Select(keep, x[1], y[1])

    argmax = te.comm_reducer(
        combine, lambda i, v: (tirx.const(-1, i), tirx.min_value(v)), name="argmax"
    )
    numbered = te.placeholder(shape, "int32", "I")
    a = te.placeholder(shape, dtype, "A")
    k = te.reduce_axis((0, shape[axis]), "k")

    def body(i: Any) -> Any:
        at = (k, i) if axis == 0 else (i, k)
        return argmax((numbered[at], a[at]), axis=k)

    return te.create_prim_func([numbered, a, *te.compute((shape[1 - axis],), body, "B")])


@pytest.mark.parametrize(
    ("shape", "axis", "dtype", "known", "said"),
    [
        ((16, 1024), 1, "float32", True, "along the rows, 1 rows of 256 lanes, vectors of 4"),
        ((33, 100), 1, "float16", True, "along the rows"),
        ((5, 7), 1, "float32", True, "along the rows"),
        ((100, 64), 0, "float32", True, "a thread for each result"),
        ((33, 7), 0, "float16", True, "across the rows|a thread for each result"),
        ((40, 65), 1, "float32", False, "a thread for each result"),
    ],
)
def test_two_results_of_one_reduction(
    shape: tuple[int, int], axis: int, dtype: str, known: bool, said: str
) -> None:
    rng = np.random.default_rng(3)
    a = rng.random(shape).argsort(axis).astype(dtype)  # No ties along the axis.
    numbered = rng.integers(0, 1000, shape).astype("int32")
    outcome, report = run(best_of(shape, axis, dtype, known=known), numbered, a, None, None)
    at = np.expand_dims(a.argmax(axis), axis)
    np.testing.assert_array_equal(
        report.outputs["B.v0"], np.take_along_axis(numbered, at, axis).squeeze(axis)
    )
    np.testing.assert_array_equal(report.outputs["B.v1"], a.max(axis))
    assert outcome.path == "reduction"
    assert re.search(said, outcome.report)


def test_both_operands_of_an_argmax_are_loaded_once_and_in_vectors() -> None:
    a, numbered = numbers(16, 1024), numbers(16, 1024, dtype="int32")
    _, report = run(best_of((16, 1024), 1, "float32", known=True), numbered, a, None, None)
    for name in ("A", "I"):
        assert widths(report, name) == {16}
        assert sectors(report, name, "load") == a.nbytes // 32


def fused(shape: tuple[int, ...], order: tuple[int, ...], loops: tuple[int, ...]) -> Any:
    """Permute dims in one loop that goes through the result's dims in some order."""
    a = te.placeholder(shape, "float32", "A")
    where = [order.index(d) for d in range(len(order))]
    b = te.compute(tuple(shape[d] for d in order), lambda *i: a[tuple(i[w] for w in where)], "B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    refs = [sch.get_loops(sch.get_sblock("B"))[i] for i in loops]
    sch.reorder(*refs)
    sch.fuse(*refs)
    return sch.mod["main"]


@pytest.mark.parametrize("stage", ["auto", "shared"])
@pytest.mark.parametrize(
    ("shape", "order", "loops"),
    [
        ((128, 96), (1, 0), (0, 1)),
        ((128, 96), (1, 0), (1, 0)),
        ((2, 16, 8, 8), (0, 2, 3, 1), (0, 1, 2, 3)),
        ((104, 72, 1), (1, 0, 2), (0, 1, 2)),
    ],
)
def test_a_fused_loop_is_staged_as_its_dims_would_be(
    shape: tuple[int, ...], order: tuple[int, ...], loops: tuple[int, ...], stage: str
) -> None:
    """One loop behind all dims was left unstaged: 32 sectors a request of the load."""
    a = numbers(*shape)
    outcome, report = run(fused(shape, order, loops), a, None, stage=stage)
    np.testing.assert_array_equal(report.outputs["B"], a.transpose(order))
    assert outcome.path == "staged"
    assert outcome.report.startswith("when the program is lowered")
    assert "TensorIR" not in outcome.report
    assert report.bank_conflicts == 0
    assert sectors(report, "A", "load") == sectors(report, "B", "store") == a.nbytes // 32


@T.prim_func(s_tir=True)
def diagonal(A: T.Buffer((35, 24), "float32"), B: T.Buffer((24, 35), "float32")) -> None:
    for f in range(840):
        with T.sblock("B"):
            vi = T.axis.spatial(24, f % 24)
            vj = T.axis.spatial(35, f % 35)
            B[vi, vj] = A[vj, vi]


def test_a_loop_whose_iterators_are_no_digits_stays_and_says_why() -> None:
    a = numbers(35, 24)
    outcome, report = run(diagonal, a, None)
    np.testing.assert_array_equal(report.outputs["B"], a.T)
    assert outcome.path == "direct"
    said = "loop f stands behind several iterators"
    assert said in outcome.report
    assert "TensorIR" not in outcome.report


@T.prim_func(s_tir=True)
def guarded_fused(A: T.Buffer((40, 24), "float32"), B: T.Buffer((24, 40), "float32")) -> None:
    for f in range(1024):
        with T.sblock("B"):
            T.where(f < 960)
            vi = T.axis.spatial(24, f // 40)
            vj = T.axis.spatial(40, f % 40)
            B[vi, vj] = A[vj, vi]


def test_a_guarded_fused_loop_says_why_it_is_not_staged() -> None:
    a = numbers(40, 24)
    outcome, report = run(guarded_fused, a, None)
    np.testing.assert_array_equal(report.outputs["B"], a.T)
    assert "loop f stands behind several iterators" in outcome.report
