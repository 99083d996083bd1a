"""Tiles of the transpose in models' functions: where TMA stores them."""

from __future__ import annotations

import pytest
from tvm import tirx

from tests.programs.warpgroups import SM90A
from tvm_layout_ext import te
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.models.on_tensor_cores import by_warpgroups
from tvm_layout_ext.schedules._gemm_hopper import SWAPPED
from tvm_layout_ext.schedules._generic import operator_of

_ROWS, _SIDE = 200, 5120


def product(
    dtype: str, by_heads: bool = False, by_k: bool = True, columns: int = _SIDE
) -> tirx.PrimFunc:
    """A product whose results leave in a type, row by row or head by head."""
    a = te.placeholder((_ROWS, _SIDE) if by_k else (_SIDE, _ROWS), "float16", "A")
    b = te.placeholder((columns, _SIDE), "float16", "B")
    k = te.reduce_axis((0, _SIDE), "k")

    def term(i: tirx.Var, j: tirx.Var) -> tirx.PrimExpr:
        left = a[i, k] if by_k else a[k, i]
        return te.sum(left.astype("float32") * b[j, k].astype("float32"), axis=k)

    sums = te.compute((_ROWS, columns), term, "sums")
    if by_heads:
        shape = (_SIDE // 64, _ROWS, 64)
        leaves = te.compute(shape, lambda h, i, d: sums[i, h * 64 + d].astype(dtype), "leaves")
    else:
        leaves = te.compute((_ROWS, columns), lambda i, j: sums[i, j].astype(dtype), "leaves")
    return te.create_prim_func([a, b, leaves])


@pytest.mark.parametrize(
    ("dtype", "by_heads", "by_k", "columns", "is_turned"),
    [
        ("float16", False, True, _SIDE, True),
        ("float32", False, True, _SIDE, False),
        ("float16", True, True, _SIDE, False),
        # An A whose rows do not lie along K was not measured.
        ("float16", False, False, _SIDE, False),
        # Rows of the result of 10,232 bytes are none of TMA's.
        ("float16", False, True, _SIDE - 4, False),
    ],
)
def test_tiles_are_turned_where_tma_stores_them(
    dtype: str, by_heads: bool, by_k: bool, columns: int, is_turned: bool
) -> None:
    """By the rule and by the tuner, whose default and whose trials they are."""
    func = product(dtype, by_heads, by_k, columns)
    with SM90A:
        found = by_warpgroups(func, SM90A)
        one = operator_of(func)
    assert found is not None
    assert ("tiles of t" in found.text) == is_turned
    assert one.fit is not None
    assert one.prune is not None
    assert one.beside is not None
    arch = architecture("sm_90a")
    config = {knob.name: knob.default for knob in one.knobs}
    assert (one.fit((), "", config, arch).get("wgmma") in SWAPPED) == is_turned
    config |= one.beside((), "")
    tried = [tile for tile in SWAPPED if not one.prune((), "", {**config, "wgmma": tile}, arch)]
    assert bool(tried) == is_turned
