"""Rows that begin inside of vectors are turned by aligned vectors on both sides."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from tvm import s_tir, te, tirx
from tvm.script import tirx as T

from benchmarks.thread_programs import Program
from tests.programs.emitted import cuda_text, require_no_spills
from tests.programs.mapped import computed
from tvm_layout_ext import ScheduleError
from tvm_layout_ext.coalesce.cost import count_kernels
from tvm_layout_ext.coalesce.propose.turned import turned
from tvm_layout_ext.coalesce.request import Request
from tvm_layout_ext.coalesce.subject import Subject
from tvm_layout_ext.coalesce.turned.move import Turn, read_turn, why_not
from tvm_layout_ext.coalesce.turned.plan import TurnedTile, TurnPlan, default_plan
from tvm_layout_ext.coalesce.turned.write import write_tiles
from tvm_layout_ext.ir.annotations import TURNED
from tvm_layout_ext.simulate import Report, simulate

PROGRAMS = (
    Program("permute", (131, 261), "float16", (1, 0)),
    Program("permute", (2, 96, 13, 13), "float16", (0, 2, 3, 1)),
    Program("permute", (2, 13, 13, 96), "float16", (0, 3, 1, 2)),
    Program("permute", (1038, 210), "int8", (1, 0)),
    Program("permute", (77, 133), "float32", (1, 0)),
    Program("permute", (3, 67, 131), "int16", (2, 0, 1)),
    Program("permute", (3, 130, 71), "float64", (0, 2, 1)),
)


def turn_of(program: Program) -> Turn:
    sch = s_tir.Schedule(program.function())
    turn = read_turn(sch.get(sch.get_sblock("B")))
    assert turn is not None
    return turn


def by_plan(program: Program, plan: TurnPlan) -> s_tir.Schedule:
    sch = s_tir.Schedule(program.function())
    sch.annotate(sch.get_sblock("B"), TURNED, list(plan.numbers()))
    return sch


def gives_numpys(program: Program, sch: Any) -> Report:
    (shape, dtype), *_ = program.inputs()
    a = np.random.default_rng(0).integers(-100, 100, shape).astype(dtype)
    report = simulate(sch, a, None, progress=False)
    (got,) = report.outputs.values()
    np.testing.assert_array_equal(got, a.transpose(program.axes))
    assert not report.hazards
    return report


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.name)
def test_vectors_of_both_sides_are_whole(program: Program) -> None:
    report = gives_numpys(program, by_plan(program, default_plan(turn_of(program), None)))
    found = [one for one in report.accesses if one.scope == "global"]
    for kind in ("load", "store"):
        own = [one for one in found if one.kind == kind]
        wide = [one for one in own if one.vector_bytes == 16]
        # The rest are the ends of rows, of which these small programs have many.
        assert sum(one.sectors for one in wide) > 0.5 * sum(one.sectors for one in own)


def drawn(rng: random.Random) -> tuple[Program, TurnPlan]:
    dtype = rng.choice(["int8", "float16", "float32", "float64"])
    size = np.dtype(dtype).itemsize
    rank = rng.choice([2, 3, 4])
    shape = [rng.randint(64 // size, 200 // size + 64) for _ in range(2)]
    shape += [rng.randint(1, 3) for _ in range(rank - 2)]
    axes = list(range(rank))
    rng.shuffle(shape)
    while axes[-1] == rank - 1:
        rng.shuffle(axes)
    program, vector = Program("permute", tuple(shape), dtype, tuple(axes)), 16 // size
    row, column = (vector * rng.choice(some) for some in ((1, 2, 5, 8), (2, 4, 6)))
    return program, TurnPlan(row, column, rng.choice([32, 96, 256]))


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(120))
def test_plans_of_any_numbers_give_numpys_elements(seed: int) -> None:
    program, plan = drawn(random.Random(seed))
    sch = s_tir.Schedule(program.function())
    turn = read_turn(sch.get(sch.get_sblock("B")))
    if turn is not None and not why_not(turn):
        gives_numpys(program, by_plan(program, plan))


@pytest.mark.costly
@pytest.mark.parametrize(("shape", "most"), [((129, 259), 1), ((195, 259), 4), ((129, 264), 2)])
def test_lanes_of_a_column_meet_in_few_banks(shape: Any, most: int) -> None:
    """Aligned on both sides, lanes differ in a vector's word as the product of row lengths says."""
    program = Program("permute", shape, "float16", (1, 0))
    report = gives_numpys(program, by_plan(program, TurnPlan(128, 128, 256)))
    loads = [a for a in report.accesses if a.scope == "shared" and a.kind == "load"]
    assert sum(a.wavefronts for a in loads) <= most * sum(a.requests for a in loads)


