"""Tiles of the transpose in models' functions: where TMA stores them."""

from __future__ import annotations

import pytest
from tvm import tirx

from tests.programs.warpgroups import SM90A
from tvm_layout_ext import te
from tvm_layout_ext.models.on_tensor_cores import by_warpgroups

_ROWS, _SIDE = 200, 5120


def product(dtype: str, by_heads: bool = False) -> tirx.PrimFunc:
    """A product whose results leave in a type, row by row or head by head."""
    a = te.placeholder((_ROWS, _SIDE), "float16", "A")
    b = te.placeholder((_SIDE, _SIDE), "float16", "B")
    k = te.reduce_axis((0, _SIDE), "k")

    def term(i: tirx.Var, j: tirx.Var) -> tirx.PrimExpr:
        return te.sum(a[i, k].astype("float32") * b[j, k].astype("float32"), axis=k)

    sums = te.compute((_ROWS, _SIDE), term, "sums")
    if by_heads:
        shape = (_SIDE // 64, _ROWS, 64)
        leaves = te.compute(shape, lambda h, i, d: sums[i, h * 64 + d].astype(dtype), "leaves")
    else:
        leaves = te.compute((_ROWS, _SIDE), lambda i, j: sums[i, j].astype(dtype), "leaves")
    return te.create_prim_func([a, b, leaves])


@pytest.mark.parametrize(
    ("dtype", "by_heads", "is_turned"),
    [("float16", False, True), ("float32", False, False), ("float16", True, False)],
)
def test_tiles_are_turned_where_tma_stores_them(
    dtype: str, by_heads: bool, is_turned: bool
) -> None:
    func = product(dtype, by_heads)
    with SM90A:
        found = by_warpgroups(func, SM90A)
    assert found is not None
    assert ("tiles of t" in found.text) == is_turned
