from __future__ import annotations

from typing import Any

import pytest
from tvm import s_tir, te
from tvm.script import tirx as T

from tvm_layout_ext.analysis.nest import Nest, read_nest
from tvm_layout_ext.coalesce.mapping import choose_mapping


def nest_of(*tensors: Any) -> Nest:
    sch = s_tir.Schedule(te.create_prim_func(list(tensors)))
    return read_nest(sch, sch.get_sblock("B"))


def test_steps_of_a_transpose() -> None:
    a = te.placeholder((64, 32), "float32", "A")
    load, store = nest_of(a, te.compute((32, 64), lambda i, j: a[j, i], "B")).accesses
    assert load.steps == (1, 32)
    assert store.steps == (64, 1)


def test_a_gather_is_irregular_in_its_row_only() -> None:
    a = te.placeholder((64, 32), "float32", "A")
    rows = te.placeholder((8,), "int32", "rows")
    gather = nest_of(a, rows, te.compute((8, 32), lambda i, j: a[rows[i], j], "B"))
    access = next(x for x in gather.accesses if x.name == "A")
    assert access.steps == (None, 1)
    assert not access.is_affine()
    assert access.vector([gather.loops[1]]) == 4


@pytest.mark.parametrize(("columns", "shift", "width"), [(32, 0, 4), (30, 0, 2), (32, 1, 1)])
def test_vector_follows_stride_and_shift(columns: int, shift: int, width: int) -> None:
    a = te.placeholder((8, columns), "float32", "A")
    nest = nest_of(a, te.compute((8, columns - shift), lambda i, j: a[i, j + shift], "B"))
    assert nest.accesses[0].vector([nest.loops[1]]) == width


@T.prim_func(s_tir=True)
def strided_copy(a: T.handle, b: T.handle) -> None:
    offset = T.int64()
    A = T.match_buffer(a, (64, 32), "float16", strides=(40, 1), elem_offset=offset, offset_factor=2)
    B = T.match_buffer(b, (64, 32), "float16", align=4)
    for i, j in T.grid(64, 32):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj]


def test_element_offset_and_base_alignment_narrow_the_vector() -> None:
    sch = s_tir.Schedule(strided_copy)
    nest = read_nest(sch, sch.get_sblock("B"))
    load, store = nest.accesses
    assert load.vector([nest.loops[1]]) == 2
    assert store.vector([nest.loops[1]]) == 2


def test_dense_loops_merge_into_one_run() -> None:
    n, m = te.var("n"), te.var("m")
    a = te.placeholder((n, m), "float16", "A")
    nest = nest_of(a, te.compute((n, m), lambda i, j: a[i, j], "B"))
    mapping = choose_mapping(nest, nest.loops, 16)
    assert (mapping.run, mapping.vector) == (2, 8)


def test_a_broadcast_does_not_merge() -> None:
    a = te.placeholder((64, 32), "float32", "A")
    b = te.placeholder((32,), "float32", "b")
    nest = nest_of(a, b, te.compute((64, 32), lambda i, j: a[i, j] + b[j], "B"))
    mapping = choose_mapping(nest, nest.loops, 16)
    assert (mapping.run, mapping.vector, mapping.disagreeing) == (1, 4, ())


def test_the_load_of_a_transpose_disagrees() -> None:
    a = te.placeholder((64, 32), "float32", "A")
    nest = nest_of(a, te.compute((32, 64), lambda i, j: a[j, i], "B"))
    mapping = choose_mapping(nest, nest.loops, 16)
    assert [access.name for access in mapping.disagreeing] == ["A"]


def test_rows_of_a_whole_line_agree_in_any_order() -> None:
    a = te.placeholder((2, 64, 4, 128), "float16", "A")
    b = te.compute((2, 4, 64, 128), lambda n, h, s, d: a[n, s, h, d], "B")
    nest = nest_of(a, b)
    mapping = choose_mapping(nest, nest.loops, 16)
    assert (mapping.vector, mapping.disagreeing) == (8, ())
