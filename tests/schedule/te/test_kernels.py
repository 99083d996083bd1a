"""Threads that the stages of one kernel share, and the ones that they cannot."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.programs.host import assert_simulates, ints
from tests.programs.running import gives
from tests.programs.stages import chain, elementwise
from tvm_layout_ext import ScheduleError, build, te


def _copy(scope: str, n: int = 16, m: int = 64) -> tuple[Any, Any, Any, Any]:
    A, B, s = elementwise(n, m, lambda a: a + 1.0)
    return A, B, s, s.cache_read(A, scope, [B])


def _thread(tag: str) -> Any:
    return te.thread_axis(tag)


def _refused(s: Any, args: list[Any]) -> str:
    with pytest.raises(ScheduleError) as caught:
        s.to_module(args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def _gemm(n: int) -> tuple[Any, list[Any]]:
    """The schedule of TVM's tutorial on a tiled matrix product, with smaller tiles."""
    A, B = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), "k")
    C = te.compute((n, n), lambda i, j: te.sum(A[k, i] * B[k, j], axis=k), name="C")
    s = te.create_schedule(C.op)
    AA, BB = s.cache_read(A, "shared", [C]), s.cache_read(B, "shared", [C])
    AL, BL = s.cache_read(AA, "local", [C]), s.cache_read(BB, "local", [C])
    CL = s.cache_write(C, "local")
    threads = [te.thread_axis((0, 4), f"threadIdx.{dim}") for dim in "yx"]
    virtual = [te.thread_axis((0, 2), "vthread", name=name) for name in ("vy", "vx")]
    rest = []
    for axis, block, v, t in zip(C.op.axis, "yx", virtual, threads, strict=True):
        outer, inner = s[C].split(axis, factor=32)
        vz, inner = s[C].split(inner, nparts=2)
        tz, inner = s[C].split(inner, nparts=4)
        for loop, thread in ((outer, _thread(f"blockIdx.{block}")), (vz, v), (tz, t)):
            s[C].bind(loop, thread)
        rest.append((outer, vz, tz, inner))
    s[C].reorder(*(loop for level in zip(*rest, strict=True) for loop in level))
    s[CL].compute_at(s[C], rest[1][2])
    ko, ki = s[CL].split(k, factor=8)
    s[CL].reorder(ko, ki, *CL.op.axis)
    for cache in (AL, BL):
        s[cache].compute_at(s[CL], ki)
    for cache in (AA, BB):
        s[cache].compute_at(s[CL], ko)
        for axis, thread in zip(cache.op.axis, threads, strict=True):
            s[cache].bind(s[cache].split(axis, nparts=4)[0], thread)
    return s, [A, B, C]


def test_two_plain_vthreads_of_the_gemm_tutorial_are_two() -> None:
    s, args = _gemm(64)
    a, b = ints(64, 64), ints(64, 64)
    gives(s.to_module(args), a, b, progress=False, C=a.T @ b)


def test_plain_vthread_beside_a_named_one() -> None:
    A = te.placeholder((8, 8, 4), name="A")
    B = te.compute((8, 8, 4), lambda i, j, k: A[i, j, k] + 1.0, name="B")
    s = te.create_schedule(B.op)
    i, j, k = B.op.axis
    for axis, tag in ((i, "vthread"), (j, "vthread.x"), (k, "blockIdx.x")):
        s[B].bind(axis, _thread(tag))
    a = ints(8, 8, 4)
    assert_simulates(s, [A, B], a, a + 1)


def test_a_fourth_vthread_is_refused() -> None:
    A = te.placeholder((2, 2, 2, 2), name="A")
    B = te.compute((2, 2, 2, 2), lambda *i: A(*i) + 1.0, name="B")
    s = te.create_schedule(B.op)
    for axis in B.op.axis:
        s[B].bind(axis, te.thread_axis((0, 2), "vthread"))
    assert "one virtual thread too many: TensorIR has 3 in a kernel" in _refused(s, [A, B])


@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("scope", ["shared", "local"])
def test_vthread_of_a_cache_inside_a_kernel_is_refused(scope: str, where: int) -> None:
    A, B, s, AA = _copy(scope)
    outer, inner = s[B].split(B.op.axis[1], nparts=2)
    virtual = te.thread_axis((0, 2), "vthread")
    for axis, thread in ((B.op.axis[0], _thread("blockIdx.x")), (outer, virtual)):
        s[B].bind(axis, thread)
    s[B].bind(inner, _thread("threadIdx.x"))
    s[AA].compute_at(s[B], s[B].leaf[where])
    s[AA].bind(s[AA].split(AA.op.axis[1], factor=2)[1], virtual)
    assert "each virtual thread would see only its part" in _refused(s, [A, B])


def test_one_tag_with_two_extents_in_a_kernel_is_refused() -> None:
    A, B, s, AA = _copy("shared")
    i, j = B.op.axis
    s[B].bind(i, _thread("blockIdx.x"))
    s[B].bind(j, _thread("threadIdx.x"))
    s[AA].compute_at(s[B], i)
    s[AA].bind(s[AA].split(AA.op.axis[1], 32)[1], _thread("threadIdx.x"))
    assert _refused(s, [A, B]) == (
        "Stages B and A.shared of one kernel bind threadIdx.x to loops of 64 and 32 iterations; "
        "split them so that both have the same."
    )


