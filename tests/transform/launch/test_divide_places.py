"""Quotients of places by symbolic sizes."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import s_tir, tirx
from tvm.script import tirx as T

import tvm_layout_ext as tlx
from tests.programs.running import gives
from tvm_layout_ext.ir.queries import nodes_in
from tvm_layout_ext.transform import DividePlaces


@T.prim_func(s_tir=True)
def turned(a: T.handle, b: T.handle, n: T.int64, m: T.int64, back: T.int64) -> None:
    T.func_attr({"layout_ext.annotated": 1})
    A = T.match_buffer(a, (n, m), "float32")
    B = T.match_buffer(b, (n * m,), "float32")
    for i in T.serial(n * m):
        with T.sblock("B"):
            v = T.axis.spatial(n * m, i)
            B[v] = A[v % n, v // n] + T.Cast("float32", (v - back) // n)


@T.prim_func(s_tir=True)
def moved(b: T.handle, n: T.int64, m: T.int64) -> None:
    T.func_attr({"layout_ext.annotated": 1})
    B = T.match_buffer(b, (n + m,), "float32")
    for i in T.serial(n + m):
        with T.sblock("B"):
            v = T.axis.spatial(n + m, i)
            B[v] = T.Cast("float32", (v + m) // n)


def bound(func: tirx.PrimFunc = turned) -> s_tir.Schedule:
    """Each element by a thread."""
    sch = s_tir.Schedule(func)
    grid, thread = sch.split(sch.get_loops(sch.get_sblock("B"))[0], [None, 32])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return sch


@pytest.mark.parametrize("back", [0, 50])
def test_values_are_those_of_floor(back: int) -> None:
    a = np.random.default_rng(0).uniform(0, 1, (7, 11)).astype("float32")
    at = np.arange(77)
    want = a[at % 7, at // 7] + np.float32((at - back) // 7)
    gives(bound(), a, None, 7, 11, back, B=want)


def test_what_may_be_negative_is_rounded_down() -> None:
    body = tlx.lower(bound())["main"].body
    kinds = [type(node).__name__ for node in nodes_in(body, tirx.Div, tirx.Mod)]
    assert sorted(kinds) == ["Div", "Mod"]
    assert len(nodes_in(body, tirx.FloorDiv)) >= 1


def test_a_part_of_an_extent_may_be_negative() -> None:
    gives(bound(moved), None, 7, -3, B=((np.arange(4) - 3) // 7).astype("float32"))


def test_functions_without_the_mark_stay() -> None:
    mod = tvm.IRModule({"main": turned.without_attr("layout_ext.annotated")})
    assert DividePlaces()(mod)["main"].same_as(mod["main"])
