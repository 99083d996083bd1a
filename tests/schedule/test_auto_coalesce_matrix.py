"""auto_coalesce over many access patterns: values, hazards, bank conflicts and sectors."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from tvm import s_tir, te

from tests.schedule.patterns import Pattern, all_patterns, permuted
from tvm_layout_ext.analysis.access import read_nest
from tvm_layout_ext.analysis.mapping import store_mapping
from tvm_layout_ext.analysis.staged_plan import Plan
from tvm_layout_ext.analysis.staging import Walk
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.simulate.report import Report
from tvm_layout_ext.transform import coalesce_staged
from tvm_layout_ext.transform.coalesce_staged import schedule_staged

PATTERNS = all_patterns()


def run(pattern: Pattern) -> tuple[str, Report]:
    """Map the pattern, run it, compare it with NumPy; also the way it was mapped."""
    sch = s_tir.Schedule(te.create_prim_func(pattern.tensors()))
    path = sch.auto_coalesce("B").path
    arrays = pattern.arrays(np.random.default_rng(0))
    report = simulate(sch, *arrays, None)
    np.testing.assert_array_equal(report.outputs["B"], pattern.numpy(*arrays))
    return path, report


def staged(pattern: Pattern) -> Report:
    """Stage the pattern, whatever it costs, and run it."""
    sch = s_tir.Schedule(te.create_prim_func(pattern.tensors()))
    block = sch.get_sblock("B")
    nest = read_nest(sch, block)
    mapping = store_mapping(nest, nest.loops, 16)
    loads = tuple(access for access in nest.accesses if access.kind == "load")
    schedule_staged(sch, block, nest, replace(mapping, disagreeing=loads), None, 16)
    return simulate(sch, *pattern.arrays(np.random.default_rng(0)), None)


def sectors(report: Report, buffer: str) -> int:
    return sum(access.sectors for access in report.accesses if access.buffer == buffer)


def test_there_are_more_than_sixty_patterns_with_names_of_their_own() -> None:
    assert len({pattern.name for pattern in PATTERNS}) == len(PATTERNS) > 60


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Plan]]:
    """The nests that are staged from now on, and how."""
    made: list[tuple[Any, Plan]] = []
    plan_tile = coalesce_staged.plan_tile

    def spy(nest: Any, *arguments: Any) -> Plan:
        made.append((nest, plan_tile(nest, *arguments)))
        return made[-1][1]

    monkeypatch.setattr(coalesce_staged, "plan_tile", spy)
    return made


def sectors_of_walk(walk: Walk, tile: list[int], nest: Any, kind: str) -> int:
    """Sectors of all requests of a side: 32 units each, whichever rows they belong to."""
    access = next(access for access in nest.accesses if access.kind == kind)
    extents = [loop.size for loop in nest.loops]
    (along,) = [dim for dim, step in enumerate(access.steps) if step == 1] or [0]
    places = walk.places(len(tile))
    others = [n if dim != along else 1 for dim, n in enumerate(walk.unit)]
    found = 0
    for corner in product(*(range(0, n, t) for n, t in zip(extents, tile, strict=True))):
        for element in np.indices(others).reshape(len(tile), -1).T:
            at = places + element
            inside = ((at < tile) & (at + corner < extents)).all(axis=1)
            first = (at + corner) @ np.array(access.steps) * access.bytes
            last = first + walk.unit[along] * access.bytes - 1
            for start in range(0, len(at), 32):
                lanes = [i for i in range(start, min(start + 32, len(at))) if inside[i]]
                found += len({s for i in lanes for s in range(first[i] // 32, last[i] // 32 + 1)})
    return found


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_every_input_of_a_pattern_has_a_count(pattern: Pattern) -> None:
    assert len(pattern.more) == len(pattern.inputs) - 1


def left_direct(pattern: Pattern, stored: int, loaded: int) -> None:
    """A permutation stays direct at its minimum, or where staging would not halve its sectors."""
    if loaded == pattern.least_sectors(store=False):
        return
    report = staged(pattern)
    now = {"A0": sectors(report, "A0"), "B": sectors(report, "B")}
    assert 2 * sum(now.values()) > stored + loaded
    assert now["B"] > stored


@pytest.mark.matrix
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_pattern(pattern: Pattern, plans: list[tuple[Any, Plan]]) -> None:
    path, report = run(pattern)
    assert not report.hazards
    assert report.bank_conflicts == 0
    others = range(1, len(pattern.inputs))
    if path == "direct":
        for of in others:
            least = pattern.least_sectors(store=False, in_order=True, of=of)
            assert 0 < sectors(report, f"A{of}") <= least
    if pattern.index is not None:
        return
    stored, loaded = sectors(report, "B"), sectors(report, "A0")
    if path == "direct":
        assert stored <= pattern.least_sectors(store=True)
        if pattern.name.startswith("permute"):
            left_direct(pattern, stored, loaded)
        else:
            assert loaded <= pattern.least_sectors(store=False, in_order=True)
        return
    assert not others
    nest, plan = plans[-1]
    assert stored == sectors_of_walk(plan.out, plan.tile, nest, "store")
    assert loaded == sectors_of_walk(plan.tiles[0].walk, plan.tile, nest, "load")
    # Where rows begin at sectors, no sector is moved twice.
    for store, shape, got in ((True, pattern.shape, stored), (False, pattern.inputs[0], loaded)):
        row = shape[-1] * np.dtype(pattern.dtype).itemsize
        if row % 32 == 0:
            assert got == pattern.least_sectors(store=store)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((1000, 33), "float32"), ((4096, 34), "float32"), ((4096, 7), "int8"), ((7, 1000), "float32")],
)
def test_short_rows_that_start_anywhere_are_read_as_one_range(
    shape: tuple[int, int], dtype: str
) -> None:
    pattern = permuted(shape, (1, 0), dtype)
    path, report = run(pattern)
    assert (path, report.bank_conflicts) == ("staged", 0)
    for buffer, store in (("A0", False), ("B", True)):
        assert sectors(report, buffer) == pattern.least_sectors(store=store)


ODD = [
    pytest.param((rows, columns), dtype, id=f"{rows}x{columns}-{dtype}")
    for rows in (3, 5, 7, 8, 13, 14, 17, 18, 31, 32, 33, 43, 51, 57, 64, 65)
    for columns in range(1, 10)
    for dtype in ("float32", "float16", "int8")
]


@pytest.mark.matrix
@pytest.mark.parametrize(("shape", "dtype"), ODD)
def test_small_odd_matrices_move_each_sector_once_without_conflicts(
    shape: tuple[int, int], dtype: str
) -> None:
    for one in (shape, shape[::-1]):
        pattern = permuted(one, (1, 0), dtype)
        _, report = run(pattern)
        assert report.bank_conflicts == 0
        for buffer, store in (("A0", False), ("B", True)):
            assert sectors(report, buffer) == pattern.least_sectors(store=store)


@pytest.mark.parametrize(
    ("shape", "order", "dtype"),
    [
        ((45, 26), (1, 0), "float32"),
        ((26, 45), (1, 0), "float32"),
        ((37, 41), (1, 0), "float16"),
        ((33, 33), (1, 0), "float16"),
        ((65, 17), (1, 0), "int8"),
        ((50, 50), (1, 0), "int8"),
    ],
)
def test_ragged_tensors_of_some_thousand_elements_move_each_sector_once(
    shape: tuple[int, ...], order: tuple[int, ...], dtype: str, plans: list[tuple[Any, Plan]]
) -> None:
    pattern = permuted(shape, order, dtype)
    path, report = run(pattern)
    assert (path, report.bank_conflicts, report.hazards) == ("staged", 0, [])
    for buffer, store in (("A0", False), ("B", True)):
        assert sectors(report, buffer) == pattern.least_sectors(store=store)
    ((_, plan),) = plans[-1:]
    assert plan.out.units <= 128 * plan.threads


def test_rows_of_seven_floats_are_turned_by_less_than_a_warp() -> None:
    pattern = permuted((33, 7), (1, 0), "float32")
    path, report = run(pattern)
    assert (path, report.sectors, report.bank_conflicts) == ("staged", 29 + 29, 0)


def pieces(rows: int, columns: int, width: int, piece: int, size: int) -> int:
    """Sectors of a matrix whose rows are cut at multiples of ``width``, and there into pieces."""
    found = 0
    for row in range(rows):
        for first in range(0, columns, width):
            for start in range(first, min(first + width, columns), piece):
                end = min(start + piece, first + width, columns)
                bounds = [(row * columns + at) * size for at in (start, end)]
                found += (bounds[1] - 1) // 32 - bounds[0] // 32 + 1
    return found


@pytest.mark.parametrize(
    ("shape", "dtype"), [((300, 202), "float32"), ((300, 300), "float16"), ((90, 202), "float32")]
)
def test_no_box_of_long_ragged_rows_moves_fewer_sectors(
    shape: tuple[int, int], dtype: str, plans: list[tuple[Any, Plan]]
) -> None:
    pattern = permuted(shape, (1, 0), dtype)
    _, report = run(pattern)
    ((_, plan),) = plans[-1:]
    assert plan.tiles[0].place.images is not None
    size, (rows, columns) = np.dtype(dtype).itemsize, shape
    read = 32 * plan.tiles[0].walk.unit[0]
    written = plan.out.pieces[0][1] * plan.out.unit[1]
    budget = int(np.prod(plan.tile))
    boxes = [
        pieces(rows, columns, wide, read, size)
        + pieces(columns, rows, budget // wide, written, size)
        for wide in (1 << bit for bit in range(budget.bit_length()))
    ]
    assert report.sectors == min(boxes)


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
