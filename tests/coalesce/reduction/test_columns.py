"""Lanes along the columns of a reduction, rows dealt out to threads, and rows as single columns."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tvm import s_tir

from benchmarks.thread_programs import Program
from tests.programs.reduced import gives_numpys
from tvm_layout_ext.analysis.nest import read_nest
from tvm_layout_ext.coalesce.reduction.columns import ColumnsTile, reduce_across_rows
from tvm_layout_ext.coalesce.reduction.plan import ReductionPlan
from tvm_layout_ext.ir.annotations import DONE, MIN_BLOCKS
from tvm_layout_ext.simulate.report import Report


def run(program: Program, tile: ColumnsTile) -> Report:
    """Map by a tile, simulate, and compare with NumPy."""
    sch = s_tir.Schedule(program.function())
    block = sch.get_sblock("B")
    nest = read_nest(sch, block)
    plan = replace(ReductionPlan.of(nest, 16), vector=tile.vector)
    reduce_across_rows(sch, block, nest, plan, tile)
    sch.annotate(block, DONE, "reduction")
    return gives_numpys(program, sch)


#: Program, tile, and the bank conflicts of all requests together.
CASES = [
    (("sum", (1024, 256), "float16", (0,)), (32, 8, 8, 4), 0),
    (("sum", (1024, 500), "float32", (0,)), (32, 4, 8, 4), 0),
    (("sum", (1000, 33), "float32", (0,)), (32, 1, 8, 4), 0),
    (("sum", (1000, 33), "float32", (0,)), (33, 1, 16, 4), 15),
    (("sum", (300, 16, 64), "float32", (0,)), (32, 2, 8, 4), 0),
    (("max", (1003, 100), "float16", (0,)), (32, 1, 8, 4), 0),
    (("max", (300, 250), "int8", (0,)), (32, 1, 8, 4), 0),
    (("sum", (512, 256), "float32", (0,)), (64, 4, 4, 8), 0),
    (("sum", (3001, 2), "float16", (0,)), (2, 1, 128, 4), None),
    (("sum", (3001, 3), "float32", (0,)), (3, 1, 96, 4), None),
    (("argmax", (3001, 33), "float32", (0,)), (33, 1, 8, 4), None),
    (("argmax", (1024, 64), "float16", (0,)), (16, 4, 8, 4), None),
    (("argmax", (5, 300, 4), "float32", (1,)), (4, 1, 32, 4), None),
    (("sum", (5, 300, 40), "float16", (0, 1)), (40, 1, 8, 4), None),
    (("max", (400, 4, 31, 1), "float16", (0,)), (31, 1, 8, 4), None),
    (("sum", (5, 6, 7, 64), "float16", (1, 2)), (16, 4, 4, 2), None),
    # Short rows side by side: the last number.
    (("sum", (40, 16, 50, 6), "int8", (0, 1)), (3, 2, 2, 4, 1, 50), None),
    (("argmax", (64, 24, 8), "float32", (0,)), (2, 4, 4, 4, 1, 12), None),
    (("max", (3, 70, 30, 5), "float16", (1,)), (5, 1, 8, 2, 1, 6), None),
]


@pytest.mark.parametrize(("program", "tile", "conflicts"), CASES)
def test_columns(program: tuple, tile: tuple[int, ...], conflicts: int | None) -> None:
    report = run(Program(*program), ColumnsTile(*tile))
    assert conflicts in (None, report.bank_conflicts)


def test_loads_and_results_move_the_fewest_sectors() -> None:
    report = run(Program("sum", (1024, 512), "float16", (0,)), ColumnsTile(64, 8, 4, 8))
    sectors = {"A": 0, "B": 0}
    for access in report.accesses:
        if access.scope == "global":
            sectors[access.buffer] += access.sectors
    assert sectors == {"A": 1024 * 512 * 2 // 32, "B": 512 * 4 // 32}


def test_rows_that_whole_blocks_take_lie_together() -> None:
    """33 columns had 3 strips, whose warps touched 1.43 times the sectors."""
    report = run(Program("sum", (3200, 33), "float32", (0,)), ColumnsTile(33, 1, 16, 5))
    moved = sum(one.sectors for one in report.accesses if one.buffer == "A")
    assert moved == pytest.approx(3200 * 33 * 4 / 32, rel=0.05)


@pytest.mark.parametrize(("tile", "blocks"), [((32, 4, 8, 4), 4), ((32, 4, 16, 4), 2)])
def test_threads_have_registers_for_all_their_loads(tile: tuple[int, ...], blocks: int) -> None:
    sch = s_tir.Schedule(Program("sum", (1024, 512), "float32", (0,)).function())
    block = sch.get_sblock("B")
    nest = read_nest(sch, block)
    reduce_across_rows(sch, block, nest, ReductionPlan.of(nest, 16), ColumnsTile(*tile))
    assert f'"{MIN_BLOCKS}": {blocks}' in sch.mod.script()


@pytest.mark.parametrize(
    ("shape", "axes", "lanes"),
    [
        ((64, 32, 18476, 6), (0, 1), "62 times 3 lanes by 2 rows"),
        ((512, 1024, 64), (0,), "4 times 8 lanes by 8 rows"),
        ((65536, 1000), (0,), "25 lanes by 8 rows"),
        ((1000000, 33), (0,), "33 lanes by 8 rows"),
        # Rows of other results lie between.
        ((64, 100000, 4), (1,), "1 lanes by 256 rows"),
    ],
)
def test_a_block_takes_512_bytes_of_a_row(
    shape: tuple[int, ...], axes: tuple[int, ...], lanes: str
) -> None:
    dtype = "int8" if shape[-1] == 6 else "float16" if shape[-1] != 33 else "float32"
    sch = s_tir.Schedule(Program("sum", shape, dtype, axes).function())
    assert lanes in sch.auto_coalesce("B").report


def test_a_tile_says_what_it_is() -> None:
    assert str(ColumnsTile(3, 2, 2, 4, beside=50)) == "50 times 3 lanes by 2 rows, vectors of 2"
    assert str(ColumnsTile(32, 4, 8, 2)) == "32 lanes by 8 rows, vectors of 4"
    assert str(ColumnsTile(1, 1, 512, 8, 4)) == "512 lanes along a row, vectors of 4"
    assert (ColumnsTile(33, 1, 16, 8).threads, ColumnsTile(2, 1, 128, 8).near) == (528, 32)
