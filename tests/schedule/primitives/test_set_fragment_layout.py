"""``sch.set_fragment_layout``: traced, replayed, and refused without a trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir

from tests.programs.mapped import computed
from tests.programs.running import gives
from tvm_layout_ext import layout as L
from tvm_layout_ext.errors import LayoutError, ScheduleError
from tvm_layout_ext.ir.annotations import FRAGMENT

ROWS = L.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
COLUMNS = L.BlockedLayout([4, 1], [8, 4], [1, 4], [0, 1])


def doubled() -> tvm.tirx.PrimFunc:
    return computed((128, 64), lambda a, i, j: a[i, j] * 2.0).mod["main"]


def scheduled(read: Any = ROWS, written: Any = COLUMNS) -> s_tir.Schedule:
    """Loaded in one layout, doubled and stored in another."""
    sch = s_tir.Schedule(doubled())
    block = sch.get_sblock("B")
    rows, _ = sch.split(sch.get_loops(block)[0], [None, 64])
    sch.bind(rows, "blockIdx.x")
    for index, layout in ((0, written), (0, read)):
        tile = sch.cache_read(block, index, "local")
        sch.compute_at(tile, rows)
        sch.set_fragment_layout(tile, 0, layout)
        block = tile
    return sch


def test_the_schedule_runs() -> None:
    a = np.random.default_rng(0).standard_normal((128, 64)).astype("float32")
    report = gives(scheduled(), a, None, B=2 * a)
    assert (report.bank_conflicts, report.hazards) == (0, [])


def test_a_layout_and_its_text_are_one() -> None:
    by_text = scheduled(repr(ROWS), "Blocked([4, 1], [8, 4], [1, 4], [0, 1])")
    tvm.ir.assert_structural_equal(scheduled().mod, by_text.mod)


def test_the_last_layout_counts() -> None:
    sch = s_tir.Schedule(doubled())
    tile = sch.cache_read("B", 0, "local")
    for layout in (COLUMNS, ROWS):
        sch.set_fragment_layout(tile, 0, layout)
    assert list(map(str, sch.get(tile).annotations[FRAGMENT])) == ["A_local", repr(ROWS)]


def refused(error: type[Exception], match: str, block: Any, index: Any, layout: Any) -> None:
    sch = s_tir.Schedule(doubled())
    sch.cache_read("B", 0, "local")
    before, steps = sch.mod, len(sch.trace.insts)
    with pytest.raises(error, match=match) as caught:
        sch.set_fragment_layout(block, index, layout)
    assert str(caught.value).endswith(".")
    tvm.ir.assert_structural_equal(sch.mod, before)
    assert len(sch.trace.insts) - steps <= 1


@pytest.mark.parametrize("index", [1, -1, True, "0", 0.0])
def test_an_index_of_no_buffer_is_refused(index: Any) -> None:
    refused(ScheduleError, "buffer_index", "A_local", index, ROWS)


def test_a_buffer_that_is_not_local_is_refused() -> None:
    refused(ScheduleError, "Buffer B of block B is in global memory", "B", 0, ROWS)


@pytest.mark.parametrize(
    ("layout", "match"),
    [
        (None, "must be a layout or its text"),
        ("rows", "not of the form"),
        ("Blocked([1, 3], [4, 8], [4, 1], [1, 0])", "no power of two"),
        (L.SwizzledSharedLayout(8, 1, 8, [1, 0]), "no distributed layout"),
        (ROWS.to_linear([64, 64]), "must be a layout or its text"),
        (L.SliceLayout(0, ROWS), "lays out 1 dims, but buffer A_local has 2"),
    ],
)
def test_a_layout_of_no_registers_is_refused(layout: Any, match: str) -> None:
    refused(LayoutError, match, "A_local", 0, layout)
