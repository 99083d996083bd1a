"""Copies inside a kernel."""

from __future__ import annotations

import numpy as np
import pytest

from tests.programs.coalesced import numbers
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
    assert "before load" in outcome.text or "before store" in outcome.text
    a = numbers((64, 64), dtype)
    report = simulate(sch, a, None)
    np.testing.assert_array_equal(report.outputs["B"], a[::-1])
    assert not report.hazards
    own = [x for x in report.accesses if x.buffer == buffer and x.scope == "global"]
    moved = {x.vector_bytes: x.sectors for x in own}
    assert moved == {16: 64 * 64 * size // 32}


def test_a_copy_of_ragged_rows_starts_every_row_with_a_fresh_lane() -> None:
    sch, tile = upside_down("float32", 100)
    outcome = sch.auto_coalesce(tile)
    assert outcome.path == "copy"
    a = numbers((64, 100), "float32")
    report = simulate(sch, a, None)
    np.testing.assert_array_equal(report.outputs["B"], a[::-1])
    assert not report.hazards


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("vector_bytes", [4, 16])
def test_a_copy_leaves_the_layout_of_its_tile_to_swizzle(dtype: str, vector_bytes: int) -> None:
    sch, tile = transposed(dtype, 64, 64)
    assert sch.auto_coalesce(tile, vector_bytes=vector_bytes).path == "copy"
    value = numbers((64, 64), dtype)
    before = simulate(sch, value, None)
    sch.swizzle(tile)
    report = simulate(sch, value, None)
    np.testing.assert_array_equal(report.outputs["B"], value.T)
    assert not report.hazards
    assert report.sectors == before.sectors == 2 * value.nbytes // 32
    # Read by column, 16 bytes that stay together cost what they must; words go anywhere.
    assert before.bank_conflicts >= 5 * report.bank_conflicts
    assert (report.bank_conflicts == 0) is (vector_bytes == 4)
