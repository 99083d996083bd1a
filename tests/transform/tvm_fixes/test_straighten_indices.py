from __future__ import annotations

import numpy as np
import pytest
from tvm import s_tir, te

from tests.programs.mapped import computed, share
from tests.programs.running import gives


def fused_copy(shape: tuple[int, ...], *, annotated: bool) -> s_tir.Schedule:
    """All loops fused, in vectors of 4 that cross the rows."""
    sch = computed(shape, lambda a, *i: a[i])
    share(sch, 224, 4)
    if annotated:
        sch.annotate(sch.get_sblock("B"), "layout_ext.coalesced", "direct")
    return sch


@pytest.mark.parametrize("shape", [(2, 3, 4, 33), (4, 5, 7, 3), (2, 3, 5, 7, 11)])
def test_vectors_across_rows_stay_vectors(shape: tuple[int, ...]) -> None:
    a = np.random.default_rng(0).standard_normal(shape).astype("float32")
    report = gives(fused_copy(shape, annotated=True), a, None, B=a)
    assert report.accesses[0].vector_bytes == 16


@pytest.mark.parametrize(
    ("shape", "order", "dtype", "width"),
    [
        ((16, 33, 2, 7), (3, 0, 1, 2), "int8", 16),
        ((64, 4, 4, 33), (3, 0, 1, 2), "float16", 16),
        ((16, 16, 2, 64), (3, 0, 1, 2), "float32", 16),
        ((64, 8, 16, 2), (1, 2, 3, 0), "float32", 16),
    ],
)
def test_vectors_across_some_of_the_dims_stay_vectors(
    shape: tuple[int, ...], order: tuple[int, ...], dtype: str, width: int
) -> None:
    """Rows of 2 and 4 elements, which a staged permutation walks as one long row."""
    a = np.random.default_rng(0).integers(-9, 9, shape).astype(dtype)
    source = te.placeholder(shape, dtype, "A")
    where = [order.index(d) for d in range(len(shape))]
    turned = [shape[d] for d in order]
    block = te.compute(turned, lambda *i: source[tuple(i[w] for w in where)], "B")
    sch = s_tir.Schedule(te.create_prim_func([source, block]))
    sch.auto_coalesce("B", stage="shared")
    report = gives(sch, a, None, B=a.transpose(order))
    stores = [x for x in report.accesses if (x.buffer, x.kind) == ("B", "store") and x.requests]
    assert {x.vector_bytes for x in stores} == {width}
    assert not report.hazards
