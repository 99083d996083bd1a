from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import s_tir, te

import tvm_layout_ext as tlx


def row_sum(rows: int, columns: int, annotated: bool) -> tvm.IRModule:
    """Rows summed by a warp each, eight rows a block."""
    a = te.placeholder((rows, columns), "float32", "A")
    k = te.reduce_axis((0, columns), "k")
    b = te.compute((rows,), lambda i: te.sum(a[i, k], axis=k), name="B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    block = sch.get_sblock("B")
    i, k = sch.get_loops(block)
    grid, row = sch.split(i, [None, 8])
    step, lane = sch.split(k, [None, 32])
    sch.reorder(grid, row, lane, step)
    for loop, tag in ((grid, "blockIdx.x"), (row, "threadIdx.y"), (lane, "threadIdx.x")):
        sch.bind(loop, tag)
    if annotated:
        sch.annotate(block, "layout_ext.test", 1)
    return sch.mod


@pytest.mark.parametrize("shape", [(33, 128), (1, 64), (33, 100), (40, 128), (7, 31)])
def test_partial_blocks_of_rows_store_only_their_rows(shape: tuple[int, int]) -> None:
    """TVM's LowerCrossThreadReduction dropped the guard, and stored rows that are not there."""
    data = np.random.default_rng(0).standard_normal(shape).astype("float32")
    report = tlx.simulate(row_sum(*shape, annotated=True), data)
    np.testing.assert_allclose(report.outputs["B"], data.sum(1), rtol=1e-4, atol=1e-4)
    assert not report.hazards


def test_nothing_is_left_of_the_added_bound() -> None:
    text = tlx.lower(row_sum(33, 128, annotated=True)).script()
    assert "threadIdx_x < 32" not in text
