"""Copies inside a kernel, and threads that are spread dimension by dimension."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import s_tir, te

from tests.programs.coalesced import numbers, sectors
from tests.programs.running import gives
from tests.programs.tiles import transposed, upside_down
from tvm_layout_ext.simulate import simulate


@pytest.mark.parametrize(("cached", "buffer"), [("read", "A"), ("write", "B")])
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32"])
def test_a_copy_tells_what_it_moved_and_what_it_moves(cached: str, buffer: str, dtype: str) -> None:
    sch, tile = upside_down(dtype, cached=cached)
    outcome = sch.auto_coalesce(tile)
    assert outcome.path == "copy"
    size = np.dtype(dtype).itemsize
    (before,), (after,) = outcome.before, outcome.after
    assert (before.buffer, before.vector_bytes, before.sectors) == (buffer, size, size)
    # The tile of int8 has 64 vectors of 16 bytes for 512 threads.
    assert (after.buffer, after.vector_bytes, after.sectors) == (buffer, 16, 16)
    a = numbers((64, 64), dtype)
    report = gives(sch, a, None, B=a[::-1])
    own = [x for x in report.accesses if x.buffer == buffer and x.scope == "global"]
    moved = {x.vector_bytes: x.sectors for x in own}
    assert moved == {16: 64 * 64 * size // 32}


def test_a_copy_of_ragged_rows_starts_every_row_with_a_fresh_lane() -> None:
    sch, tile = upside_down("float32", 100)
    outcome = sch.auto_coalesce(tile)
    assert outcome.path == "copy"
    a = numbers((64, 100), "float32")
    gives(sch, a, None, B=a[::-1])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("vector_bytes", [4, 16])
def test_a_copy_leaves_the_layout_of_its_tile_to_swizzle(dtype: str, vector_bytes: int) -> None:
    sch, tile = transposed(dtype, 64, 64)
    assert sch.auto_coalesce(tile, vector_bytes=vector_bytes).path == "copy"
    value = numbers((64, 64), dtype)
    before = simulate(sch, value, None)
    sch.swizzle(tile)
    report = gives(sch, value, None, B=value.T)
    assert report.sectors == before.sectors == 2 * value.nbytes // 32
    # Read by column, 16 bytes that stay together cost what they must; words go anywhere.
    assert before.bank_conflicts >= 5 * report.bank_conflicts
    assert (report.bank_conflicts == 0) is (vector_bytes == 4)


def box(dtype: str, shape: tuple[int, int], start: int, size: tuple[int, int]) -> Any:
    a = te.placeholder(shape, dtype, "A")
    b = te.compute(size, lambda i, j: a[i, j + start] + a[i, j + start], "B")
    return s_tir.Schedule(te.create_prim_func([a, b]))


def test_short_rows_of_a_box_get_lanes_of_their_own() -> None:
    sch = box("float16", (64, 64), 4, (64, 20))
    outcome = sch.auto_coalesce("B")
    assert "lane j 8 i 4, warp i 4" in outcome.report
    a = numbers((64, 64), "float16")
    report = gives(sch, a, None, B=2 * a[:, 4:24])
    # A row of 40 bytes that begins 8 bytes into a sector touches two.
    assert sectors(report, "A") == 2 * 64
    assert sectors(report, "B") == 64 * 40 // 32
