"""auto_coalesce of permutations whose rows start anywhere: no bank twice."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import s_tir, te

import tvm_layout_ext as tlx
from tests.programs.patterns import Pattern, permuted
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.simulate.report import Report


def staged(pattern: Pattern) -> Report:
    """Stage a pattern, and compare it with NumPy."""
    sch = s_tir.Schedule(te.create_prim_func(pattern.tensors()))
    assert sch.auto_coalesce("B").path == "staged"
    arrays = pattern.arrays(np.random.default_rng(0))
    report = simulate(sch, *arrays, None)
    np.testing.assert_array_equal(report.outputs["B"], pattern.numpy(*arrays))
    assert (report.bank_conflicts, report.hazards) == (0, [])
    return report


def sectors(report: Report) -> dict[str, int]:
    """Sectors of each buffer in global memory."""
    found = {"A0": 0, "B": 0}
    for access in report.accesses:
        if access.scope == "global":
            found[access.buffer] += access.sectors
    return found


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((100, 100), (1, 0)),
        ((36, 100), (1, 0)),
        ((100, 36), (1, 0)),
        ((20, 1000), (1, 0)),
        ((68, 132), (1, 0)),
        ((68, 94), (1, 0)),
        ((6, 20, 36), (0, 2, 1)),
    ],
)
def test_part_of_a_warp_reads_8_byte_elements_without_conflicts(
    shape: tuple[int, ...], order: tuple[int, ...]
) -> None:
    """Two phases of a read join where the partners of active lanes sleep, as at a row's end."""
    pattern = permuted(shape, order, "float64")
    assert sectors(staged(pattern)) == pattern.distinct_sectors()


def test_one_function_transposes_8_byte_elements_of_every_size_without_conflicts() -> None:
    n, m = te.var("n"), te.var("m")
    a = te.placeholder((n, m), "float64", "A")
    sch = s_tir.Schedule(te.create_prim_func([a, te.compute((m, n), lambda j, i: a[i, j], "B")]))
    assert sch.auto_coalesce("B").path == "staged"
    lowered = tlx.lower(sch)
    for shape in ((1, 1), (7, 33), (100, 100), (34, 70), (66, 2), (130, 17)):
        value = np.random.default_rng(0).random(shape)
        report = simulate(lowered, value, None)
        np.testing.assert_array_equal(report.outputs["B"], value.T)
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
    for dtype in ("int8", "float16", "float32", "float64")
    if np.prod(shape) * np.dtype(dtype).itemsize < 45 << 10
]


@pytest.mark.matrix
@pytest.mark.parametrize("pattern", HELD)
def test_ragged_tensors_are_staged_without_conflicts(pattern: Pattern) -> None:
    staged(pattern)
