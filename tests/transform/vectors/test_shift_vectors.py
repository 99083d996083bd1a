"""The pass that shifts vectors into place: what it makes and refuses, what nvcc makes of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm import s_tir, te, tirx

from tests.programs.emitted import cuda_text, require_no_spills
from tests.programs.mapped import computed, share
from tests.programs.patterns import Pattern, padded, sliced
from tvm_layout_ext import decisions
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.ir.rebuild import loop_with
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.transform import MarkAnnotated, ShiftVectors
from tvm_layout_ext.transform.vectors.shift_vectors import SHIFTED

SLICE = sliced((66, 1002), (1, 1), (64, 1000), "float16")
PAD = padded((64, 1000), (1, 1), (1, 1), "int8")


def scheduled(move: Pattern) -> s_tir.Schedule:
    sch = s_tir.Schedule(te.create_prim_func(move.tensors()))
    assert sch.auto_coalesce("B").path == "shifted"
    return sch


def passed(mod: tvm.IRModule) -> tvm.IRModule:
    return ShiftVectors()(MarkAnnotated()(mod))


def test_loads_are_aligned_vectors_that_a_warp_passes_on() -> None:
    text = passed(scheduled(SLICE).mod).script()
    assert text.count("tvm_warp_shuffle_down") == 4
    assert re.findall(r"A0\[0, T.Ramp\((.*), 1, 8\)\]", text) == [
        "B_place[2] // 8 * 8",
        "(B_place[2] // 8 + 1) * 8",
    ]
    # 66,132 elements leave half a vector; each of the two may be that one.
    assert text.count("A0[0, 66128 + v]") == 2
    assert SHIFTED not in text


def test_a_row_of_whole_vectors_needs_no_second_window() -> None:
    assert "B_other_row" not in passed(scheduled(SLICE).mod).script()
    assert "B_other_row" in passed(scheduled(PAD).mod).script()


BORDERS = [
    # One element behind a row: the next one is in the same vectors.
    ((5, 64), (1, 1), (1, 1)),
    ((40, 61), (0, 3), (0, 0)),
    ((40, 61), (0, 0), (0, 1)),
    ((3, 7, 62), (0, 0, 1), (1, 2, 1)),
    ((3, 7, 62), (1, 1, 1), (0, 0, 1)),
    # More: it has vectors of its own.
    ((40, 61), (0, 2), (0, 3)),
    ((40, 61), (1, 0), (1, 9)),
]


@pytest.mark.parametrize(("shape", "before", "after"), BORDERS)
@pytest.mark.parametrize(("dtype", "value"), [("int8", 0), ("int8", -3), ("float16", -1.5)])
def test_borders_of_any_value(
    shape: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...], dtype: str, value: Any
) -> None:
    move = padded(shape, before, after, dtype, value=value)
    arrays = move.arrays()
    report = simulate(annotated(move, 16 if dtype == "int8" else 8), *arrays, None)
    assert (report.outputs["B"] == move.expected(*arrays)).all()


def test_rows_are_put_together_by_words() -> None:
    text = cuda_text(scheduled(padded((64, 64), (1, 1), (1, 1), "int8")))
    assert "B_hole" in text
    # Two masks a word, and four words that move up by the gap.
    assert len(re.findall(r"B_other_words_ptr\[\d\] = __funnelshift_lc", text)) == 4
    assert not re.findall(r"B_row_ptr\[\d+\] = ", text)


@pytest.mark.parametrize(("dtype", "bits"), [("bfloat16", 0x3FC0), ("float16", 0x3E00)])
def test_a_border_of_floats_is_a_number(dtype: str, bits: int) -> None:
    text = cuda_text(scheduled(padded((64, 61), (1, 1), (1, 1), dtype, value=1.5)))
    assert str(bits << 16 | bits) in text


def test_it_notes_what_it_did() -> None:
    mod = scheduled(SLICE).mod
    with decisions.collect() as notes:
        passed(mod)
    (note,) = notes
    assert str(note) == "ShiftVectors chose for B: vectors of 8 by shuffles and shifts"


def marked(sch: s_tir.Schedule, vector: int = 8, threads: int = 128) -> s_tir.Schedule:
    """Bind block B by hand, and mark it."""
    share(sch, threads, vector)
    sch.annotate(sch.get_sblock("B"), SHIFTED, vector)
    return sch


def annotated(move: Pattern, vector: int, threads: int = 128) -> s_tir.Schedule:
    return marked(s_tir.Schedule(te.create_prim_func(move.tensors())), vector, threads)


@pytest.mark.parametrize("move", [SLICE, sliced((9, 1003), (1, 1), (7, 1001), "float16")])
def test_a_block_may_be_marked_by_hand(move: Pattern) -> None:
    arrays = move.arrays()
    report = simulate(annotated(move, 8), *arrays, None)
    assert (report.outputs["B"] == move.expected(*arrays)).all()


def added() -> s_tir.Schedule:
    sch = computed((66, 1002), lambda a, i, j: a[i + 1, j + 1] + a[i, j], "float16", out=(64, 1000))
    return marked(sch)


def of_another_length() -> s_tir.Schedule:
    sch = annotated(SLICE, 4)
    block = sch.get_sblock("B")
    sch.unannotate(block, SHIFTED)
    sch.annotate(block, SHIFTED, 8)
    return sch


def bound(columns: int, outer: int, inner: int, *, by_column: bool = False) -> s_tir.Schedule:
    """Rows to blocks, and a row's vectors to threads: the next lane has another vector, or row."""
    move = sliced((70, columns + 3), (1, 1), (64, columns), "float16")
    sch = s_tir.Schedule(te.create_prim_func(move.tensors()))
    row, column = sch.get_loops(sch.get_sblock("B"))
    if by_column:
        grid, thread = sch.split(row, [outer, inner])
        _, vector = sch.split(column, [None, 8])
    else:
        grid = row
        _, thread, vector = sch.split(column, [outer, inner, 8])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.vectorize(vector)
    sch.annotate(sch.get_sblock("B"), SHIFTED, 8)
    return sch


