"""auto_coalesce of tiles that lowering refuses, or that cost other than they seem: said at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import s_tir, te, tirx
from tvm.script import tirx as T

import tvm_layout_ext as tlx
from tests.programs.running import gives
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.target import cuda_target


def turned(first: int, last: int) -> Any:
    n = te.var("n")
    a = te.placeholder((first, n, last), "float32", "A")
    b = te.compute((last, first, n), lambda k, i, j: a[i, j, k], "B")
    return te.create_prim_func([a, b])


@pytest.mark.parametrize(("threads", "path"), [(32, "direct"), (64, "staged"), (None, "staged")])
def test_a_tile_that_tvm_does_not_find_with_few_threads_is_passed_over(
    threads: int | None, path: str
) -> None:
    """With 32 threads TVM made the tile 2,147,483,647 elements long, and lowering refused it."""
    sch = s_tir.Schedule(turned(48, 32))
    outcome = sch.auto_coalesce("B", num_threads=threads)
    assert outcome.path == path
    reason = "TVM finds no bound for the 1x64x32 tile of A with 32 threads"
    assert (reason in outcome.report) == (path == "direct")
    a = np.random.default_rng(0).random((48, 7, 32), dtype="float32")
    gives(tlx.lower(sch), a, None, B=a.transpose(2, 0, 1))


@T.prim_func(s_tir=True)
def into_strides(a: T.handle, b: T.handle) -> None:
    n = T.int32()
    A = T.match_buffer(a, (n, 33, 3), "float32")
    B = T.match_buffer(b, (33, 3, n), "float32", strides=(60, 20, 1))
    for i, j, k in T.grid(33, 3, n):
        with T.sblock("B"):
            vi, vj, vk = T.axis.remap("SSS", [i, j, k])
            B[vi, vj, vk] = A[vk, vi, vj]


@pytest.mark.parametrize(("asked", "taken"), [(64, 32), (128, 128)])
def test_fewer_threads_are_taken_where_tvm_finds_their_tile(asked: int, taken: int) -> None:
    """With 64 threads a warp's three rows of four are a guard that TVM does not see through."""
    sch = s_tir.Schedule(into_strides)
    outcome = sch.auto_coalesce("B", num_threads=asked, stage="shared")
    assert outcome.path == "staged"
    assert f"tile 16x4x64, {taken} threads" in outcome.report
    a = np.random.default_rng(0).random((19, 33, 3), dtype="float32")
    out = np.zeros((33, 3, 20), "float32")[..., :19]
    gives(tlx.lower(sch), a, out, B=a.transpose(1, 2, 0))
    again = s_tir.Schedule(into_strides)
    s_tir.Trace.apply_json_to_schedule(sch.trace.as_json(), again)
    assert again.mod["main"].script() == sch.mod["main"].script()


@T.prim_func(s_tir=True)
def all_symbolic(a: T.handle, b: T.handle) -> None:
    n, m, k = T.int32(), T.int32(), T.int32()
    s, t, u = T.int32(), T.int32(), T.int32()
    x, y, z = T.int32(), T.int32(), T.int32()
    A = T.match_buffer(a, (n, m, k), "float32", strides=(s, t, u))
    B = T.match_buffer(b, (m, k, n), "float32", strides=(x, y, z))
    for h, i, j in T.grid(m, k, n):
        with T.sblock("B"):
            vh, vi, vj = T.axis.remap("SSS", [h, i, j])
            B[vh, vi, vj] = A[vj, vh, vi]


def test_a_tile_that_tvm_never_finds_is_refused_by_name() -> None:
    sch = s_tir.Schedule(all_symbolic)
    before = sch.mod.script()
    with pytest.raises(ScheduleError, match="TVM finds no bound for the 1x1x64 tile of A"):
        sch.auto_coalesce("B", stage="shared", vector_bytes=4)
    assert sch.mod.script() == before


