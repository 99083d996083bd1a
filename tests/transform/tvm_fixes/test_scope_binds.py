"""Two sums at once of rows that are staged in several buffers of shared memory."""

from __future__ import annotations

import numpy as np
from tvm import s_tir, te, tirx

from tests.coalesce.rows.test_kernels import drawn, fused
from tests.programs.emitted import cuda_text
from tests.programs.running import gives

ROWS, LENGTH = 3, 512


def two_sums() -> s_tir.Schedule:
    """Sums of two inputs along rows, and of their products, in one reduction."""
    x, y = (te.placeholder((ROWS, LENGTH), "float32", name) for name in "XY")
    k = te.reduce_axis((0, LENGTH), "k")
    both = te.comm_reducer(
        lambda a, b: (a[0] + b[0], a[1] + b[1]),
        lambda *types: tuple(tirx.const(0, one) for one in types),
    )
    sums = te.compute(
        (ROWS,), lambda i: both((x[i, k] + y[i, k], x[i, k] * y[i, k]), axis=k), "sums"
    )
    out = te.compute(
        (ROWS, LENGTH), lambda i, j: x[i, j] * sums[0][i] + y[i, j] * sums[1][i], "out"
    )
    return fused([x, y, out], keep="shared", vector_bytes=16, num_threads=128)


def test_what_is_bound_from_memory_has_a_loop_around_it() -> None:
    assert "__shared__" in cuda_text(two_sums())
    x, y = drawn(ROWS, LENGTH), drawn(ROWS, LENGTH)
    first, second = ((x + y).sum(1, keepdims=True), (x * y).sum(1, keepdims=True))
    report = gives(two_sums(), x, y, None)
    np.testing.assert_allclose(report.outputs["out"], x * first + y * second, 1e-4, 1e-3)
