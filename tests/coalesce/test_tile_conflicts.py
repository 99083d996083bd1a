"""Bank conflicts in filling a tile are told, as many as the simulated GPU has."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import s_tir, te

from tests.coalesce.test_cut import values
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.transform.auto_coalesce import Request, coalesce


def rows_apart(rows: int, columns: int, step: int, dtype: str) -> Any:
    """A transpose of every second row, or of every fourth."""
    a = te.placeholder((step * columns, rows), dtype, "A")
    return te.create_prim_func([a, te.compute((rows, columns), lambda i, j: a[step * j, i], "B")])


@pytest.mark.parametrize(
    ("rows", "columns", "step", "dtype", "threads", "conflicts"),
    [
        (3, 120, 2, "float32", 32, 7),
        (31, 88, 4, "float32", None, 198),
        (62, 140, 4, "float32", 128, 140),
        (26, 105, 1, "float32", 128, 0),
        (21, 61, 4, "float16", 32, 0),
        (64, 128, 1, "float32", None, 0),
    ],
)
def test_conflicts_in_filling_a_tile_are_told(
    rows: int, columns: int, step: int, dtype: str, threads: int | None, conflicts: int
) -> None:
    func = rows_apart(rows, columns, step, dtype)
    sch = s_tir.Schedule(func)
    outcome = coalesce(sch, sch.get_sblock("B"), Request(threads, 16, "shared"))
    assert outcome.path == "staged"
    assert simulate(sch, *values(func)).bank_conflicts == conflicts
    assert (f", {conflicts} bank conflicts in filling the tile" in outcome.text) == (conflicts > 0)
    assert ("bank conflicts" in outcome.text) == (conflicts > 0)
