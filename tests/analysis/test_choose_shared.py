"""Choosing between ways for a buffer to lie by what its accesses cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import tirx

from tvm_layout_ext.analysis.accesses import AccessSite, CopySource
from tvm_layout_ext.analysis.bank_conflict import count
from tvm_layout_ext.analysis.bank_requests import Requests
from tvm_layout_ext.analysis.choose_shared import (
    choose,
    choose_xor,
    cost,
    derived_xor,
    reads_along_k,
)
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


def fragment(kind: str, rows: int, dtype: str = "float32") -> list[Requests]:
    """A load of ``rows`` rows of neighbouring lanes, of 64 rows of 64 elements."""
    lanes = 32 // rows
    return [requests(kind, [64, 64], dtype, LANE // lanes, LANE % lanes, 1, False)]


def test_the_order_of_an_operand_is_that_of_its_reads() -> None:
    assert reads_along_k(fragment("load", 8))
    assert not reads_along_k(fragment("load", 4))
    # A row, and a column, are no patches; matrices are read by rows of 16 bytes.
    assert reads_along_k(fragment("load", 1))
    assert reads_along_k(fragment("load", 32))
    assert reads_along_k([*fragment("load", 4), *fragment("ldmatrix", 4)])
    assert reads_along_k(fragment("store", 4))
    assert reads_along_k([])


@pytest.mark.parametrize(("rows", "chosen"), [(8, "xor(4, 1, 8)"), (4, "xor(8, 1, 4)")])
def test_a_derived_swizzle_suits_the_reads(rows: int, chosen: str) -> None:
    found = choose_xor([64, 64], 32, fragment("load", rows))
    assert (found.name, found.total) == (chosen, found.least)


def test_a_derived_swizzle_gives_way_where_copies_are_wider() -> None:
    """Triton's (8, 1, 16) for rows of 128 bytes along N would tear vectors of 16 bytes."""
    copy = requests("store", [64, 128], "int8", LANE // 8, LANE % 8 * 16, 16, False)
    read = requests("load", [64, 128], "int8", LANE // 8 * 4, LANE % 8, 1, False)
    assert derived_xor([64, 128], 8, along_k=False) == (8, 1, 16)
    found = choose_xor([64, 128], 8, [copy, read])
    assert (found.name, found.total) == ("xor(16, 4, 4)", found.least)


def test_rows_too_short_for_a_derived_swizzle_take_another() -> None:
    found = choose_xor(
        [64, 4], 32, [requests("load", [64, 4], "float32", LANE % 2, LANE % 4, 1, False)]
    )
    assert found.placement.elements([64, 4]) == 256
