from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx
from tvm.script import tirx as T

import tvm_layout_ext as tlx
from tests.programs.mapped import computed
from tests.programs.running import gives
from tvm_layout_ext.transform import GuardVectors


def _guarded_copy(rows: int, columns: int) -> tuple[tlx.te.Schedule, list[te.Tensor]]:
    """Rows copied in vectors of 4, the last over its row's end; annotated, so that we lower it."""
    a = te.placeholder((rows, columns), "float32", "A")
    b = te.compute((rows, columns), lambda i, j: a[i, j], name="B")
    s = tlx.create_schedule(b.op)
    outer, vector = s[b].split(b.op.axis[1], factor=4)
    s[b].bind(b.op.axis[0], te.thread_axis("blockIdx.x"))
    s[b].bind(outer, te.thread_axis("threadIdx.x"))
    s[b].vectorize(vector)
    s[b].annotate("layout_ext.test", 1)
    return s, [a, b]


def _widest_store(columns: int) -> int:
    s, args = _guarded_copy(3, columns)
    a = np.random.default_rng(0).standard_normal((3, columns)).astype("float32")
    report = gives(s.to_module(args), a, None, B=a)
    return max(access.vector_bytes for access in report.accesses if access.kind == "store")


def test_rows_of_whole_vectors_stay_vectors() -> None:
    assert _widest_store(100) == 16


@pytest.mark.parametrize("columns", [33, 98, 101, 103])
def test_rows_that_would_misalign_the_next_row_are_done_by_element(columns: int) -> None:
    """Guarded vectors of such rows once became float4 accesses at odd addresses."""
    assert _widest_store(columns) == 4


def test_a_single_ragged_row_keeps_its_whole_vectors() -> None:
    a = te.placeholder((101,), "float32", "A")
    b = te.compute((101,), lambda i: a[i], name="B")
    s = tlx.create_schedule(b.op)
    outer, vector = s[b].split(b.op.axis[0], factor=4)
    s[b].bind(outer, te.thread_axis("threadIdx.x"))
    s[b].vectorize(vector)
    s[b].annotate("layout_ext.test", 1)
    data = np.random.default_rng(0).standard_normal(101).astype("float32")
    report = gives(s.to_module([a, b]), data, None, B=data)
    widths = {(x.kind, x.vector_bytes): x.requests for x in report.accesses}
    assert widths[("store", 16)] == 1
    assert widths[("store", 4)] == 1


def test_a_condition_that_all_lanes_share_does_not_break_the_vector() -> None:
    zero = tirx.const(0, "float32")
    sch = computed(
        (6, 60), lambda a, i, j: tirx.if_then_else(j >= 4, a[i, j - 4], zero), out=(6, 64)
    )
    sch.auto_coalesce("B")
    value = np.random.default_rng(0).standard_normal((6, 60)).astype("float32")
    report = gives(sch, value, None, B=np.pad(value, ((0, 0), (4, 0))))
    assert {access.vector_bytes for access in report.accesses} == {16}


def _simplified(func: Any) -> Any:
    return tirx.transform.StmtSimplify()(tvm.IRModule({"main": func}))["main"]


def _with_choice(first: str, second: str) -> Any:
    source = f"""
@T.prim_func(s_tir=True)
def main(A: T.Buffer((1024,), "int32"), B: T.Buffer((1024,), "int32")) -> None:
    T.func_attr({{"layout_ext.annotated": 1}})
    for i in range(128):
        for v in T.vectorized(8):
            B[i * 8 + v] = (
                T.if_then_else({first}, A[i * 8 + v], 0) + T.if_then_else({second}, 1, 2)
            )
"""
    return tvm.script.from_source(source)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("i * 8 + v < 1001", "i * 8 + v < 9"),
        ("(i * 8 + v) % 2 < 1", "(i * 8 + v) % 2 < 1"),
        ("A[v] < 3", "A[v] < 3"),
        ("i < 8", "i < 3"),
    ],
    ids=["two", "not linear", "loaded", "one for all lanes"],
)
def test_other_choices_are_left_to_tvm(first: str, second: str) -> None:
    func = _with_choice(first, second)
    got = GuardVectors()(tvm.IRModule({"main": func}))["main"]
    tvm.ir.assert_structural_equal(_simplified(got), _simplified(func))


