"""auto_coalesce over many access patterns: values, hazards, bank conflicts and sectors."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import s_tir, te

from tests.schedule.patterns import Pattern, all_patterns, permuted
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.simulate.report import Report

PATTERNS = all_patterns()


def run(pattern: Pattern) -> tuple[str, Report]:
    """Map the pattern, run it, compare it with NumPy; also the way it was mapped."""
    sch = s_tir.Schedule(te.create_prim_func(pattern.tensors()))
    path = sch.auto_coalesce("B").path
    arrays = pattern.arrays(np.random.default_rng(0))
    report = simulate(sch, *arrays, None)
    np.testing.assert_array_equal(report.outputs["B"], pattern.numpy(*arrays))
    return path, report


def sectors(report: Report, buffer: str) -> int:
    return sum(access.sectors for access in report.accesses if access.buffer == buffer)


def test_there_are_more_than_sixty_patterns_with_names_of_their_own() -> None:
    assert len({pattern.name for pattern in PATTERNS}) == len(PATTERNS) > 60


@pytest.mark.matrix
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_pattern(pattern: Pattern) -> None:
    path, report = run(pattern)
    assert not report.hazards
    assert report.bank_conflicts == 0
    if pattern.index is not None:
        return
    stored, loaded = sectors(report, "B"), sectors(report, "A0")
    if path == "direct":
        assert stored <= pattern.least_sectors(store=True)
        assert loaded <= pattern.least_sectors(store=False, in_order=True)
        return
    for store, got in ((True, stored), (False, loaded)):
        least = pattern.least_sectors(store=store)
        assert least <= got <= pattern.most_sectors_in_tiles(store=store)


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64"])
@pytest.mark.parametrize("order", [(1, 0), (0, 2, 1), (2, 1, 0)])
def test_a_permutation_of_whole_tiles_moves_every_sector_once(
    dtype: str, order: tuple[int, ...]
) -> None:
    pattern = permuted((128, 128) if len(order) == 2 else (32, 32, 32), order, dtype)
    path, report = run(pattern)
    assert path == "staged"
    assert report.bank_conflicts == 0
    for buffer, store in (("A0", False), ("B", True)):
        assert sectors(report, buffer) == pattern.least_sectors(store=store)
