from __future__ import annotations

import numpy as np
import pytest
from tvm import s_tir, te, tirx

import tvm_layout_ext as tlx
from tvm_layout_ext.simulate import simulate


def _guarded_copy(
    rows: int, columns: int, lanes: int = 4
) -> tuple[tlx.te.Schedule, list[te.Tensor]]:
    """Rows copied in vectors, the last of each row over its end; annotated, so that we lower it."""
    a = te.placeholder((rows, columns), "float32", "A")
    b = te.compute((rows, columns), lambda i, j: a[i, j], name="B")
    s = tlx.create_schedule(b.op)
    outer, vector = s[b].split(b.op.axis[1], factor=lanes)
    s[b].bind(b.op.axis[0], te.thread_axis("blockIdx.x"))
    s[b].bind(outer, te.thread_axis("threadIdx.x"))
    s[b].vectorize(vector)
    s[b].annotate("layout_ext.test", 1)
    return s, [a, b]


def _widest_store(columns: int) -> int:
    s, args = _guarded_copy(3, columns)
    a = np.random.default_rng(0).standard_normal((3, columns)).astype("float32")
    report = simulate(s.to_module(args), a, None)
    np.testing.assert_array_equal(report.outputs["B"], a)
    assert not report.hazards
    return max(access.vector_bytes for access in report.accesses if access.kind == "store")


def test_rows_of_whole_vectors_stay_vectors() -> None:
    assert _widest_store(100) == 16


@pytest.mark.parametrize("columns", [33, 98, 101, 103])
def test_rows_that_would_misalign_the_next_row_are_done_by_element(columns: int) -> None:
    """Guarded vectors of such rows once became float4 accesses at odd addresses."""
    assert _widest_store(columns) == 4


def test_a_single_ragged_row_keeps_its_whole_vectors() -> None:
    a = te.placeholder((101,), "float32", "A")
    b = te.compute((101,), lambda i: a[i], name="B")
    s = tlx.create_schedule(b.op)
    outer, vector = s[b].split(b.op.axis[0], factor=4)
    s[b].bind(outer, te.thread_axis("threadIdx.x"))
    s[b].vectorize(vector)
    s[b].annotate("layout_ext.test", 1)
    data = np.random.default_rng(0).standard_normal(101).astype("float32")
    report = simulate(s.to_module([a, b]), data, None)
    np.testing.assert_array_equal(report.outputs["B"], data)
    widths = {(x.kind, x.vector_bytes): x.requests for x in report.accesses}
    assert widths[("store", 16)] == 1
    assert widths[("store", 4)] == 1


def test_a_condition_that_all_lanes_share_does_not_break_the_vector() -> None:
    a = te.placeholder((6, 60), "float32", "A")
    zero = tirx.const(0, "float32")
    b = te.compute((6, 64), lambda i, j: tirx.if_then_else(j >= 4, a[i, j - 4], zero), "B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    sch.auto_coalesce("B")
    value = np.random.default_rng(0).standard_normal((6, 60)).astype("float32")
    report = simulate(sch, value, None)
    np.testing.assert_array_equal(report.outputs["B"], np.pad(value, ((0, 0), (4, 0))))
    assert {access.vector_bytes for access in report.accesses} == {16}
