"""Vectors that the stride of a shared buffer would misalign: as wide as it allows, and right."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import s_tir

from tests.programs.mapped import computed
from tests.programs.running import gives


def padded(offset: int, *, annotated: bool = True) -> s_tir.Schedule:
    """Tiles of 32x32 floats, copied in vectors of 4 to shared rows 32 + offset apart."""
    sch = computed((64, 256), lambda a, i, j: a[i, j])
    copy = sch.cache_read("B", 0, "shared")
    i, j = sch.get_loops(sch.get_sblock("B"))
    block, i = sch.split(i, [None, 32])
    step, j = sch.split(j, [None, 32])
    sch.reorder(block, step, i, j)
    sch.bind(block, "blockIdx.x")
    sch.compute_at(copy, step)
    for fused, lanes in ((sch.fuse(i, j), 1), (sch.fuse(*sch.get_loops(copy)[-2:]), 4)):
        _, thread, vector = sch.split(fused, [None, 128, lanes])
        sch.bind(thread, "threadIdx.x")
        sch.vectorize(vector)
    sch.storage_align(copy, 0, 0, 32, offset)
    if annotated:
        sch.pipeline(step, 2, async_copy=False)
    return sch


@pytest.mark.parametrize(("offset", "width"), [(0, 4), (1, 1), (2, 2), (3, 1), (4, 4), (6, 2)])
def test_vectors_are_as_wide_as_the_stride_keeps_aligned(offset: int, width: int) -> None:
    value = np.random.default_rng(0).standard_normal((64, 256)).astype("float32")
    report = gives(padded(offset), value, None, B=value)
    (store,) = {a.bytes // a.requests // 32 for a in report.accesses
                if a.kind == "store" and a.scope == "shared"}  # fmt: skip
    assert store == 4 * width
