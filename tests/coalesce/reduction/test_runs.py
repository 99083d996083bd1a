"""Results whose elements lie in short runs side by side, as the channels of groups in pixels."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import s_tir

from benchmarks.thread_programs import Program
from tests.programs.reduced import gives_numpys
from tvm_layout_ext.analysis.nest import read_nest
from tvm_layout_ext.coalesce.reduction.propose import propose_reduction
from tvm_layout_ext.coalesce.request import Request
from tvm_layout_ext.ir.annotations import DONE


def ways(program: Program) -> tuple[s_tir.Schedule, Any, list[Any]]:
    """A schedule, its block, and all that is proposed for it."""
    sch = s_tir.Schedule(program.function())
    block = sch.get_sblock("B")
    return sch, block, propose_reduction(read_nest(sch, block), Request())


#: Kind, shape (images, pixels, groups, channels of a group), type, and what a block takes.
CASES = [
    ("sum", (1, 2048, 32, 4), "float16", "32 runs of 1 vectors of 4 by 16 rows"),
    ("sum", (2, 512, 32, 10), "float16", "32 runs of 5 vectors of 2 by 2 rows"),
    ("max", (1, 512, 32, 20), "float16", "32 runs of 5 vectors of 4 by 2 rows"),
    ("sum", (1, 256, 32, 30), "float16", "16 runs of 15 vectors of 2 by 2 rows"),
    ("sum", (1, 1000, 7, 3), "float32", "7 runs of 3 vectors of 1 by 16 rows"),
    ("max", (3, 1003, 16, 12), "int8", "16 runs of 3 vectors of 4 by 8 rows"),
]


@pytest.mark.parametrize(("kind", "shape", "dtype", "text"), CASES)
def test_runs_of_neighbours_give_numpys_results(
    kind: str, shape: tuple[int, ...], dtype: str, text: str
) -> None:
    program = Program(kind, shape, dtype, (1, 3))
    sch, block, (first, *_) = ways(program)
    told = first.apply(sch, block)
    assert text in told
    sch.annotate(block, DONE, first.path)
    gives_numpys(program, sch)


def test_sums_of_groups_of_channels_load_each_sector_once() -> None:
    """A block for a part of one group loaded sectors of 32 bytes for runs of 8."""
    program = Program("sum", (1, 4096, 32, 4), "float16", (1, 3))
    sch, block, (first, second, *_) = ways(program)
    other = sch.copy()
    moved = []
    for one, way in ((sch, first), (other, second)):
        way.apply(one, block)
        one.annotate(block, DONE, way.path)
        report = gives_numpys(program, one)
        moved.append(sum(a.sectors for a in report.accesses if a.buffer == "A"))
    assert moved == [4096 * 32 * 4 * 2 // 32, 4 * 4096 * 32 * 4 * 2 // 32]


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        # A run is a line; runs are all there is; results do not lie side by side.
        ((1, 4096, 32, 64), (1, 3)),
        ((4096, 32, 4), (2,)),
        ((32, 4096, 4), (1, 2)),
    ],
)
def test_other_sums_have_no_runs(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    sch, block, found = ways(Program("sum", shape, "float16", axes))
    for way in found:
        assert "runs of" not in way.apply(sch.copy(), block)


def test_many_groups_of_a_large_image_are_summed_by_runs() -> None:
    """Measured on an H200: 18.6 us where a block for a part of each group took 60.6."""
    sch = s_tir.Schedule(Program("sum", (1, 512 * 512, 32, 4), "float16", (1, 3)).function())
    assert "32 runs of 1 vectors of 4 by 16 rows, in 256 slabs" in sch.auto_coalesce("B").text
