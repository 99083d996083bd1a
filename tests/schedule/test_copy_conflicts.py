"""Tiles that a copy inside a kernel fills and others read: their bank conflicts are told."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tvm import s_tir, te
from tvm.script import tirx as T

from tests.programs.tiles import transposed, upside_down
from tvm_layout_ext import decisions
from tvm_layout_ext.schedule.copy_conflicts import UncountedTile, tile_conflicts
from tvm_layout_ext.simulate import simulate


@T.prim_func(s_tir=True)
def gathered(
    A: T.Buffer((32, 32), "float32"), P: T.Buffer((32,), "int32"), B: T.Buffer((32, 32), "float32")
) -> None:
    A_shared = T.sblock_alloc_buffer((32, 32), scope="shared")
    for _ in T.thread_binding(1, "blockIdx.x"):
        for i, j in T.grid(32, 32):
            with T.sblock("A_shared"):
                vi, vj = T.axis.remap("SS", [i, j])
                A_shared[vi, vj] = A[vi, vj]
        for j in T.thread_binding(32, "threadIdx.x"):
            for i in range(32):
                with T.sblock("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A_shared[P[vj], vi]


def numbers(rows: int, columns: int, dtype: str) -> np.ndarray:
    return np.random.default_rng(0).integers(-100, 100, (rows, columns)).astype(dtype)


def conflicts(sch: Any, value: np.ndarray) -> int:
    report = simulate(sch, value, None)
    np.testing.assert_array_equal(report.outputs["B"], value.T)
    assert not report.hazards
    return report.bank_conflicts


def told(text: str) -> tuple[int, int]:
    """Conflicts that an outcome tells: as they are, and with a swizzle."""
    found = re.search(r"A_shared meet banks again ([\d,]+) times, ([\d,]+) times with sch", text)
    assert found is not None, text
    return int(found[1].replace(",", "")), int(found[2].replace(",", ""))


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64"])
@pytest.mark.parametrize("vector_bytes", [4, 16])
@pytest.mark.parametrize("shape", [(64, 64), (64, 100)])
def test_conflicts_are_told_as_they_are_before_and_after_a_swizzle(
    dtype: str, vector_bytes: int, shape: tuple[int, int]
) -> None:
    sch, tile = transposed(dtype, *shape)
    outcome = sch.auto_coalesce(tile, vector_bytes=vector_bytes)
    assert outcome.path == "copy"
    now, swizzled = told(outcome.text)
    value = numbers(*shape, dtype)
    assert now == conflicts(sch, value) > 0
    sch.swizzle(tile, mode="auto")
    assert swizzled == conflicts(sch, value)
    if vector_bytes == 4:
        assert swizzled == 0
    elif swizzled:
        # Vectors stay together, so a column of words meets their banks again.
        assert "none where the copy has vector_bytes=4, too" in outcome.text


def test_rows_that_meet_no_bank_twice_are_no_matter() -> None:
    sch, tile = upside_down("float32")
    outcome = sch.auto_coalesce(tile)
    assert "sch.swizzle" not in outcome.text
    (found,) = tile_conflicts(sch, tile)
    assert (found.now, found.swizzled, found.mode) == (0, 0, "none")
    report = simulate(sch, numbers(64, 64, "float32"), None)
    assert report.bank_conflicts == 0


def test_a_tile_that_a_swizzle_lays_out_already_is_left_to_it() -> None:
    sch, tile = transposed("float32", 64, 64)
    sch.swizzle(tile)
    outcome = sch.auto_coalesce(tile, vector_bytes=4)
    assert "sch.swizzle" not in outcome.text
    assert conflicts(sch, numbers(64, 64, "float32")) == 0


def test_a_tile_without_a_bound_is_said_not_to_be_counted() -> None:
    """Before it is compacted, a tile of an array of unknown size has as many rows as the array."""
    sch, tile = transposed("float32", te.var("n"), 64)
    (found,) = tile_conflicts(sch, tile)
    assert isinstance(found, UncountedTile)
    with decisions.collect() as made:
        text = sch.auto_coalesce(tile, vector_bytes=4).text
    told = "bank conflicts of A_shared are not counted: TVM knows no bound of its extent in dim 0"
    assert told in text
    assert any(told in one.text for one in made)
    assert "sch.swizzle" not in text


def test_a_tile_with_an_index_that_is_loaded_is_said_not_to_be_counted() -> None:
    sch = s_tir.Schedule(gathered)
    tile = sch.get_sblock("A_shared")
    (found,) = tile_conflicts(sch, tile)
    assert isinstance(found, UncountedTile)
    assert "not all of its indices are known" in sch.auto_coalesce(tile, vector_bytes=4).text


def test_a_tile_with_rows_of_a_symbolic_size_is_said_not_to_be_counted() -> None:
    """Its rows have ``min(n, 32)`` elements, so that nobody knows the bank of the next row."""
    sch, tile = transposed("float32", 64, te.var("n"))
    text = sch.auto_coalesce(tile, vector_bytes=4).text
    assert "A_shared are not counted: its extents (32, T.min(n, 32)) depend on a symbolic" in text


def test_a_program_that_cannot_be_lowered_yet_has_no_count() -> None:
    sch, tile = transposed("float32", 64, 64)
    sch.annotate(sch.get_sblock("B"), "layout_ext.tensor_core", ["no such instruction"])
    assert tile_conflicts(sch, tile) == []
    assert sch.auto_coalesce(tile, vector_bytes=4).path == "copy"


def test_counting_leaves_the_schedule_and_its_trace_alone() -> None:
    sch, tile = transposed("float32", 64, 64)
    before, trace = str(sch.mod), str(sch.trace)
    with decisions.collect() as made:
        tile_conflicts(sch, tile)
    assert (str(sch.mod), str(sch.trace), made) == (before, trace, [])


def test_what_is_told_is_noted_with_the_other_decisions() -> None:
    sch, tile = transposed("float32", 64, 64)
    with decisions.collect() as made:
        sch.auto_coalesce(tile, vector_bytes=4)
    assert any("A_shared meet banks again" in one.text for one in made)
    assert {one.maker for one in made} == {"auto_coalesce"}


def test_a_copy_and_its_swizzle_replay_from_the_trace() -> None:
    sch, tile = transposed("float16", 64, 64)
    sch.auto_coalesce(tile, vector_bytes=4)
    sch.swizzle(tile, mode="auto")
    a = te.placeholder((64, 64), "float16", "A")
    b = te.compute((64, 64), lambda i, j: a[j, i], "B")
    again = s_tir.Schedule(te.create_prim_func([a, b]))
    s_tir.schedule.Trace.apply_json_to_schedule(sch.trace.as_json(), again)
    assert str(again.mod) == str(sch.mod)
    assert conflicts(again, numbers(64, 64, "float16")) == 0