def test_rows_of_the_result_that_are_cut_are_long() -> None:
    for columns, proposed in ((511, 0), (513, 1)):
        program = Program("permute", (columns, 515), "float16", (1, 0))
        assert len(turned(subject_of(s_tir.Schedule(program.function())))) == proposed


@pytest.mark.costly
@pytest.mark.parametrize("shape", [(1067, 131), (1067, 130)])
def test_iterators_of_64_bits(shape: tuple[int, int]) -> None:
    rows, columns = (tirx.const(n, "int64") for n in shape)
    a = te.placeholder((rows, columns), "float16", "A")
    b = te.compute((columns, rows), lambda i, j: a[j, i], "B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    (way,) = turned(subject_of(sch))
    way.apply(sch, sch.get_sblock("B"))
    values = np.random.default_rng(0).integers(-100, 100, shape).astype("float16")
    report = simulate(sch, values, None, progress=False)
    (got,) = report.outputs.values()
    np.testing.assert_array_equal(got, values.T)
    own = [one for one in report.accesses if one.scope == "global"]
    assert sum(x.sectors for x in own if x.vector_bytes == 16) > 0.8 * sum(x.sectors for x in own)


def test_no_two_blocks_store_to_a_sector_but_at_the_ends_of_rows() -> None:
    program = Program("permute", (520, 515), "float16", (1, 0))
    turn = turn_of(program)
    assert turn.stores_askew
    assert not turn.cuts_vectors
    assert turn.unit == 16
    sch = by_plan(program, default_plan(turn, None))
    gives_numpys(program, sch)
    (work,) = count_kernels(write_tiles(sch.mod["main"])[0])
    # Where a row ends and the next one begins, another one stores the rest of the sector.
    assert work.total("partial", "store") < 1.5 * 515


def test_what_is_computed_of_an_element_is_stored() -> None:
    sch = computed(
        (1067, 131),
        lambda a, i, j: a[j, i].astype("float16") * te.const(3, "float16"),
        "int8",
        out=(131, 1067),
    )
    (way,) = turned(subject_of(sch))
    way.apply(sch, sch.get_sblock("B"))
    a = np.random.default_rng(0).integers(-100, 100, (1067, 131)).astype("int8")
    (got,) = simulate(sch, a, None, progress=False).outputs.values()
    np.testing.assert_array_equal(got, a.T.astype("float16") * np.float16(3))


def subject_of(sch: s_tir.Schedule, **options: Any) -> Subject:
    return Subject.of(sch, sch.get_sblock("B"), Request(**options))


@pytest.mark.parametrize(
    "program",
    [
        Program("permute", (10001, 15003), "float16", (1, 0)),
        Program("permute", (32, 96, 113, 113), "float16", (0, 2, 3, 1)),
    ],
    ids=lambda one: one.name,
)
def test_auto_coalesce_takes_them_for_large_arrays(program: Program) -> None:
    outcome = s_tir.Schedule(program.function()).auto_coalesce("B")
    assert "rows where vectors lie" in outcome.text
    assert {one.vector_bytes for one in outcome.after if one.kind == "load"} <= {16, 1, 2}


def test_the_choice_is_in_the_trace() -> None:
    program = Program("permute", (2001, 3003), "float16", (1, 0))
    sch = s_tir.Schedule(program.function())
    (way,) = turned(subject_of(sch))
    way.apply(sch, sch.get_sblock("B"))
    again = s_tir.Schedule(program.function())
    sch.trace.apply_to_schedule(again, remove_postproc=False)
    assert cuda_text(again) == cuda_text(sch)


REFUSED = (
    (Program("permute", (128, 256), "float16", (1, 0)), "rows begin with vectors on one side"),
    (Program("permute", (999, 31), "float16", (1, 0)), "rows of A have 62 bytes, fewer than 64"),
    (Program("permute", (31, 999), "float16", (1, 0)), "rows of B have 62 bytes, fewer than 64"),
    (Program("permute", (129, 257), "bool", (1, 0)), "A has elements of bool"),
)


@pytest.mark.parametrize(("program", "reason"), REFUSED, ids=lambda one: getattr(one, "name", ""))
def test_others_are_left_to_other_maps(program: Program, reason: str) -> None:
    assert why_not(turn_of(program)).startswith(reason)
    assert turned(subject_of(s_tir.Schedule(program.function()))) == []


NO_TURNS = (
    ((67, 131), lambda a, i, j: a[i, j] * 2, (67, 131)),
    ((67, 131), lambda a, i, j: a[j, i] + a[j, 0], (131, 67)),
    ((67, 131), lambda a, i, j: a[j, i] + i, (131, 67)),
    ((67, 131), lambda a, i, j: a[66 - j, i], (131, 67)),
)


@pytest.mark.parametrize(("shape", "rule", "out"), NO_TURNS)
def test_no_turn_is_seen_in_other_blocks(shape: Any, rule: Any, out: Any) -> None:
    sch = computed(shape, rule, "int32", out=out)
    assert read_turn(sch.get(sch.get_sblock("B"))) is None


def test_narrower_requests_and_other_stages_have_none() -> None:
    sch = s_tir.Schedule(PROGRAMS[0].function())
    assert turned(subject_of(sch, vector_bytes=8)) == []
    assert turned(subject_of(sch, stage="none")) == []


def test_threads_asked_for_are_those_of_the_kernel() -> None:
    sch = s_tir.Schedule(Program("permute", (2001, 131), "float16", (1, 0)).function())
    (way,) = turned(subject_of(sch, num_threads=64))
    assert "64 threads" in way.apply(sch, sch.get_sblock("B"))


def test_a_mark_on_another_block_is_refused() -> None:
    sch = computed((64, 65), lambda a, i, j: a[i, j] * 2)
    sch.annotate(sch.get_sblock("B"), TURNED, [64, 64, 256])
    with pytest.raises(ScheduleError, match="but it turns no rows into columns"):
        simulate(sch, np.zeros((64, 65), "float32"), None, progress=False)


def test_instructions_are_those_that_the_kernel_tells() -> None:
    plan = TurnPlan(64, 64, 64)
    written, told = write_tiles(by_plan(PROGRAMS[0], plan).mod["main"])
    (work,) = count_kernels(written)
    steps, units = (64 + 15) * 9 / 64, 64 * 8 / 64
    assert told == {"B": str(TurnedTile(turn_of(PROGRAMS[0]), plan))}
    assert work.instructions == work.blocks * 2 * (30 * -(-steps // 1) + units * (20 + 3 * 8))


def test_bound_loops_are_refused() -> None:
    sch = by_plan(PROGRAMS[0], TurnPlan(64, 64, 64))
    sch.bind(sch.get_loops("B")[0], "blockIdx.x")
    with pytest.raises(ScheduleError, match="its loops are bound"):
        gives_numpys(PROGRAMS[0], sch)


def test_loops_that_leave_iterations_out_are_no_turn() -> None:
    @T.prim_func(s_tir=True)
    def partly(A: T.Buffer((35, 24), "float32"), B: T.Buffer((24, 35), "float32")) -> None:
        for f in range(70):
            with T.sblock("B"):
                vi = T.axis.spatial(24, f % 24)
                vj = T.axis.spatial(35, f % 35)
                B[vi, vj] = A[vj, vi]

    sch = s_tir.Schedule(partly)
    assert turned(subject_of(sch)) == []
    sch.annotate(sch.get_sblock("B"), TURNED, [32, 32, 64])
    with pytest.raises(ScheduleError, match="its loops are not those of its iterators"):
        simulate(sch, np.zeros((35, 24), "float32"), None, progress=False)


@pytest.mark.nvcc
def test_nothing_is_spilled(tmp_path: Any) -> None:
    program = Program("permute", (10001, 15003), "float16", (1, 0))
    require_no_spills(cuda_text(by_plan(program, default_plan(turn_of(program), None))), tmp_path)
