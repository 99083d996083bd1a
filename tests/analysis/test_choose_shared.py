"""Choosing between ways for a buffer to lie by what its accesses cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import tirx

from tvm_layout_ext.analysis.accesses import AccessSite, CopySource
from tvm_layout_ext.analysis.bank_conflict import count
from tvm_layout_ext.analysis.bank_requests import Requests
from tvm_layout_ext.analysis.choose_shared import choose, cost
from tvm_layout_ext.layout.placement import dense, padded

LANE = np.arange(32)
EVERY = np.ones((1, 32), bool)


def requests(
    kind: str, shape: list[int], dtype: str, rows: Any, columns: Any, vector: int, fills: bool
) -> Requests:
    """One request whose lanes touch ``vector`` elements each, copied from a larger matrix."""
    buffer = tirx.decl_buffer(shape, dtype, "S", scope="shared")
    size, far = np.dtype(dtype).itemsize, tirx.decl_buffer((4096, 4096), dtype, "A")
    steps = np.arange(vector)
    i = np.broadcast_to(rows[None, :, None], (1, 32, vector))
    j = (columns[:, None] + steps)[None]
    source = None if kind == "load" else CopySource(far, (0, 0), fills)
    sources = None if source is None else (i * 4096 + j) * size
    access = AccessSite(buffer, kind, (0, 0), source=source)
    return Requests(access, (i, j), EVERY, 1, True, sources)


def tile(kind: str, columns: int, dtype: str, vector: int, by_rows: bool) -> list[Requests]:
    """A copy, lane after lane along rows or along columns, and words of 8 rows that are read."""
    each, word = columns // vector, 4 // np.dtype(dtype).itemsize
    rows, first = (LANE // each, LANE % each) if by_rows else (LANE, 0 * LANE)
    shape = [64, columns]
    return [
        requests(kind, shape, dtype, rows, first * vector, vector, False),
        requests("load", shape, dtype, LANE // 4, LANE % 4 * word, word, False),
    ]


@pytest.mark.parametrize(
    ("columns", "dtype", "vector", "by_rows", "as_store", "as_copy"),
    [
        (64, "int8", 8, False, "xor(8, 2, 8)", "xor(16, 2, 4)"),
        (48, "float32", 4, True, "pad(32, 20)", "pad(32, 8)"),
    ],
    ids=["rows of 64 bytes", "rows of 192 bytes"],
)
def test_a_copy_is_laid_out_by_what_cp_async_takes(
    columns: int, dtype: str, vector: int, by_rows: bool, as_store: str, as_copy: str
) -> None:
    bits = 8 * np.dtype(dtype).itemsize
    stored = choose([64, columns], bits, tile("store", columns, dtype, vector, by_rows))
    copies = tile("cp.async", columns, dtype, vector, by_rows)
    copied = choose([64, columns], bits, copies)
    assert (stored.name, copied.name) == (as_store, as_copy)
    assert copied.total < cost(stored, copies).total


def test_a_copy_that_fills_with_zeros_takes_twice() -> None:
    plain, filling = (
        requests("cp.async", [64, 32], "float16", LANE // 4, LANE % 4 * 8, 8, fills)
        for fills in (False, True)
    )
    assert count(plain, dense([64, 32])).wavefronts == 8
    assert count(filling, dense([64, 32])).wavefronts == 16
    assert count(filling, dense([64, 32])).degree == 1


def test_padded_rows_of_64_bytes_cost_a_copy_more_than_a_store() -> None:
    found = {}
    for kind in ("store", "cp.async"):
        asked = requests(kind, [64, 32], "float16", LANE // 4, LANE % 4 * 8, 8, False)
        found[kind] = [
            count(asked, way).wavefronts for way in (dense([64, 32]), padded([64, 32], 8))
        ]
    assert found["store"] == [4, 8]
    assert found["cp.async"][0] == 8 < found["cp.async"][1]


def test_a_narrow_copy_goes_through_the_cache_whose_banks_its_source_meets() -> None:
    """Words of a column lie in one bank of the L1 cache, wherever they are put."""
    down = requests("cp.async", [64, 32], "float32", LANE, 0 * LANE, 1, False)
    along = requests("cp.async", [64, 32], "float32", 0 * LANE, LANE, 1, False)
    for way in (dense([64, 32]), padded([64, 32], 1)):
        assert count(down, way).wavefronts == 32
        assert count(along, way).wavefronts == 1
    # Past the cache, 32 lines would take 32.
    diagonal = requests("cp.async", [64, 32], "float32", LANE, LANE, 1, False)
    assert count(diagonal, dense([64, 32])).wavefronts == 1


@pytest.mark.parametrize(
    ("dtype", "shape", "lanes"),
    [("float32", [64, 64], 4), ("float32", [64, 64], 8), ("float32", [64, 4], 4)],
)
def test_an_xor_swizzle_suits_the_reads(dtype: str, shape: list[int], lanes: int) -> None:
    """Patches of 8 rows and of 4, as fragments are read, and rows too short for the formula."""
    rows = LANE // lanes % shape[0]
    found = choose(shape, 32, [requests("load", shape, dtype, rows, LANE % lanes, 1, False)], "xor")
    assert found.name.startswith("xor(")
    assert found.total == found.least


def test_an_xor_swizzle_keeps_wide_copies_whole() -> None:
    copy = requests("store", [64, 128], "int8", LANE // 8, LANE % 8 * 16, 16, False)
    read = requests("load", [64, 128], "int8", LANE // 8 * 4, LANE % 8, 1, False)
    found = choose([64, 128], 8, [copy, read], "xor")
    assert (found.name, found.total) == ("xor(16, 4, 4)", found.least)
