"""Blocks whose loops, guards or sizes are not as ``te.compute`` makes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import s_tir, te
from tvm.s_tir.schedule.testing import verify_trace_roundtrip
from tvm.script import tirx as T

from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.simulate.report import Report


def numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(-4, 5, shape).astype(dtype)


def run(func: Any, *arrays: Any) -> tuple[Any, Report]:
    """Map block B, replay the trace, and run it without hazards."""
    sch = s_tir.Schedule(func)
    outcome = sch.auto_coalesce("B")
    verify_trace_roundtrip(sch, func, debug_mask="none")
    report = simulate(sch, *arrays)
    assert not report.hazards
    return outcome, report


def sectors(report: Report, buffer: str, kind: str) -> int:
    return sum(a.sectors for a in report.accesses if (a.buffer, a.kind) == (buffer, kind))


def guarded(width: int, limit: int) -> Any:
    @T.prim_func(s_tir=True)
    def func(A: T.Buffer((40, width), "float32"), B: T.Buffer((40, width), "float32")) -> None:
        for i, j in T.grid(40, width):
            with T.sblock("B"):
                T.where(j < limit)
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj]

    return func


@pytest.mark.parametrize(("width", "limit"), [(48, 45), (48, 44), (65, 33), (64, 1), (48, 47)])
def test_a_guard_cuts_no_vector(width: int, limit: int) -> None:
    """A vector that a guard cuts went element by element: four times the sectors."""
    a = numbers(40, width)
    _, report = run(guarded(width, limit), a, np.zeros_like(a))
    np.testing.assert_array_equal(report.outputs["B"], np.where(np.arange(width) < limit, a, 0))
    rows, columns = np.indices((40, limit))
    least = len(np.unique((rows * width + columns) // 8))
    assert sectors(report, "A", "load") == sectors(report, "B", "store") == least


def test_a_guard_that_spares_whole_vectors_leaves_them_wide() -> None:
    a = numbers(40, 48)
    _, report = run(guarded(48, 44), a, np.zeros_like(a))
    assert {access.vector_bytes for access in report.accesses if access.sectors} == {16}


@T.prim_func(s_tir=True)
def swapped(
    A: T.Buffer((128, 96), "float32"),
    C: T.Buffer((96, 128), "float32"),
    B: T.Buffer((128, 96), "float32"),
) -> None:
    for j, i in T.grid(96, 128):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + C[vj, vi]


@T.prim_func(s_tir=True)
def split(
    A: T.Buffer((128, 96), "float32"),
    C: T.Buffer((96, 128), "float32"),
    B: T.Buffer((128, 96), "float32"),
) -> None:
    for i0, j, i1 in T.grid(4, 96, 32):
        with T.sblock("B"):
            vi = T.axis.spatial(128, i0 * 32 + i1)
            vj = T.axis.spatial(96, j)
            B[vi, vj] = A[vi, vj] + C[vj, vi]


@T.prim_func(s_tir=True)
def reshaped(
    A: T.Buffer((128, 96), "float32"),
    C: T.Buffer((96, 128), "float32"),
    B: T.Buffer((128, 96), "float32"),
) -> None:
    for i in T.serial(12288):
        with T.sblock("B"):
            v = T.axis.spatial(12288, i)
            B[v // 96, v % 96] = A[v // 96, v % 96] + C[v % 96, v // 96]


@pytest.mark.parametrize("func", [swapped, split, reshaped])
def test_a_transpose_is_staged_whatever_loops_go_through_its_dims(func: Any) -> None:
    """TVM's ``transform_block_layout`` refused all but the block's iterators in their order."""
    a, c = numbers(128, 96), numbers(96, 128)
    outcome, report = run(func, a, c, None)
    np.testing.assert_array_equal(report.outputs["B"], a + c.T)
    assert outcome.path == "staged"
    assert "not possible" not in outcome.report
    assert report.bank_conflicts == 0
    least = a.nbytes // 32
    assert sectors(report, "A", "load") == sectors(report, "C", "load") == least
    assert sectors(report, "B", "store") == least


def reduced(shape: tuple[int, ...], axis: int, dtype: str, *, by: Any = te.sum) -> Any:
    a = te.placeholder(shape, dtype, "A")
    k = te.reduce_axis((0, shape[axis]), "k")
    kept = [size for dim, size in enumerate(shape) if dim != axis] or [1]

    def body(*at: Any) -> Any:
        rest = list(at) if len(shape) > 1 else []
        return by(a[(*rest[:axis], k, *rest[axis:])], axis=k)

    return te.create_prim_func([a, te.compute(kept, body, "B")])


@pytest.mark.parametrize(
    ("shape", "axis", "dtype"),
    [
        ((4097, 3), 1, "float16"),
        ((4097, 3), 1, "int8"),
        ((5, 33, 7), 0, "float32"),
        ((1000, 33), 0, "int8"),
        ((7, 1000), 0, "int8"),
    ],
)
def test_a_reduction_of_short_rows_has_a_thread_for_each_result(
    shape: tuple[int, ...], axis: int, dtype: str
) -> None:
    """These were left unbound, or refused."""
    a = numbers(*shape, dtype=dtype)
    outcome, report = run(reduced(shape, axis, dtype, by=te.max), a, None)
    np.testing.assert_array_equal(report.outputs["B"], a.max(axis))
    assert outcome.path == "reduction"
    assert "a thread for each result" in outcome.report
    # The result waits in a register.
    assert sectors(report, "B", "load") == 0


@pytest.mark.parametrize("size", [1, 7, 33, 1000])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_one_row_is_loaded_once(size: int, dtype: str) -> None:
    a = numbers(size, dtype=dtype)
    _, report = run(reduced((size,), 0, dtype), a, None)
    np.testing.assert_array_equal(report.outputs["B"], a.sum(dtype=dtype))
    assert sectors(report, "A", "load") <= max(8, -(-a.nbytes // 32))