def in_a_branch() -> tvm.IRModule:
    """Half of the threads do it: the others would miss in the shuffles."""
    mod = annotated(SLICE, 8).mod

    def branched(loop: tirx.For) -> tirx.For:
        if loop.thread_binding is None or loop.thread_binding.thread_tag != "threadIdx.x":
            return loop
        return loop_with(loop, body=tirx.IfThenElse(loop.loop_var < 64, loop.body, None))

    body = tvm_ffi.structural_map(mod["main"].body, [(tirx.For, branched)], order="post")
    return tvm.IRModule({"main": mod["main"].with_body(body)})


def without_an_end() -> tvm.IRModule:
    """The last elements are left out, as no split of a loop does."""
    mod = annotated(sliced((9, 1003), (1, 1), (7, 1001), "float16"), 8).mod

    def shorter(realize: s_tir.SBlockRealize) -> s_tir.SBlockRealize:
        if not isinstance(realize.predicate, tirx.LT):
            return realize
        end = realize.predicate.a < realize.predicate.b - 1
        return s_tir.SBlockRealize(realize.iter_values, end, realize.block)

    body = tvm_ffi.structural_map(mod["main"].body, [(s_tir.SBlockRealize, shorter)], order="post")
    return tvm.IRModule({"main": mod["main"].with_body(body)})


def intermediate() -> s_tir.Schedule:
    a = te.placeholder((66, 1002), "float16", "A")
    b = te.compute((64, 1000), lambda i, j: a[i + 1, j + 1], "B")
    c = te.compute((64, 1000), lambda i, j: b[i, j] * b[i, j], "C")
    return marked(s_tir.Schedule(te.create_prim_func([a, c])))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (added, "it moves no elements"),
        (of_another_length, "its innermost loop is not a vector of 8"),
        (lambda: annotated(SLICE, 8, 48), "its threads are not threadIdx.x alone, in whole warps"),
        (
            lambda: annotated(sliced((9, 13), (1, 1), (7, 9), "float16"), 8),
            "rows of 9 are too short",
        ),
        (lambda: bound(1001, 1, 128), "its vectors begin at .*, no multiple of 8"),
        (lambda: bound(1000, 2, 32, by_column=True), "do not follow each other"),
        (lambda: bound(1000, 1, 128), "is not the end of B"),
        (without_an_end, "is not the end of B"),
        (in_a_branch, "not all lanes of a warp come to it, by .* < 64"),
        (intermediate, "B is no parameter of the function"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(make: Any, why: str) -> None:
    made = make()
    mod = made if isinstance(made, tvm.IRModule) else made.mod
    with pytest.raises(ScheduleError, match=f"^Block B is marked layout_ext.shifted, but .*{why}"):
        passed(mod)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "move",
    [
        sliced((66, 1002), (1, 1), (64, 1000), "float16"),
        padded((64, 1000), (1, 1), (1, 1), "int8"),
        padded((64, 1000), (1, 1), (1, 1), "bfloat16"),
        sliced((66, 1003), (1, 1), (64, 1001), "float16", "float32"),
        padded((64, 1000), (1, 1), (1, 2), "float64"),
    ],
    ids=lambda move: move.name,
)
@pytest.mark.nvcc
def test_registers_are_all_that_ptxas_needs(move: Pattern, tmp_path: Path) -> None:
    said = require_no_spills(cuda_text(scheduled(move)), tmp_path)
    registers = re.search(r"Used (\d+) registers", said)
    assert registers is not None
    # 2,048 threads of a multiprocessor share 65,536.
    assert int(registers.group(1)) <= 32
