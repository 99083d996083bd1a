"""Bodies with ``if`` and ``let`` statements are mapped right, staged and not."""

from __future__ import annotations

from typing import Any

import pytest
from tvm.script import tirx as T

from tests.coalesce.test_cut import check


def sums_of_rows(rows: int, columns: int, apart: int) -> Any:
    """A tensor whose rows lie apart, and to three of four rows a turned one is added."""

    @T.prim_func(s_tir=True)
    def func(
        A: T.Buffer((rows, apart), "int64"),
        C: T.Buffer((columns, rows), "int64"),
        B: T.Buffer((rows, columns), "int64"),
    ) -> None:
        for i, j in T.grid(rows, columns):
            with T.sblock("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                x: T.let[T.int64] = A[vi, vj]
                if vi % 4 < 1:
                    B[vi, vj] = x
                else:
                    B[vi, vj] = x + C[vj, vi]

    return func


def few(size: int) -> Any:
    """A few bytes, two of which are stored as they are."""

    @T.prim_func(s_tir=True)
    def func(
        A: T.Buffer((size,), "int8"), C: T.Buffer((size,), "int8"), B: T.Buffer((size,), "int8")
    ) -> None:
        for i in T.serial(size):
            with T.sblock("B"):
                vi = T.axis.spatial(size, i)
                x: T.let[T.int8] = A[vi]
                if vi < 2:
                    B[vi] = x
                else:
                    B[vi] = x + C[vi]

    return func


@pytest.mark.parametrize(
    ("rows", "columns", "apart"), [(17, 52, 53), (17, 52, 52), (40, 64, 64), (33, 20, 21)]
)
def test_an_access_beside_an_if_may_be_staged(rows: int, columns: int, apart: int) -> None:
    check(sums_of_rows(rows, columns, apart))


@pytest.mark.parametrize("size", [3, 5, 7, 66])
def test_a_vector_at_the_end_beside_an_if_is_staged(size: int) -> None:
    check(few(size), "shared")
