"""Results are right where a choice by indices tells what is loaded."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import te, tirx
from tvm.script import tirx as T

from tests.coalesce.test_cut import check
from tvm_layout_ext.ir.block_body import choices_of_values, read_body
from tvm_layout_ext.transform.vectors.guard_vectors import GuardVectors

SMALL, LARGE = (64, 64), (512, 512)


def selected(length: int, low: int, high: int, dtype: str) -> Any:
    """Elements of which a ``Select`` takes some in the middle."""
    a = te.placeholder((length,), dtype, "A")
    three, zero = (tirx.const(n, dtype) for n in (3, 0))
    taken = lambda i: tirx.all(i >= low, i < high)  # noqa: E731
    b = te.compute((length,), lambda i: tirx.Select(taken(i), a[i] + three, zero), "B")
    return te.create_prim_func([a, b])


def named(shape: tuple[int, int], rows: int) -> Any:
    """The same behind a ``let``."""
    n, m = shape

    @T.prim_func(s_tir=True)
    def func(A: T.Buffer((m, n), "float32"), B: T.Buffer((n, m), "float32")) -> None:
        for i, j in T.grid(n, m):
            with T.sblock("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                x: T.let[T.float32] = T.if_then_else(vi < rows, A[vj, vi], T.float32(0))
                B[vi, vj] = x + T.float32(1)

    return func


def named_beside(length: int, columns: int) -> Any:
    """A transpose behind a ``let``, to which a third of another is added."""

    @T.prim_func(s_tir=True)
    def func(
        A: T.Buffer((length, length), "float32"),
        E: T.Buffer((length, length), "float32"),
        B: T.Buffer((length, length), "float32"),
    ) -> None:
        for i, j in T.grid(length, length):
            with T.sblock("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                x: T.let[T.float32] = A[vj, vi]
                B[vi, vj] = x + T.if_then_else(vj < columns, E[vj, vi], T.float32(0))

    return func


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32"])
@pytest.mark.parametrize(("length", "low", "high"), [(256, 6, 8), (256, 0, 251), (1001, 6, 996)])
def test_a_select_may_cut_vectors(dtype: str, length: int, low: int, high: int) -> None:
    check(selected(length, low, high, dtype))


def test_a_select_that_cuts_no_vector_keeps_them() -> None:
    outcome = check(selected(256, 8, 248, "float32"))
    assert [traffic.vector_bytes for traffic in outcome.after] == [16, 16]


def test_choices_behind_names_may_be_staged() -> None:
    check(named((40, 33), 1))
    check(named((40, 32), 20))
    check(named_beside(24, 2))


def test_choices_behind_names_are_conditions_of_their_loads() -> None:
    i, x = tirx.Var("i", "int32"), tirx.Var("x", "float32")
    a, b = (tirx.decl_buffer((8,), "float32", name, layout=None) for name in "AB")
    for choose in (tirx.Select, tirx.if_then_else):
        value = choose(i < 3, a[i], b[i])
        body = tirx.SeqStmt([tirx.Bind(x, value), tirx.BufferStore(b, x + 1.0, [i])])
        found = [(str(one.buffer.name), list(map(str, one.conditions))) for one in read_body(body)]
        assert found == [("A", ["i < 3"]), ("B", ["not i < 3"]), ("B", [])]
        assert list(map(str, choices_of_values(body))) == ["i < 3"]


def test_selects_by_values_or_of_registers_stay() -> None:
    @T.prim_func(s_tir=True)
    def func(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")) -> None:
        T.func_attr({"layout_ext.annotated": 1})
        for i in T.thread_binding(16, thread="threadIdx.x"):
            for v in T.vectorized(4):
                B[i * 4 + v] = T.Select(A[i * 4 + v] > T.float32(0), A[i * 4 + v], T.float32(0))
            for v in T.vectorized(4):
                B[i * 4 + v] = T.Select(i < 3, T.float32(1), T.float32(0))

    mod = tvm.IRModule({"main": func})
    tvm.ir.assert_structural_equal(GuardVectors()(mod), mod)
