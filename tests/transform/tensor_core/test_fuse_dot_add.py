"""Sums of products that start at what is added to them: structure, results, and what is left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir, te

from tvm_layout_ext import decisions
from tvm_layout_ext import layout as L
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.transform import FuseDotAdd

ROWS = L.BlockedLayout([1, 4], [4, 8], [2, 1], [1, 0])


def scheduled(
    add: Any = lambda p, c, i, j: p[i, j] + c[i, j], dtype: str = "float32", **changes: Any
) -> s_tir.Schedule:
    """D = A @ B + C over 32x32, marked as ours; ``add`` makes an element of D."""
    a = te.placeholder((32, 16), "float32", "A")
    b = te.placeholder((16, 32), "float32", "B")
    c = te.placeholder(changes.get("shape", (32, 32)), dtype, "C")
    k = te.reduce_axis((0, 16), "k")
    p = te.compute((32, 32), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "P")
    d = te.compute((32, 32), lambda i, j: add(p, c, i, j), "D")
    func = te.create_prim_func([a, b, c, d]).with_attr("layout_ext.annotated", 1)
    return s_tir.Schedule(func)


def fused(sch: s_tir.Schedule) -> tuple[tvm.IRModule, list[str]]:
    with decisions.collect() as made:
        mod = FuseDotAdd()(sch.mod)
    return mod, [f"{d.subject}: {d.text}" for d in made]


def left(sch: s_tir.Schedule, why: str = "") -> None:
    mod, notes = fused(sch)
    wanted = [f"does not start at what block D adds: {why}"] if why else []
    assert [note.partition(": ")[2] for note in notes] == wanted
    tvm.ir.assert_structural_equal(mod, sch.mod)


def run(sch: s_tir.Schedule) -> None:
    """Whole numbers, so that the order of additions does not matter."""
    draw = np.random.default_rng(0)
    shapes = [[int(n) for n in p.shape] for p in sch.mod["main"].params]
    a, b, c = (draw.integers(-4, 5, shape).astype("float32") for shape in shapes[:3])
    report = simulate(sch, a, b, c, None)
    np.testing.assert_array_equal(report.outputs["D"], a @ b + c)
    assert not report.hazards


def test_the_sum_starts_at_the_addend() -> None:
    mod, notes = fused(scheduled())
    assert notes == ["P: starts at C, which block D added"]
    script = mod["main"].script()
    assert "P[v_i, v_j] = C[v_i, v_j]" in script
    assert "D[v_i, v_j] = P[v_i, v_j]\n" in script + "\n"
    assert "T.reads(A[v_i, v_k], B[v_k, v_j], C[v_i, v_j])" in script
    assert FuseDotAdd()(mod)["main"].same_as(mod["main"])


def test_the_addend_may_come_first_and_be_turned_or_a_row() -> None:
    first, _ = fused(scheduled(lambda p, c, i, j: c[j, i] + p[i, j]))
    assert "P[v_i, v_j] = C[v_j, v_i]" in first["main"].script()
    row, _ = fused(scheduled(lambda p, c, i, j: p[i, j] + c[j], shape=(32,)))
    assert "P[v_i, v_j] = C[v_j]" in row["main"].script()


def test_a_turned_result_takes_its_addend_along() -> None:
    mod, _ = fused(scheduled(lambda p, c, i, j: p[j, i] + c[i, j]))
    assert "P[v_i, v_j] = C[v_j, v_i]" in mod["main"].script()


def bound(sch: s_tir.Schedule, *, decomposed: bool) -> s_tir.Schedule:
    """One block of 64 threads; the sums are a register tile of it."""
    sch.set_scope("P", 0, "local")
    sch.set_fragment_layout(sch.get_sblock("P"), 0, ROWS)
    if decomposed:
        i, j, k = sch.get_loops("P")
        sch.reorder(k, i, j)
        sch.decompose_reduction("P", k)
    return sch


@pytest.mark.parametrize("decomposed", [False, True])
def test_sums_in_a_register_tile(decomposed: bool) -> None:
    sch = bound(scheduled(), decomposed=decomposed)
    _, notes = fused(sch)
    assert notes == ["P_local: starts at C, which block D added"]
    if decomposed:
        run(sch)


def test_sums_in_local_memory_of_each_thread() -> None:
    sch = scheduled()
    sch.set_scope("P", 0, "local")
    i, j = sch.get_loops("D")
    sch.bind(i, "blockIdx.x")
    sch.bind(j, "threadIdx.x")
    sch.compute_at("P", j)
    _, notes = fused(sch)
    assert len(notes) == 1
    run(sch)


NO_ELEMENT = "that is not one element of a buffer"
READ_TWICE = "it is read elsewhere, too"


@pytest.mark.parametrize(
    ("add", "why"),
    [
        (lambda p, c, i, j: p[i, j] - c[i, j], ""),
        (lambda p, c, i, j: p[i, j] * c[i, j], ""),
        (lambda p, c, i, j: p[i, j] + c[i, j] * c[j, i], NO_ELEMENT),
        (lambda p, c, i, j: p[i, j] + 1.0, NO_ELEMENT),
        (lambda p, c, i, j: p[i, j] + c[i, j] + p[j, i], READ_TWICE),
        (lambda p, c, i, j: p[i, j] + p[j, i] * c[i, j], READ_TWICE),
        (
            lambda p, c, i, j: p[i, (j + 1) % 32] + c[i, j],
            "the sums are not cleared and read element by element, whole",
        ),
    ],
)
def test_other_ends_are_left_alone(add: Any, why: str) -> None:
    left(scheduled(add), why)


def test_what_follows_the_addition_may_follow_the_sum() -> None:
    mod, notes = fused(scheduled(lambda p, c, i, j: te.max(p[i, j] + c[i, j], 0.0) * 2.0))
    assert len(notes) == 1
    assert "D[v_i, v_j] = T.max(P[v_i, v_j], T.float32(0.0)) * T.float32(2.0)" in (
        mod["main"].script()
    )


def test_an_addend_of_another_type_is_left_alone() -> None:
    left(
        scheduled(lambda p, c, i, j: p[i, j] + c[i, j].astype("float32"), "float16"),
        NO_ELEMENT,
    )


def test_a_sum_by_several_threads_is_left_alone() -> None:
    sch = scheduled()
    sch.bind(sch.get_loops("P")[-1], "threadIdx.x")
    left(sch, "several threads sum together")


def test_a_sum_that_is_to_be_mapped_is_left_alone() -> None:
    sch = scheduled()
    sch.annotate(sch.get_sblock("P"), "layout_ext.auto_coalesce", 1)
    left(sch, "block P asks for layout_ext.auto_coalesce")


def test_a_sum_that_is_copied_first_is_left_alone() -> None:
    sch = scheduled()
    sch.cache_read(sch.get_sblock("D"), 0, "local")
    left(sch)


def test_an_addend_that_is_computed_here_is_left_alone() -> None:
    a, c = (te.placeholder((32, 32), "float32", name) for name in "AC")
    k = te.reduce_axis((0, 32), "k")
    twice = te.compute((32, 32), lambda i, j: c[i, j] * 2.0, "twice")
    p = te.compute((32, 32), lambda i, j: te.sum(a[i, k] * a[k, j], axis=k), "P")
    d = te.compute((32, 32), lambda i, j: p[i, j] + twice[i, j], "D")
    func = te.create_prim_func([a, c, d]).with_attr("layout_ext.annotated", 1)
    left(s_tir.Schedule(func), "twice is written in this function, maybe after the sum starts")


def test_one_result_starts_one_of_two_sums() -> None:
    a, b = (te.placeholder((32, 32), "float32", name) for name in "AB")
    k, h = (te.reduce_axis((0, 32), name) for name in "kh")
    p = te.compute((32, 32), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "P")
    q = te.compute((32, 32), lambda i, j: te.sum(b[i, h] * a[h, j], axis=h), "Q")
    d = te.compute((32, 32), lambda i, j: p[i, j] + q[i, j], "D")
    func = te.create_prim_func([a, b, d]).with_attr("layout_ext.annotated", 1)
    _, notes = fused(s_tir.Schedule(func))
    assert len(notes) == 2
    assert all("is written in this function" in note for note in notes)


def test_a_function_without_the_mark_is_returned_as_it_is() -> None:
    func = scheduled().mod["main"].without_attr("layout_ext.annotated")
    mod = tvm.IRModule({"main": func})
    assert FuseDotAdd()(mod)["main"].same_as(func)
