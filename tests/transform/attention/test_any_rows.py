"""Attention of symbolic numbers of rows and keys: one kernel for all, and one for few rows."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

import tvm_layout_ext as tlx
from tests.programs import warpgroups as w
from tests.programs.attended import Heads, error
from tests.sampling import beside
from tests.transform.attention.test_lower_attention import causal, planned, recent
from tvm_layout_ext import ScheduleError
from tvm_layout_ext.analysis.attention import read_attention
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.models.attention.by_attention import by_attention
from tvm_layout_ext.transform.attention.fit import fit_attention
from tvm_layout_ext.transform.attention.reach import read_conditions

#: Plans as an annotation has them; the last number is how many rows are promised at most.
CASES = {
    "by TMA": (Heads(2, 1, keys=130, order="bsh", any_rows=True), (64, 2, 1, 1, 0, 0, 0)),
    "by threads, a bias by TMA": (
        Heads(1, 1, 64, 136, 40, 72, bias=True, any_rows=True), (64, 2, 2, 1, 0, 0, 0),
    ),
    "a bias by lanes": (Heads(1, 1, keys=100, bias=True, any_rows=True), (64, 2, 1, 1, 0, 0, 0)),
    "a mask from memory": (
        Heads(1, 1, keys=100, shown=True, any_rows=True), (64, 2, 1, 1, 0, 0, 0),
    ),
    "keys in parts": (Heads(2, 1, keys=64 * 5, any_rows=True), (64, 2, 2, 3, 0, 0, 0)),
    "few rows, keys in parts": (
        Heads(2, 1, keys=64 * 3, dtype="bfloat16", any_rows=True), (64, 2, 1, 3, 0, 0, 128),
    ),
    "three warpgroups in turns, causal": (
        Heads(2, 2, keys=130, seen=(causal,), any_rows=True), (64, 2, 3, 1, 0, 2, 0),
    ),
    "a window in turns": (
        Heads(2, 2, keys=130, seen=(causal, recent), any_rows=True), (64, 2, 2, 1, 0, 2, 0),
    ),
}  # fmt: skip


#: Of which others are kinds.
ALWAYS = ("by TMA", "three warpgroups in turns, causal")


@pytest.mark.costly
@pytest.mark.parametrize("name", [one if one in ALWAYS else beside(one) for one in CASES])
def test_one_program_takes_each_number_of_rows(name: str) -> None:
    case, numbers = CASES[name]
    program = tlx.device_program(planned(case, *numbers), target=w.SM90A)
    for rows in (5, 100):
        off, hazards = error(replace(case, queries=rows), program)
        assert hazards == []
        assert off < (1.2e-2 if case.dtype == "bfloat16" else 2e-3)


#: Keys of any number; those of as many as rows are first.
ANY_KEYS = {
    "rows and keys of one size": (Heads(2, 1, 64, 64, order="bsh"), (64, 2, 1, 1, 0, 0, 0)),
    "causal, in turns": (Heads(2, 2, 64, 64, seen=(causal,)), (64, 2, 3, 1, 0, 2, 0)),
    "a window": (Heads(2, 1, 64, 64, seen=(causal, recent)), (64, 2, 1, 1, 0, 0, 0)),
    "a bias by lanes": (Heads(1, 1, 64, 64, bias=True), (64, 2, 1, 1, 0, 0, 0)),
    "sinks, capped": (
        Heads(2, 1, 64, 64, cap=1.0, sinks=True, dtype="bfloat16"), (64, 2, 2, 1, 0, 0, 0),
    ),
    "a mask from memory, heads of 40": (
        Heads(1, 1, 70, 80, 40, 40, shown=True), (64, 2, 1, 1, 0, 0, 0),
    ),
    "others than rows": (Heads(2, 1, 70, 80, order="bsh"), (64, 2, 2, 1, 0, 0, 0)),
}  # fmt: skip


@pytest.mark.costly
@pytest.mark.parametrize("name", [beside(one) for one in ANY_KEYS])
def test_one_program_takes_each_number_of_keys(name: str) -> None:
    case, numbers = ANY_KEYS[name]
    case = replace(case, any_rows=True, any_keys=True)
    program = tlx.device_program(planned(case, *numbers), target=w.SM90A)
    for rows, keys in ((1, 1), (5, 64), (100, 200)):
        rows = keys if case.queries == case.keys else rows
        off, hazards = error(replace(case, queries=rows, keys=keys), program)
        assert hazards == []
        assert off < (1.2e-2 if case.dtype == "bfloat16" else 2e-3)


@pytest.mark.whole
def test_keys_of_any_number_have_one_kernel_beside_known_rows() -> None:
    case = Heads(2, 1, 4, 80, any_keys=True)
    program = tlx.device_program(case.schedule(), target=w.SM90A)
    for keys in (3, 300):
        off, hazards = error(replace(case, keys=keys), program)
        assert hazards == []
        assert off < 2e-3


def chosen(case: Heads) -> Any:
    with w.SM90A:
        found = by_attention(case.func(), w.SM90A)
    assert found is not None
    return found


def test_few_rows_have_a_kernel_whose_keys_are_shared() -> None:
    case = Heads(12, 3, keys=512, order="bsh", any_rows=True)
    found = chosen(case)
    few, many = re.findall(
        r"(\d+) blocks for each tile of (up to 128|any number of) rows", found.text
    )
    assert (few, many) == (("2", "up to 128"), ("1", "any number of"))
    program = tlx.device_program(found.schedule, target=w.SM90A)
    for rows in (70, 129):
        off, hazards = error(replace(case, queries=rows), program)
        assert hazards == []
        assert off < 2e-3


def test_memory_of_parts_is_that_of_the_most_rows() -> None:
    sch = chosen(Heads(12, 3, keys=512, any_rows=True)).schedule
    text = tlx.lower(sch.mod, target=w.SM90A).script()
    # 12 heads by 2 tiles of 64 rows by 2 parts, 64 columns.
    assert f"means = T.alloc_buffer(({12 * 2 * 2 * 64 * 64},))" in text


def test_where_both_numbers_of_rows_want_the_same_there_is_one_kernel() -> None:
    assert "up to 128" not in chosen(Heads(1, 1, keys=64, any_rows=True)).text


def test_numbers_of_a_plan_fit_its_rows() -> None:
    for any_rows, takes in ((False, 6), (True, 7)):
        sch = planned(Heads(any_rows=any_rows), *[64] * 5)
        with pytest.raises(ScheduleError, match=f"it takes {takes} numbers"):
            tlx.lower(sch.mod, target=w.SM90A)


def test_a_promise_of_less_than_no_row_is_refused() -> None:
    with pytest.raises(ScheduleError, match="most_rows is a number of rows, or 0 for any; -5"):
        Heads(any_rows=True).schedule(most_rows=-5)


def seen_by(case: Heads, condition: Any) -> Any:
    """Attention whose rows see what a condition of row, key, head and rows says."""
    found = read_attention(case.func())
    head = found.batch[-1][0]
    visible = (condition(found.row, found.key, head, found.sizes[0].value),)
    return replace(found, scores=replace(found.scores, visible=visible))


def test_of_keys_up_to_a_symbolic_number_blocks_share_none() -> None:
    """One of them might have none."""
    attention = seen_by(Heads(12, 3, keys=512, any_rows=True), lambda i, j, h, n: j < n)
    assert fit_attention(attention, architecture("sm_90a"), most_rows=128).splits == 1


def test_what_depends_on_the_head_is_no_bound_of_tiles() -> None:
    attention = seen_by(Heads(2, 1, any_rows=True), lambda i, j, h, n: j <= i + h * 7)
    bounds, others = read_conditions(attention)
    assert (len(bounds), len(others)) == (0, 1)
