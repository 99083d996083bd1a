"""Indices that are divided by symbolic extents."""

from __future__ import annotations

from typing import Any

import pytest
import tvm_ffi
from tvm import tirx

from tvm_layout_ext.analysis.quotients import simplified
from tvm_layout_ext.ir.conditions import analyzer_of

N, HEAD, ROW, COLUMN = (tirx.Var(name, "int64") for name in ("n", "head", "row", "column"))
ZERO, FOUR, MANY = (tirx.IntImm("int64", count) for count in (0, 4, 64))
KNOWN = [(HEAD, FOUR), (ROW, N), (COLUMN, MANY)]


@pytest.mark.parametrize(
    ("index", "wanted"),
    [
        ((HEAD * N + ROW) % N, ROW),
        ((HEAD * N + ROW) // N, HEAD),
        ((COLUMN // 64 + (HEAD * 2 + 1) * N + ROW) % N, ROW),
        ((COLUMN // 64 + HEAD * N + ROW) // N % 4, HEAD),
        ((HEAD * N) % N, ZERO),
        (ROW // N, ZERO),
        (HEAD + COLUMN, HEAD + COLUMN),
        (((HEAD * N + ROW) // N * N + ROW) % N, ROW),
        # Batch and heads become one dim, and two again.
        ((ROW * 64 + COLUMN) % (N * 64) // 64 % N, ROW),
        ((ROW * 64 + COLUMN) % (N * 64) % 64, COLUMN),
        (((ROW * 64 + COLUMN) * 4 + HEAD) // (N * 256), ZERO),
    ],
)
def test_what_is_below_a_symbolic_extent_is_its_own_remainder(index: Any, wanted: Any) -> None:
    assert tvm_ffi.structural_equal(simplified(index, analyzer_of(KNOWN)), wanted)


@pytest.mark.parametrize(
    "index",
    [(HEAD * N + ROW + COLUMN) % N, (ROW - 1) % N, (ROW * 64 + COLUMN) % (N * 63)],
)
def test_what_may_be_beyond_is_divided(index: Any) -> None:
    assert isinstance(simplified(index, analyzer_of(KNOWN)), tirx.FloorMod)
