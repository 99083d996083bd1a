"""Blocks under branches become one; scalars become names."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.script import tirx as T

from tvm_layout_ext.ir.one_block import as_one_block, with_lets
from tvm_layout_ext.ir.queries import blocks_in, nodes_in
from tvm_layout_ext.ir.walk import top_statements


@T.prim_func(s_tir=True)
def turned(
    A: T.Buffer((8, 8), "float32"), B: T.Buffer((8, 8), "float32"), p: T.Buffer((8,), "int32")
) -> None:
    for i, j in T.grid(8, 8):
        if p[i] > 0:
            with T.sblock("A"):
                vi, vj = T.axis.remap("SS", [i, j])
                A[vi, vj] = T.float32(1)
            with T.sblock("B"):
                vi, vj = T.axis.remap("SS", [j, i])
                B[vi, vj] = T.float32(2)


@T.prim_func(s_tir=True)
def chosen(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32"), n: T.int32) -> None:
    for i in range(8):
        if i < n:
            with T.sblock("A"):
                vi = T.axis.spatial(8, i)
                A[vi] = T.float32(1)
        else:
            with T.sblock("B"):
                vi = T.axis.spatial(8, i)
                B[vi] = A[vi]


@T.prim_func(s_tir=True)
def counted(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")) -> None:
    for i in range(8):
        with T.sblock("B"):
            vi = T.axis.spatial(8, i)
            T.reads(A[vi])
            T.writes(B[0:8])
            place: T.int32 = vi + 1
            place = place * 2
            B[place % 8] = A[vi]


def _nest(func: Any) -> Any:
    (nest,) = top_statements(func)
    return nest


def test_blocks_of_the_same_loops_are_joined_with_the_branch_in_their_iterators() -> None:
    nest = _nest(chosen)
    joined = as_one_block(nest)
    (block,) = blocks_in(joined)
    (branch,) = nodes_in(block.body, tirx.IfThenElse)
    tvm.ir.assert_structural_equal(branch.condition, block.iter_vars[0].var < chosen.params[2])
    assert branch.else_case is not None
    assert [str(one.source.name) for one in block.writes] == ["A", "B"]
    assert [str(one.source.name) for one in block.reads] == ["A"]


def test_blocks_that_take_loops_otherwise_stay() -> None:
    nest = _nest(turned)
    assert as_one_block(nest).same_as(nest)


def test_a_scalar_that_is_stored_twice_stays_one() -> None:
    (block,) = blocks_in(_nest(counted))
    assert nodes_in(with_lets(block).body, tirx.AllocBuffer)
