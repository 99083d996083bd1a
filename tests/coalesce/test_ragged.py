"""auto_coalesce of permutations whose rows start anywhere: no bank twice."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import s_tir, te

from tests.programs.patterns import Pattern, permuted
from tests.programs.running import gives


def staged(pattern: Pattern) -> None:
    """Stage a pattern, and compare it with NumPy."""
    sch = s_tir.Schedule(te.create_prim_func(pattern.tensors()))
    assert sch.auto_coalesce("B", stage="shared").path == "staged"
    arrays = pattern.arrays()
    report = gives(sch, *arrays, None, B=pattern.expected(*arrays))
    assert (report.bank_conflicts, report.hazards) == (0, [])


#: Sizes of which some or none are whole sectors.
RAGGED = [
    ((7, 33), (1, 0)),
    ((33, 7), (1, 0)),
    ((7, 1000), (1, 0)),
    ((1000, 7), (1, 0)),
    ((33, 1000), (1, 0)),
    ((1000, 33), (1, 0)),
    ((4097, 7), (1, 0)),
    ((7, 4097), (1, 0)),
    ((33, 33), (1, 0)),
    ((33, 100), (1, 0)),
    ((63, 65), (1, 0)),
    ((100, 100), (1, 0)),
    ((127, 129), (1, 0)),
    ((139, 284), (1, 0)),
    ((9, 33, 7), (2, 1, 0)),
    ((33, 7, 33), (0, 2, 1)),
    ((7, 33, 7), (1, 0, 2)),
    ((5, 9, 130), (2, 1, 0)),
    ((3, 5, 7, 33), (3, 1, 0, 2)),
    ((2, 3, 4, 5, 6), (4, 2, 0, 3, 1)),
]
HELD = [
    pytest.param(permuted(shape, order, dtype), id=permuted(shape, order, dtype).name)
    for shape, order in RAGGED
    for dtype in ("int8", "float16", "float32")
    if np.prod(shape) * np.dtype(dtype).itemsize < 45 << 10
]


@pytest.mark.matrix
@pytest.mark.parametrize("pattern", HELD)
def test_ragged_tensors_are_staged_without_conflicts(pattern: Pattern) -> None:
    staged(pattern)
