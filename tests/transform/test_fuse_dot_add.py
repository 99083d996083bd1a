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


def left(sch: s_tir.Schedule) -> None:
    mod, notes = fused(sch)
    assert notes == []
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


@pytest.mark.parametrize(
    "add",
    [
        lambda p, c, i, j: p[i, j] - c[i, j],
        lambda p, c, i, j: p[i, j] + c[i, j] * c[j, i],
        lambda p, c, i, j: p[i, j] + c[i, j] + p[j, i],
        lambda p, c, i, j: p[i, j] * c[i, j],
        lambda p, c, i, j: p[i, j] + p[j, i] * c[i, j],
        lambda p, c, i, j: p[i, (j + 1) % 32] + c[i, j],
    ],
)
def test_other_ends_are_left_alone(add: Any) -> None:
    left(scheduled(add))


def test_an_addend_of_another_type_is_left_alone() -> None:
    left(scheduled(lambda p, c, i, j: p[i, j] + c[i, j].astype("float32"), "float16"))


def test_a_sum_by_several_threads_is_left_alone() -> None:
    sch = scheduled()
    sch.bind(sch.get_loops("P")[-1], "threadIdx.x")
    left(sch)


def test_a_sum_that_is_to_be_mapped_is_left_alone() -> None:
    sch = scheduled()
    sch.annotate(sch.get_sblock("P"), "layout_ext.auto_coalesce", 1)
    left(sch)


def test_a_sum_that_is_copied_first_is_left_alone() -> None:
    sch = scheduled()
    sch.cache_read(sch.get_sblock("D"), 0, "local")
    left(sch)


def test_a_function_without_the_mark_is_returned_as_it_is() -> None:
    func = scheduled().mod["main"].without_attr("layout_ext.annotated")
    mod = tvm.IRModule({"main": func})
    assert FuseDotAdd()(mod)["main"].same_as(func)
