"""What the TE-style face makes of a schedule: structure, and values on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm.ir import assert_structural_equal

import tvm_layout_ext as tlx
from tests.programs.host import assert_computes, ints
from tests.programs.stages import chain, elementwise, row_sum
from tvm_layout_ext import te


def _extents(s: Any, block: str) -> list[int]:
    sch = s.sch
    return [int(sch.get(loop).extent) for loop in sch.get_loops(sch.get_sblock(block))]


def _thread(tag: str) -> Any:
    return te.thread_axis(tag)


def test_split_by_factor_and_by_parts() -> None:
    _, B, s = elementwise()
    outer, inner = s[B].split(B.op.axis[0], factor=16)
    s[B].split(inner, nparts=2)
    assert _extents(s, "B") == [4, 2, 8, 64]
    assert outer.var.name == "i.outer"


def test_split_that_does_not_divide_is_guarded() -> None:
    A, B, s = elementwise(10, 3)
    s[B].split(B.op.axis[0], factor=4)
    assert "T.where(i_0 * 4 + i_1 < 10)" in s.sch.mod.script()
    a = ints(10, 3)
    assert_computes(s, [A, B], [a], a)


def test_reorder_moves_only_the_named_axes() -> None:
    A = te.placeholder((2, 3, 4), name="A")
    B = te.compute((2, 3, 4), lambda i, j, k: A[i, j, k], name="B")
    s = te.create_schedule(B.op)
    i, _, k = B.op.axis
    s[B].reorder(k, i)
    assert _extents(s, "B") == [4, 3, 2]


def test_tile() -> None:
    _, B, s = elementwise()
    axes = s[B].tile(*B.op.axis, 8, 16)
    assert _extents(s, "B") == [8, 4, 8, 16]
    assert all(a.same_as(b) for a, b in zip(s[B].leaf, axes, strict=True))


def test_row_sum_aligned_as_in_the_classic_question() -> None:
    A, B, _, s = row_sum(1024, 1024)
    AA = s.cache_read(A, "shared", [B])
    s[AA].storage_align(AA.op.axis[0], 100, 8)
    text = tlx.lower(s, [A, B]).script()
    assert "T.alloc_shared((1134592,))" in text
    assert "ax0 * 1108 + ax1" in text


def test_reduction_is_initialised_before_its_outermost_reduction_loop() -> None:
    _, B, k, s = row_sum()
    ko, ki = s[B].split(k, 4)
    s[B].reorder(ko, B.op.axis[0], ki)
    sch = s.sch
    assert len(sch.get_loops(sch.get_sblock("B_init"))) == 1
    assert len(sch.get_loops(sch.get_sblock("B_update"))) == 3


def test_cross_thread_reduction_after_rfactor() -> None:
    A, B, k, s = row_sum(12, 64)
    _, ki = s[B].split(k, factor=16)
    BF = s.rfactor(B, ki)
    xo, xi = s[B].split(s[B].op.axis[0], factor=4)
    s[B].bind(xo, _thread("blockIdx.x"))
    s[B].bind(xi, _thread("threadIdx.y"))
    combine = s[B].op.reduce_axis[0]
    s[B].bind(combine, _thread("threadIdx.x"))
    s[BF].compute_at(s[B], combine)
    a = ints(12, 64)
    assert_computes(s, [A, B], [a], a.sum(1))
    assert "__shfl" in tlx.build(s, [A, B], "cuda").mod.imports[0].inspect_source()


@pytest.mark.parametrize("factor_axis", [0, 1, -1])
def test_rfactor_axes(factor_axis: int) -> None:
    A, B, k, s = row_sum(6, 12)
    ko, _ = s[B].split(k, factor=4)
    BF = s.rfactor(B, ko, factor_axis)
    assert [int(e) for e in BF.shape] == ([3, 6] if factor_axis == 0 else [6, 3])
    assert BF.op.reduce_axis[0].var.name == "k.inner"
    a = ints(6, 12)
    assert_computes(s, [A, B], [a], a.sum(1))


def test_rfactor_of_an_unsplit_axis_at_root() -> None:
    A, B, k, s = row_sum(6, 12)
    BF = s.rfactor(B, k)
    s[BF].reorder(*reversed(list(s[BF].leaf)))
    a = ints(6, 12)
    assert_computes(s, [A, B], [a], a.sum(1))


def test_compute_at_of_a_partial_result_with_a_guard_is_refused() -> None:
    _, B, k, s = row_sum(6, 13)
    _, ki = s[B].split(k, factor=4)
    BF = s.rfactor(B, ki)
    s[BF].compute_at(s[B], s[B].op.axis[0])
    with pytest.raises(tlx.ScheduleError, match="lose the guard"):
        _ = s.sch


def test_inlined_stage_leaves_no_buffer() -> None:
    A, B, C, s = chain()
    s[B].compute_inline()
    assert "alloc_buffer" not in s.sch.mod.script()
    a = ints(8, 8)
    assert_computes(s, [A, C], [a], (a + 1) * 2)


def test_compute_root_undoes_compute_at_and_inline() -> None:
    _, B, C, s = chain()
    plain = s.sch.mod
    s[B].compute_inline()
    s[B].compute_at(s[C], C.op.axis[0])
    s[B].compute_root()
    assert_structural_equal(s.sch.mod, plain)


@pytest.mark.parametrize(
    ("tags", "scope"),
    [((), "global"), (("blockIdx.x",), "shared"), (("blockIdx.x", "threadIdx.x"), "local")],
)
def test_scope_follows_the_threads_around_a_stage(tags: tuple[str, ...], scope: str) -> None:
    _, B, C, s = chain()
    for axis, tag in zip(C.op.axis, tags, strict=False):
        s[C].bind(axis, _thread(tag))
    s[B].compute_at(s[C], C.op.axis[1])
    sch = s.sch
    assert sch.get(sch.get_sblock("B")).writes[0].source.scope() == scope


def test_producers_of_one_loop_keep_their_order() -> None:
    A, B = te.placeholder((8, 8), name="A"), te.placeholder((8, 8), name="B")
    C = te.compute((8, 8), lambda i, j: A[i, j] + B[i, j], name="C")
    s = te.create_schedule(C.op)
    for tensor in (A, B):
        s[s.cache_read(tensor, "local", [C])].compute_at(s[C], C.op.axis[0])
    text = s.sch.mod.script()
    assert text.index('T.sblock("A_local")') < text.index('T.sblock("B_local")')


def test_symbolic_shape() -> None:
    n = te.var("n")
    A, B, C, s = chain(n)
    fused = s[C].fuse(*C.op.axis)
    outer, inner = s[C].split(fused, factor=32)
    s[C].bind(outer, _thread("blockIdx.x"))
    s[C].bind(inner, _thread("threadIdx.x"))
    s[B].compute_at(s[C], inner)
    a = ints(45, 8)
    assert_computes(s, [A, C], [a], a * 2 + 2)


def test_tile_that_a_symbolic_extent_cuts_is_refused() -> None:
    n = te.var("n")
    A, B, s = elementwise(n, 8, lambda a: a * 2.0)
    AA = s.cache_read(A, "shared", [B])
    outer, _ = s[B].split(B.op.axis[0], factor=32)
    s[B].bind(outer, _thread("blockIdx.x"))
    s[AA].compute_at(s[B], outer)
    with pytest.raises(tlx.ScheduleError, match=r"finds no bound of dim 0 of buffer A_shared"):
        tlx.lower(s, [A, B])


def test_symbolic_multiple_of_the_tile() -> None:
    n = te.var("n")
    A, B, s = elementwise(n * 32, 8, lambda a: a * 2.0)
    AA = s.cache_read(A, "shared", [B])
    outer, inner = s[B].split(B.op.axis[0], factor=32)
    s[B].bind(outer, _thread("blockIdx.x"))
    s[B].bind(inner, _thread("threadIdx.x"))
    s[AA].compute_at(s[B], outer)
    assert "alloc_shared((256,))" in tlx.lower(s, [n, A, B]).script()


def test_kernel_without_blocks_gets_one_around_its_shared_memory() -> None:
    A, B, s = elementwise(64, 64)
    AA = s.cache_read(A, "shared", [B])
    outer, inner = s[B].split(B.op.axis[0], 32)
    s[B].bind(inner, _thread("threadIdx.x"))
    s[AA].compute_at(s[B], outer)
    assert 'T.thread_binding(1, thread="blockIdx.x")' in s.sch.mod.script()
    source = tlx.build(s, [A, B], "cuda").mod.imports[0].inspect_source()
    assert source.count("__global__") == 2
    assert "__shared__" in source


def test_shared_memory_outside_of_the_kernel_is_refused() -> None:
    A, B, s = elementwise(64, 64)
    AA = s.cache_read(A, "shared", [B])
    s[B].bind(B.op.axis[1], _thread("blockIdx.x"))
    s[AA].compute_at(s[B], B.op.axis[0])
    with pytest.raises(tlx.ScheduleError, match="computed at i of B, outside of the kernel"):
        _ = s.sch


def test_scalar_output_in_a_loop_of_one_iteration() -> None:
    A = te.placeholder((4, 4), name="A")
    B = te.compute((), lambda: A[0, 0] + A[3, 3], name="B")
    s = te.create_schedule(B.op)
    AA = s.cache_read(A, "shared", [B])
    block = s[B].fuse(*B.op.axis)
    s[B].bind(block, _thread("blockIdx.x"))
    s[AA].compute_at(s[B], block)
    a = ints(4, 4)
    assert_computes(s, [A, B], [a], np.asarray(a[0, 0] + a[3, 3]))


def test_two_outputs_of_onechain() -> None:
    A, B, C, _ = chain(10, 6)
    s = te.create_schedule([B.op, C.op])
    s[C].split(C.op.axis[0], 4)
    s[B].split(B.op.axis[1], 4)
    a = ints(10, 6)
    assert_computes(s, [A, B, C], [a], a + 1, a * 2 + 2)


def test_compute_with_two_results() -> None:
    A = te.placeholder((10, 6), name="A")
    B, C = te.compute((10, 6), lambda i, j: (A[i, j], A[i, j] * 2.0), name="B")
    s = te.create_schedule(B.op)
    outer, inner = s[B].split(B.op.axis[0], 4)
    s[B].reorder(outer, B.op.axis[1], inner)
    a = ints(10, 6)
    assert_computes(s, [A, B, C], [a], a, a * 2)


def test_extern_operation_stays_at_root() -> None:
    A = te.placeholder((4, 4), name="A")
    B = te.extern(
        (4, 4), [A], lambda ins, outs: tvm.tirx.call_packed("echo", ins[0], outs[0]), name="B"
    )
    C = te.compute((4, 4), lambda i, j: B[i, j] + 1.0, name="C")
    s = te.create_schedule(C.op)
    s[C].split(C.op.axis[0], 2)
    assert 'call_packed("echo"' in s.sch.mod.script()
    with pytest.raises(tlx.ScheduleError, match="extern"):
        s.cache_read(B, "shared", [C])


def test_two_readers_of_one_cache_and_one_of_the_original() -> None:
    A, B, _ = elementwise(8, 8, lambda a: a + 1.0)
    C = te.compute((8, 8), lambda i, j: A[i, j] * B[i, j], name="C")
    D = te.compute((8, 8), lambda i, j: A[i, j] - C[i, j], name="D")
    s = te.create_schedule(D.op)
    s.cache_read(A, "global", [B, D])
    text = s.sch.mod.script()
    assert "C[v_i, v_j] = A[v_i, v_j] * B[v_i, v_j]" in text
    assert "D[v_i, v_j] = A_global[v_i, v_j] - C[v_i, v_j]" in text


def test_materialised_schedule_is_the_callers_own() -> None:
    _, B, s = elementwise()
    first = s.sch
    first.fuse(*first.get_loops(first.get_sblock("B")))
    assert _extents(s, "B") == [64, 64]
    assert len(s[B].leaf) == 2


def test_loop_kinds_and_annotations() -> None:
    _, B, s = elementwise()
    i, j = B.op.axis
    jo, ji = s[B].split(j, 4)
    s[B].parallel(i)
    s[B].unroll(jo)
    s[B].vectorize(ji)
    s[B].pragma(i, "auto_unroll_max_step", 16)
    s[B].annotate("note", ["a", 1])
    text = s.sch.mod.script()
    for part in ("T.parallel(64", "pragma_auto_unroll_max_step", "T.unroll(16)", "T.vectorized(4)"):
        assert part in text
    assert 'T.sblock_attr({"note": ["a", 1]})' in text


def _next(tensor: Any) -> Any:
    return te.compute(tensor.shape, lambda i: tensor[i] + 1.0, name="S")


def test_long_chain_of_stages() -> None:
    tensor = A = te.placeholder((4,), name="A")
    for _ in range(1500):
        tensor = _next(tensor)
    s = te.create_schedule(tensor.op)
    assert len(s.stages) == 1501
    assert s.stages[0].op.same_as(A.op)
    assert s[tensor].depends_on(s[A])


def test_auto_coalesce_shows_what_was_chosen_once_it_is_applied() -> None:
    A = te.placeholder((64, 64), "float32", name="A")
    B = te.compute((64, 64), lambda i, j: A[j, i], name="B")
    s = te.create_schedule(B)
    chosen = s[B].auto_coalesce()
    assert repr(chosen) == (
        "Stage B will be mapped when the schedule is applied, by s.sch, tlx.explain or tlx.build"
    )
    with pytest.raises(tlx.ScheduleError, match="Stage B will be mapped when"):
        _ = chosen.outcome
    _ = s.sch
    assert chosen.outcome.path == "staged"
    assert repr(chosen) == f"B: {chosen.outcome.text}"
    assert repr(s[B].auto_coalesce(num_threads=64)).startswith("Stage B will be mapped")
