"""auto_coalesce of permutations whose rows start anywhere: no bank twice, the fewest sectors."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import s_tir, te

import tvm_layout_ext as tlx
from tests.schedule.patterns import Pattern, permuted
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.simulate.report import Report


def staged(pattern: Pattern, stage: str = "auto", path: str = "staged") -> Report:
    """Map a pattern, which must take this path, and compare it with NumPy."""
    sch = s_tir.Schedule(te.create_prim_func(pattern.tensors()))
    assert sch.auto_coalesce("B", stage=stage).path == path
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


def least(pattern: Pattern) -> dict[str, int]:
    return {"A0": pattern.least_sectors(store=False), "B": pattern.least_sectors(store=True)}


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
    assert sectors(staged(pattern)) == least(pattern)


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


#: Sizes of which some or none are whole sectors; with every type that leaves 48 KB a block.
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


#: Of these a tile's stores move more than the loops as they are, and both sides not half as much in
#: all: without one block for the whole they stay in the order of the store.
DIRECT = {
    "permute-33x7x33-021-float32",
    "permute-7x33x7-102-float32",
    "permute-7x33x7-102-float64",
    "permute-3x5x7x33-3102-float64",
}


@pytest.mark.matrix
@pytest.mark.parametrize("pattern", HELD)
def test_what_a_block_can_hold_moves_each_sector_once_without_conflicts(pattern: Pattern) -> None:
    """Some need one block for that, and tiles are faster; no tile moves less than the least."""
    fewest = least(pattern)
    assert sectors(staged(pattern, "whole")) == fewest
    moved = sectors(staged(pattern, path="direct" if pattern.name in DIRECT else "staged"))
    assert all(moved[name] >= fewest[name] for name in fewest)


def test_sides_of_different_width_move_each_sector_once() -> None:
    """A cast, too: requests of 16 lanes of 2 bytes, and of 8 of 4, are whole sectors."""
    a = te.placeholder((63, 65), "float16", "A0")
    b = te.compute((65, 63), lambda j, i: a[i, j].astype("float32"), "B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    assert sch.auto_coalesce("B", stage="whole").path == "staged"
    value = np.random.default_rng(0).random((63, 65)).astype("float16")
    report = simulate(sch, value, None)
    np.testing.assert_array_equal(report.outputs["B"], value.T.astype("float32"))
    assert (report.bank_conflicts, report.hazards) == (0, [])
    assert sectors(report) == {"A0": -(-63 * 65 * 2 // 32), "B": -(-63 * 65 * 4 // 32)}


def test_a_second_operand_is_read_in_the_order_of_the_store() -> None:
    a, c = te.placeholder((33, 100), "float32", "A0"), te.placeholder((100, 33), "float32", "C")
    b = te.compute((100, 33), lambda j, i: a[i, j] + c[j, i], "B")
    sch = s_tir.Schedule(te.create_prim_func([a, c, b]))
    assert sch.auto_coalesce("B", stage="whole").path == "staged"
    rng = np.random.default_rng(0)
    one, other = (rng.random(n).astype("float32") for n in ((33, 100), (100, 33)))
    report = simulate(sch, one, other, None)
    np.testing.assert_array_equal(report.outputs["B"], one.T + other)
    assert (report.bank_conflicts, report.hazards) == (0, [])
    assert report.sectors == 3 * 413


def test_the_way_of_one_block_replays_from_its_trace() -> None:
    pattern = permuted((33, 100), (1, 0), "float32")
    func = te.create_prim_func(pattern.tensors())
    sch = s_tir.Schedule(func)
    outcome = sch.auto_coalesce("B", stage="whole")
    assert "tile 100x33, 512 threads, one block, 16 lanes in and 16 out" in outcome.text
    again = s_tir.Schedule(func)
    s_tir.schedule.Trace.apply_json_to_schedule(sch.trace.as_json(), again)
    assert sch.mod.script() == again.mod.script()


def test_fewer_threads_are_taken_where_asked_for_while_the_steps_suffice() -> None:
    pattern = permuted((100, 100), (1, 0), "float32")
    sch = s_tir.Schedule(te.create_prim_func(pattern.tensors()))
    outcome = sch.auto_coalesce("B", num_threads=128, stage="whole")
    assert "128 threads, one block" in outcome.text
    sch = s_tir.Schedule(te.create_prim_func(pattern.tensors()))
    with pytest.raises(ScheduleError, match=r"for 100x100 elements of A0 .* with 32 threads"):
        sch.auto_coalesce("B", num_threads=32, stage="whole")
