"""Blocks whose loops, guards or sizes are not as ``te.compute`` makes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import te
from tvm.script import tirx as T

from tests.programs.coalesced import few, mapped, nests, sectors, widths


def guarded(width: int, limit: int) -> Any:
    body = f"T.where(j < {limit}); B[vi, vj] = A[vi, vj]"
    return nests(f"A 40x{width}, B 40x{width}", f"B: i 40, j {width}: {body}")


@pytest.mark.parametrize(("width", "limit"), [(48, 45), (48, 44), (65, 33), (64, 1), (48, 47)])
def test_a_guard_cuts_no_vector(width: int, limit: int) -> None:
    """A vector that a guard cuts went element by element: four times the sectors."""
    a = few(40, width)
    _, report = mapped(guarded(width, limit), a, np.zeros_like(a))
    np.testing.assert_array_equal(report.outputs["B"], np.where(np.arange(width) < limit, a, 0))
    rows, columns = np.indices((40, limit))
    least = len(np.unique((rows * width + columns) // 8))
    assert sectors(report, "A", "load") == sectors(report, "B", "store") == least
    if limit == 44:  # Whole vectors.
        assert widths(report, "A") == widths(report, "B") == {16}


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


reshaped = nests(
    "A 128x96, C 96x128, B 128x96",
    "B: i 12288: B[vi // 96, vi % 96] = A[vi // 96, vi % 96] + C[vi % 96, vi // 96]",
)


@pytest.mark.parametrize("func", [swapped, split, reshaped])
def test_a_transpose_is_staged_whatever_loops_go_through_its_dims(func: Any) -> None:
    """TVM's ``transform_block_layout`` refused all but the block's iterators in their order."""
    a, c = few(128, 96), few(96, 128)
    outcome, report = mapped(func, a, c, None)
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
    a = few(*shape, dtype=dtype)
    outcome, report = mapped(reduced(shape, axis, dtype, by=te.max), a, None)
    np.testing.assert_array_equal(report.outputs["B"], a.max(axis))
    assert outcome.path == "reduction"
    assert "a thread for each result" in outcome.report
    # The result waits in a register.
    assert sectors(report, "B", "load") == 0


@pytest.mark.parametrize("size", [1, 7, 33, 1000])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_one_row_is_loaded_once(size: int, dtype: str) -> None:
    a = few(size, dtype=dtype)
    _, report = mapped(reduced((size,), 0, dtype), a, None)
    np.testing.assert_array_equal(report.outputs["B"], a.sum(dtype=dtype))
    assert sectors(report, "A", "load") <= max(8, -(-a.nbytes // 32))