def test_one_tag_with_two_symbolic_extents_is_refused() -> None:
    n, m = te.var("n"), te.var("m")
    A = te.placeholder((16, n), name="A")
    P = te.compute((16, m), lambda i, j: A[i, 0] + 1.0, name="P")
    C = te.compute((16, n), lambda i, j: A[i, j] + P[i, 0] + P[i, m - 1], name="C")
    s = te.create_schedule(C.op)
    s[C].bind(C.op.axis[0], _thread("blockIdx.x"))
    s[C].bind(C.op.axis[1], _thread("threadIdx.x"))
    s[P].compute_at(s[C], C.op.axis[0])
    s[P].bind(P.op.axis[1], _thread("threadIdx.x"))
    assert re.search(r"bind threadIdx.x to loops of n and m iterations", _refused(s, [m, A, C]))


def test_two_kernels_may_have_different_extents() -> None:
    A, B, C, s = chain(16, 64)
    for tensor, factor in ((B, 32), (C, 16)):
        s[tensor].bind(tensor.op.axis[0], _thread("blockIdx.x"))
        s[tensor].bind(s[tensor].split(tensor.op.axis[1], factor)[1], _thread("threadIdx.x"))
    a = ints(16, 64)
    assert_simulates(s, [A, C], a, a * 2 + 2)


@pytest.mark.parametrize("tag", ["blockIdx.x", "blockIdx.y"])
@pytest.mark.parametrize("scope", ["shared", "global"])
def test_block_index_inside_a_kernel_is_refused(scope: str, tag: str) -> None:
    A, B, s, AA = _copy(scope)
    s[B].bind(B.op.axis[0], _thread("blockIdx.x"))
    s[B].bind(B.op.axis[1], _thread("threadIdx.x"))
    s[AA].compute_at(s[B], B.op.axis[0])
    s[AA].bind(AA.op.axis[1], _thread(tag))
    assert _refused(s, [A, B]) == (
        f"bind of ax1 of A.{scope} to {tag} is not legal inside the kernel of B, whose blocks do "
        f"not share work; bind threadIdx, or compute the stage at its root."
    )


def test_threads_around_a_shared_cache_fill_it_together() -> None:
    A, B, s, AA = _copy("shared")
    s[B].bind(B.op.axis[0], _thread("blockIdx.x"))
    outer, inner = s[B].split(B.op.axis[1], factor=16)
    s[B].reorder(inner, outer)
    s[B].bind(inner, _thread("threadIdx.x"))
    s[AA].compute_at(s[B], outer)
    s[AA].bind(AA.op.axis[1], _thread("threadIdx.x"))
    a = ints(16, 64)
    assert_simulates(s, [A, B], a, a + 1)


def test_threads_around_a_local_cache_cannot_share_it() -> None:
    A, B, s, AA = _copy("local")
    s[B].bind(B.op.axis[0], _thread("blockIdx.x"))
    outer, _ = s[B].split(B.op.axis[1], nparts=16)
    s[B].bind(outer, _thread("threadIdx.x"))
    s[AA].compute_at(s[B], outer)
    s[AA].bind(AA.op.axis[1], _thread("threadIdx.x"))
    assert "each thread sees only its own" in _refused(s, [A, B])


def test_local_cache_of_threads_that_do_not_read_it_is_refused() -> None:
    A, B, s, AA = _copy("local")
    s[B].bind(B.op.axis[0], _thread("blockIdx.x"))
    s[AA].compute_at(s[B], B.op.axis[0])
    s[AA].bind(AA.op.axis[1], _thread("threadIdx.x"))
    assert "for local memory that B, not run by that thread, reads" in _refused(s, [A, B])


@pytest.mark.parametrize(("versions", "where"), [(1, 1), (2, 0)])
def test_shared_cache_in_a_loop_of_varying_extent_is_refused(versions: int, where: int) -> None:
    A, B, s = elementwise(2, 16, lambda a: a + 1.0)
    CL = s.cache_write(B, "local")
    outer, _ = s[B].split(s[B].fuse(*B.op.axis), 3)
    block, thread = s[B].split(outer, 2)
    s[B].bind(block, _thread("blockIdx.x"))
    s[B].bind(thread, _thread("threadIdx.x"))
    s[CL].compute_at(s[B], [block, thread][where])
    AA = s.cache_read(A, "shared", [CL])
    s[AA].compute_at(s[CL], CL.op.axis[0])
    s[AA].bind(s[AA].split(AA.op.axis[0], 2)[1], _thread("threadIdx.x"))
    s[AA].double_buffer(versions)
    assert "iterations are not the same for all threads" in _refused(s, [A, B])


@pytest.mark.parametrize("factor", [2, 3])
def test_tile_bounded_by_a_variable_of_its_own_loops_is_refused(factor: int) -> None:
    A = te.placeholder((2, 2), name="A")
    B = te.compute((2, 2), lambda i, j: A[j, i] + 1.0, name="B")
    s = te.create_schedule(B.op)
    BL = s.cache_write(B, "local")
    outer, inner = s[B].split(s[B].fuse(*B.op.axis), 1)
    s[B].split(inner, factor)
    s[B].bind(outer, _thread("blockIdx.x"))
    s[BL].compute_at(s[B], outer)
    with pytest.raises(ScheduleError, match="has been used before definition"):
        build(s, [A, B])
