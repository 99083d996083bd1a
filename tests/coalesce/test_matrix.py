"""auto_coalesce over many access patterns: values, hazards, bank conflicts and sectors."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import s_tir, te

from tests.programs.coalesced import sectors
from tests.programs.patterns import Pattern, all_patterns, permuted
from tests.programs.running import gives
from tests.sampling import pairwise
from tvm_layout_ext.simulate.report import Report
from tvm_layout_ext.target import cuda_target

PATTERNS = all_patterns()


def run(pattern: Pattern, stage: str = "auto") -> tuple[str, Report]:
    """Map the pattern, run it, compare it with NumPy; also the way it was mapped."""
    sch = s_tir.Schedule(te.create_prim_func(pattern.tensors()))
    path = sch.auto_coalesce("B", stage=stage).path
    arrays = pattern.arrays()
    report = gives(sch, *arrays, None, B=pattern.expected(*arrays))
    return path, report


def test_there_are_more_than_sixty_patterns_with_names_of_their_own() -> None:
    assert len({pattern.name for pattern in PATTERNS}) == len(PATTERNS) > 60


_AGAIN = "every warp that needs a repeated element asks for its sector again"
_ASKEW = "rows begin inside of sectors, and two warps ask for the sector in which they part"
#: Inputs of which more than the distinct sectors are asked for, and why.
EXCEPTIONS = {
    "broadcast-64x96-0-float32": _AGAIN,
    "broadcast-64x96-1-float32": _AGAIN,
    "broadcast-33x7-0-float64": _AGAIN,
    "broadcast-5x33x8-1-float16": _AGAIN,
    "broadcast-4x6x64-01-float32": _AGAIN,
    "slice-33x7-of-50x50-float32": _ASKEW,
    "pad-62x60-1x4-float32": _ASKEW,
    "pad-33x7-1x1-float32": _ASKEW,
    "concat-20x7+9-float32": _ASKEW,
    "rows-20x7-3-float32": _ASKEW,
}
#: Permutations of rows that begin inside of sectors, and the sectors that their tiles move: each
#: piece of a row costs up to one more than its bytes fill, where they are not loaded by aligned
#: vectors.
TILES = {
    "permute-33x7-10-float32": 74,
    "permute-1000x33-10-float32": 8375,
    "permute-7x33-10-float64": 126,
    "permute-7x1000-10-float32": 1875,
    "permute-4096x34-10-float32": 35328,
    "permute-8x9x10-210-float32": 198,
    "permute-4x5x6x7-3102-float32": 345,
    "permute-2x3x4x5x6-42031-float32": 408,
    "permute-4097x7-10-float16": 5128,
    "permute-100x72-10-float32": 1944,
    "permute-33x1000-10-int8": 4192,
    "permute-300x7-10-int8": 215,
    "permute-2x6x6x64-0312-float32": 1280,
}
#: Tiles of aligned vectors whose pitch is not free of conflicts: a tenth of 10,752 wavefronts.
CONFLICTS = {"permute-4096x34-10-float32": 1024}


@pytest.mark.matrix
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_pattern(pattern: Pattern) -> None:
    with cuda_target("sm_90"):
        path, report = run(pattern)
    assert not report.hazards
    assert report.bank_conflicts == CONFLICTS.get(pattern.name, 0)
    if pattern.name in TILES:
        assert (path, report.sectors) == ("staged", TILES[pattern.name])
    elif pattern.index is None and pattern.name not in EXCEPTIONS:
        fewest = pattern.distinct_sectors()
        assert {name: sectors(report, name) for name in fewest} == fewest
    else:
        assert path in ("direct", "shifted")


ODD = [
    pytest.param((rows, columns), dtype, id=f"{rows}x{columns}-{dtype}")
    for rows, columns, dtype in pairwise(
        (rows, columns, dtype)
        for rows in (3, 5, 7, 8, 13, 14, 17, 18, 31, 32, 33, 43, 51, 57, 64, 65)
        for columns in range(1, 10)
        for dtype in ("float32", "float16", "int8")
    )
]


@pytest.mark.matrix
@pytest.mark.parametrize(("shape", "dtype"), ODD)
def test_small_odd_matrices_are_turned_without_conflicts(
    shape: tuple[int, int], dtype: str
) -> None:
    for one in (shape, shape[::-1]):
        _, report = run(permuted(one, (1, 0), dtype))
        assert (report.bank_conflicts, report.hazards) == (0, [])


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64"])
@pytest.mark.parametrize("order", [(1, 0), (0, 2, 1), (2, 1, 0)])
def test_a_permutation_of_whole_tiles_moves_every_sector_once(
    dtype: str, order: tuple[int, ...]
) -> None:
    pattern = permuted((128, 128) if len(order) == 2 else (32, 32, 32), order, dtype)
    path, report = run(pattern)
    assert path == "staged"
    assert report.bank_conflicts == 0
    fewest = pattern.distinct_sectors()
    assert {name: sectors(report, name) for name in fewest} == fewest


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
    permuted(shape, order, dtype)
    for shape, order in RAGGED
    for dtype in ("int8", "float16", "float32")
    if np.prod(shape) * np.dtype(dtype).itemsize < 45 << 10
]


@pytest.mark.matrix
@pytest.mark.parametrize("pattern", HELD, ids=lambda pattern: pattern.name)
def test_ragged_tensors_are_staged_without_conflicts(pattern: Pattern) -> None:
    path, report = run(pattern, "shared")
    assert (path, report.bank_conflicts) == ("staged", 0)
