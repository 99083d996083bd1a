from __future__ import annotations

import numpy as np
import pytest
from tvm import s_tir, te

from tvm_layout_ext.simulate import simulate


def fused_copy(shape: tuple[int, ...], *, annotated: bool) -> s_tir.Schedule:
    """All loops fused, in vectors of 4 that cross the rows."""
    a = te.placeholder(shape, "float32", "A")
    sch = s_tir.Schedule(te.create_prim_func([a, te.compute(shape, lambda *i: a[i], "B")]))
    block = sch.get_sblock("B")
    groups, vector = sch.split(sch.fuse(*sch.get_loops(block)), [None, 4])
    grid, step, thread = sch.split(groups, [None, 1, 224])
    sch.bind(grid, "blockIdx.x")
    sch.unroll(step)
    sch.bind(thread, "threadIdx.x")
    sch.vectorize(vector)
    if annotated:
        sch.annotate(block, "layout_ext.coalesced", "direct")
    return sch


@pytest.mark.parametrize("shape", [(2, 3, 4, 33), (4, 5, 7, 3), (2, 3, 5, 7, 11)])
def test_vectors_across_rows_stay_vectors(shape: tuple[int, ...]) -> None:
    a = np.random.default_rng(0).standard_normal(shape).astype("float32")
    report = simulate(fused_copy(shape, annotated=True), a, None)
    np.testing.assert_array_equal(report.outputs["B"], a)
    assert report.accesses[0].vector_bytes == 16


def test_functions_without_annotation_are_left_alone() -> None:
    a = np.zeros((2, 3, 4, 33), "float32")
    report = simulate(fused_copy(a.shape, annotated=False), a, None)
    assert report.accesses[0].vector_bytes == 4
