from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from tvm import s_tir, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as build

from tvm_layout_ext.analysis.nest import read_nest
from tvm_layout_ext.build import device_program
from tvm_layout_ext.coalesce.guarded_loads import guarded_outside

ZERO = tirx.const(0, "float32")


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (lambda a, i, j: a[j, i], []),
        (lambda a, i, j: tirx.if_then_else(i > 0, a[j, i - 1], ZERO), ["A"]),
        (lambda a, i, j: tirx.Select(i > 0, ZERO, a[j + 1, i]), ["A"]),
        # The condition decides what is taken, and both are there.
        (lambda a, i, j: tirx.if_then_else(i < j, a[i, j], a[j, i]), []),
        # Loads of the condition itself are always done.
        (lambda a, i, j: tirx.if_then_else(a[i, j] > ZERO, a[j, i], ZERO), []),
        # But behind others they are not.
        (lambda a, i, j: tirx.if_then_else(tirx.all(i > 0, a[j, i - 1] > ZERO), ZERO, ZERO), ["A"]),
        (lambda a, i, j: a[i, j] + tirx.if_then_else(j < 7, a[i, j + 1], ZERO), ["A"]),
    ],
)
def test_loads_that_only_a_condition_keeps_inside(
    body: Callable[[Any, Any, Any], Any], found: list[str]
) -> None:
    a = te.placeholder((8, 8), "float32", "A")
    b = te.compute((8, 8), lambda i, j: body(a, i, j), "B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    assert guarded_outside(read_nest(sch, sch.get_sblock("B"))) == found


def test_rows_of_unknown_length_count_as_left() -> None:
    n, m = te.var("n"), te.var("m")
    a = te.placeholder((n, m), "float32", "A")
    b = te.compute((n, n), lambda i, j: tirx.if_then_else(j < m, a[i, j], ZERO), "B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    assert guarded_outside(read_nest(sch, sch.get_sblock("B"))) == ["A"]


@pytest.mark.parametrize(
    "holds",
    [
        lambda i, j: j < 2048,
        lambda i, j: j // 64 < 32,
        lambda i, j: j % 128 < 64,
        lambda i, j: tirx.EQ(j // 64, 3),
        lambda i, j: (i * 4096 + j) // 8 < 5000,
        lambda i, j: tirx.NE(j // 8, 3),
    ],
)
def test_a_guard_that_a_vector_meets_whole_leaves_it_whole(
    holds: Callable[[Any, Any], Any],
) -> None:
    with IRBuilder() as made, build.prim_func(s_tir=True):
        build.func_name("main")
        a, b = (build.arg(name, build.buffer([256, 4096], "float16")) for name in "AB")
        with build.grid(256, 4096) as (row, column), build.sblock("B"):
            i, j = build.axis.spatial(256, row), build.axis.spatial(4096, column)
            with build.If(holds(i, j)), build.Then():
                build.buffer_store(b, a[i, j], [i, j])
    sch = s_tir.Schedule(made.get())
    sch.auto_coalesce("B")
    (kernel,) = device_program(sch).kernels.values()
    assert re.search(r"T\.Ramp\([^\n]*, 1, 8\)|:[^\n]* \+ 8\]", str(kernel.body))
