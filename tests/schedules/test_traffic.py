"""The least bytes of operators that do not read all of what they are given."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_layout_ext.tune.space.operator import find_operator


@pytest.mark.parametrize("shape", [(64, 8, 16), (64, 300, 16), (1, 5, 16)])
def test_a_gather_reads_the_rows_that_are_drawn(shape: tuple[int, int, int]) -> None:
    gather, (_, picked, columns) = find_operator("gather_rows"), shape
    rng = np.random.default_rng(0)
    drawn = [len(np.unique(gather.inputs(shape, "int32", rng)[1])) for _ in range(200)]
    bytes_each = (np.mean(drawn) + picked) * columns * 4 + picked * 4
    assert gather.traffic(shape, "int32") == pytest.approx(bytes_each, rel=0.04)  # Of whole rows