def test_one_choice_at_two_places_is_made_once() -> None:
    func = _with_choice("i * 8 + v < 1001", "i * 8 + v < 1001")
    got = str(GuardVectors()(tvm.IRModule({"main": func}))["main"])
    assert got.count("T.vectorized") == got.count("if_then_else") == 2


@pytest.mark.parametrize(("dtype", "lanes"), [("int8", 8), ("float16", 8), ("float32", 4)])
@pytest.mark.parametrize(("front", "back"), [(0, 8), (8, 8), (16, 0)])
def test_a_pad_that_ends_inside_a_vector_asks_again_for_the_cut_one_alone(
    dtype: str, lanes: int, front: int, back: int
) -> None:
    """Each row has whole vectors of A and of zeros, and one at each end that is both."""
    rows, read = 4, 512 - 3
    a = te.placeholder((rows, 512), dtype, "A")
    zero = tirx.const(0, dtype)
    columns = front + 512 + back

    def inside(i: Any, j: Any) -> Any:
        held = tirx.all(j >= front + 3, j < front + read)
        return tirx.if_then_else(held, a[i, j - front], zero)

    sch = s_tir.Schedule(te.create_prim_func([a, te.compute((rows, columns), inside, "B")]))
    outer, column = sch.get_loops("B")
    thread, vector = sch.split(column, [None, lanes])
    sch.bind(outer, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.vectorize(vector)
    sch.annotate(sch.get_sblock("B"), "layout_ext.test", 1)
    value = np.random.default_rng(0).integers(-99, 99, (rows, 512)).astype(dtype)
    wanted = np.zeros((rows, columns), dtype)
    wanted[:, front + 3 : front + read] = value[:, 3:read]
    report = gives(sch, value, None, B=wanted)
    size = value.itemsize
    alone = sum(a.bytes for a in report.accesses if a.vector_bytes == size and a.kind == "store")
    assert alone == rows * 2 * lanes * size
    cut = sum(a.bytes for a in report.accesses if a.vector_bytes == size and a.kind == "load")
    assert cut == rows * 2 * (lanes - 3) * size
    assert sum(a.bytes for a in report.accesses if a.kind == "store") == wanted.nbytes


@T.prim_func(s_tir=True)
def two_pads(A: T.Buffer((106,), "float32"), B: T.Buffer((112,), "float32"),
             C: T.Buffer((112,), "float32")) -> None:  # fmt: skip
    T.func_attr({"global_symbol": "two_pads"})
    for i in T.thread_binding(28, "threadIdx.x"):
        for v in T.vectorized(4):
            with T.sblock("B"):
                vi = T.axis.spatial(112, i * 4 + v)
                T.sblock_attr({"layout_ext.test": 1})
                B[vi] = T.if_then_else(vi < 106, A[vi], T.float32(0))
                C[vi] = T.float32(2) + T.if_then_else(vi < 106, A[vi], T.float32(1))


def test_several_stores_that_choose_alike_have_a_vector_each() -> None:
    """TVM did all of them element by element, also where no vector is cut: 28 requests of 4."""
    data = np.random.default_rng(0).standard_normal(106).astype("float32")
    report = gives(s_tir.Schedule(two_pads), data, None, None, B=np.pad(data, (0, 6)))
    padded = np.pad(data, (0, 6), constant_values=1)
    np.testing.assert_array_equal(report.outputs["C"], np.float32(2) + padded)
    stores = [x for x in report.accesses if x.kind == "store"]
    for buffer in ("B", "C"):
        # Vectors before the end of A and past it, and the four elements of the one that it cuts.
        widths = sorted((x.vector_bytes, x.requests) for x in stores if x.buffer == buffer)
        assert [wide for wide, _ in widths] == [4, 16, 16]
        assert widths[0][1] == 4