@pytest.mark.parametrize("stage", ["auto", "shared", "none"])
@pytest.mark.parametrize("order", ["copied", "turned"])
def test_truth_values_go_one_by_one_as_cuda_has_no_vectors_of_them(order: str, stage: str) -> None:
    """Lowering refused 16 of them beside 16 of int8, and TVM's code for CUDA 16 at all."""
    a = te.placeholder((64, 32), "bool", "A")
    shape = (64, 32) if order == "copied" else (32, 64)
    b = te.compute(shape, lambda i, j: a[i, j] if order == "copied" else a[j, i], "B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    outcome = sch.auto_coalesce("B", stage=stage)
    assert outcome.path in ("direct", "staged")
    assert {traffic.vector_bytes for traffic in outcome.after} == {1}
    values = np.random.default_rng(0).random((64, 32)) < 0.5
    gives(tlx.lower(sch), values, None, B=values if order == "copied" else values.T)
    assert "main_kernel" in tlx.build(sch, target="cuda").mod.imports[0].inspect_source()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32"])
def test_compared_values_take_vectors_that_can_be_compiled(dtype: str, transposed: bool) -> None:
    """TVM writes no vectors of 8 or 16 truth values: "Cannot convert type T.boolx8"."""
    a = te.placeholder((64, 64), dtype, "A")

    def positive(i: Any, j: Any) -> Any:
        value = a[j, i] if transposed else a[i, j]
        return tirx.Select(value > tirx.const(0, dtype), value, tirx.const(1, dtype))

    sch = s_tir.Schedule(te.create_prim_func([a, te.compute((64, 64), positive, "B")]))
    sch.auto_coalesce("B")
    assert tlx.build(sch, target=cuda_target("sm_90"))
    values = np.random.default_rng(0).integers(-9, 9, (64, 64)).astype(dtype)
    report = simulate(sch, values, None)
    read = values.T if transposed else values
    np.testing.assert_array_equal(report.outputs["B"], np.where(read > 0, read, 1))


@pytest.mark.parametrize(("dtype", "vector_bytes"), [("int8", 4), ("uint8", 16)])
def test_quotients_take_vectors_that_can_be_compiled(dtype: str, vector_bytes: int) -> None:
    """TVM compares to round signed quotients down, and unsigned ones need no rounding."""
    a = te.placeholder((64, 64), dtype, "A")
    third = te.compute((64, 64), lambda i, j: a[i, j] // tirx.const(3, dtype), "B")
    sch = s_tir.Schedule(te.create_prim_func([a, third]))
    sch.auto_coalesce("B")
    assert tlx.build(sch, target=cuda_target("sm_90"))
    values = np.random.default_rng(0).integers(-99, 99, (64, 64)).astype(dtype)
    report = gives(sch, values, None, B=values // np.array(3, dtype))
    assert {access.vector_bytes for access in report.accesses} == {vector_bytes}


@pytest.mark.parametrize("order", ["BL", "LB"])
def test_registers_of_each_thread_were_filled_by_all_and_read_by_others(order: str) -> None:
    """The result of a tile lies in registers around the loops of the threads: all have all of it.

    Its block was spread over the threads, each of which then stored elements that it did not have.
    """
    a = te.placeholder((64, 64), "float32", "A")
    b = te.compute((64, 64), lambda i, j: a[j, i] + 1.0, "B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    block = sch.get_sblock("B")
    loops = [part for loop in sch.get_loops(block) for part in sch.split(loop, [None, 16])]
    sch.reorder(*loops[::2], *loops[1::2])
    out = sch.cache_write(block, 0, "local")
    for loop, tag in zip(loops[::2], ("blockIdx.y", "blockIdx.x"), strict=True):
        sch.bind(loop, tag)
    sch.reverse_compute_at(out, loops[2])
    for name in order:
        if name == "L":
            assert sch.auto_coalesce(out).path == "copy"
            continue
        before = sch.mod.script()
        with pytest.raises(ScheduleError, match="B stores B_local, registers of each thread, whi"):
            sch.auto_coalesce(block)
        assert sch.mod.script() == before
    values = np.random.default_rng(0).random((64, 64), dtype="float32")
    gives(tlx.lower(sch), values, None, B=values.T + 1)
