"""Blocks that write one buffer together: parts of a concatenation, sums scaled in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import s_tir
from tvm.s_tir.schedule.testing import verify_trace_roundtrip
from tvm.script import tirx as T

from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.simulate.report import Report


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(-9, 9, shape).astype("float32")


def run(func: Any, blocks: dict[str, str], *arrays: np.ndarray) -> Report:
    """Map blocks, each by the path that is named, and run what the trace gives."""
    sch = s_tir.Schedule(func, debug_mask="all")
    assert {block: sch.auto_coalesce(block).path for block in blocks} == blocks
    verify_trace_roundtrip(sch, func)
    report = simulate(sch, *arrays, None)
    assert (report.hazards, report.bank_conflicts) == ([], 0)
    return report


def loaded(report: Report, buffer: str) -> int:
    return sum(a.sectors for a in report.accesses if (a.buffer, a.kind) == (buffer, "load"))


@T.prim_func(s_tir=True)
def row_sums(
    A: T.Buffer((64, 1024), "float32"),
    C: T.Buffer((64, 1024), "float32"),
    B: T.Buffer((128,), "float32"),
) -> None:
    for i, k in T.grid(64, 1024):
        with T.sblock("upper"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] + A[vi, vk]
    for i, k in T.grid(64, 1024):
        with T.sblock("lower"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi + 64] = T.float32(0)
            B[vi + 64] = B[vi + 64] + C[vi, vk]


@T.prim_func(s_tir=True)
def column_sums(
    A: T.Buffer((1024, 256), "float32"),
    C: T.Buffer((1024, 256), "float32"),
    B: T.Buffer((512,), "float32"),
) -> None:
    for i, k in T.grid(256, 1024):
        with T.sblock("upper"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] + A[vk, vi]
    for i, k in T.grid(256, 1024):
        with T.sblock("lower"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi + 256] = T.float32(0)
            B[vi + 256] = B[vi + 256] + C[vk, vi]


@pytest.mark.parametrize(("func", "axis"), [(row_sums, 1), (column_sums, 0)])
def test_threads_that_sum_into_two_parts_of_one_buffer_sum_together(func: Any, axis: int) -> None:
    """TVM's LowerCrossThreadReduction passed over both: each thread added as if it were alone."""
    shape = (64, 1024) if axis else (1024, 256)
    a, c = numbers(*shape), numbers(*shape)[::-1].copy()
    report = run(func, {"upper": "reduction", "lower": "reduction"}, a, c)
    np.testing.assert_array_equal(report.outputs["B"], np.concatenate([a.sum(axis), c.sum(axis)]))
    assert loaded(report, "A") == loaded(report, "C") == a.nbytes // 32


@T.prim_func(s_tir=True)
def mean(A: T.Buffer((64, 1024), "float32"), B: T.Buffer((64,), "float32")) -> None:
    for i, k in T.grid(64, 1024):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] + A[vi, vk]
    for i in T.serial(64):
        with T.sblock("scale"):
            vi = T.axis.spatial(64, i)
            B[vi] = B[vi] * T.float32(0.0009765625)


def test_a_sum_that_is_scaled_in_place() -> None:
    a = numbers(64, 1024)
    report = run(mean, {"sum": "reduction", "scale": "direct"}, a)
    np.testing.assert_array_equal(report.outputs["B"], a.mean(1))


def test_a_users_own_schedule_of_such_a_sum_is_lowered_too() -> None:
    sch = s_tir.Schedule(mean)
    i, k = sch.get_loops("sum")
    sch.bind(i, "blockIdx.x")
    sch.bind(sch.split(k, [None, 64])[1], "threadIdx.x")
    sch.auto_coalesce("scale")
    a = numbers(64, 1024)
    report = simulate(sch, a, None)
    np.testing.assert_array_equal(report.outputs["B"], a.mean(1))
    assert not report.hazards


@T.prim_func(s_tir=True)
def beside_a_transpose(
    A: T.Buffer((64, 128), "float32"),
    C: T.Buffer((128, 64), "float32"),
    B: T.Buffer((128, 128), "float32"),
) -> None:
    for i, j in T.grid(128, 64):
        with T.sblock("turned"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vj, vi]
    for i, j in T.grid(128, 64):
        with T.sblock("plain"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj + 64] = C[vi, vj]


def test_a_part_in_another_order_is_staged() -> None:
    """TVM's ``reindex_cache_write`` refuses a buffer that two blocks write."""
    a, c = numbers(64, 128), numbers(128, 64)
    report = run(beside_a_transpose, {"turned": "staged", "plain": "direct"}, a, c)
    np.testing.assert_array_equal(report.outputs["B"], np.concatenate([a.T, c], 1))
    assert loaded(report, "A") == a.nbytes // 32


@T.prim_func(s_tir=True)
def in_three_parts(
    A: T.Buffer((33, 7), "float32"),
    C: T.Buffer((33, 24), "float32"),
    D: T.Buffer((33, 9), "float32"),
    B: T.Buffer((33, 40), "float32"),
) -> None:
    for i, j in T.grid(33, 7):
        with T.sblock("first"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj]
    for i, j in T.grid(33, 24):
        with T.sblock("second"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj + 7] = C[vi, vj]
    for i, j in T.grid(33, 9):
        with T.sblock("third"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj + 31] = D[vi, vj]


def test_a_concatenation_by_three_blocks() -> None:
    parts = [numbers(33, 7), numbers(33, 24), numbers(33, 9)]
    report = run(in_three_parts, dict.fromkeys(["first", "second", "third"], "direct"), *parts)
    np.testing.assert_array_equal(report.outputs["B"], np.concatenate(parts, 1))


@T.prim_func(s_tir=True)
def turned_then_updated(
    A: T.Buffer((64, 128), "float32"),
    C: T.Buffer((128, 64), "float32"),
    B: T.Buffer((128, 64), "float32"),
) -> None:
    for i, j in T.grid(128, 64):
        with T.sblock("turned"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vj, vi]
    for i, j in T.grid(128, 64):
        with T.sblock("update"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = T.max(B[vi, vj], C[vi, vj])


@T.prim_func(s_tir=True)
def read_then_overwritten(
    A: T.Buffer((64, 128), "float32"),
    C: T.Buffer((64, 128), "float32"),
    B: T.Buffer((128, 64), "float32"),
) -> None:
    for i, j in T.grid(128, 64):
        with T.sblock("turned"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vj, vi]
    for i, j in T.grid(64, 128):
        with T.sblock("overwrite"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = C[vi, vj]


@T.prim_func(s_tir=True)
def column_sums_scaled(A: T.Buffer((64, 1024), "float32"), B: T.Buffer((1024,), "float32")) -> None:
    for i, j in T.grid(64, 1024):
        with T.sblock("sum"):
            vi, vj = T.axis.remap("RS", [i, j])
            with T.init():
                B[vj] = T.float32(0)
            B[vj] = B[vj] + A[vi, vj]
    for i in range(1024):
        with T.sblock("scale"):
            vi = T.axis.spatial(1024, i)
            B[vi] = B[vi] * T.float32(2)


def test_a_staged_block_stays_before_the_update_of_what_it_writes() -> None:
    a, c = numbers(64, 128), numbers(128, 64)
    report = run(turned_then_updated, {"turned": "staged", "update": "direct"}, a, c)
    np.testing.assert_array_equal(report.outputs["B"], np.maximum(a.T, c))


def test_a_staged_block_stays_before_the_block_that_overwrites_what_it_reads() -> None:
    """Of a store without readers TVM's ``cache_write`` makes the last nest of the function."""
    a, c = numbers(64, 128), numbers(64, 128) + 1
    report = run(read_then_overwritten, {"turned": "staged", "overwrite": "direct"}, a, c)
    np.testing.assert_array_equal(report.outputs["B"], a.T)


def test_column_sums_stay_before_their_scaling_in_place() -> None:
    a = numbers(64, 1024)
    report = run(column_sums_scaled, {"sum": "reduction", "scale": "direct"}, a)
    np.testing.assert_array_equal(report.outputs["B"], 2 * a.sum(0))


def test_a_block_with_loops_in_another_order_is_staged_beside_another_writer() -> None:
    sch = s_tir.Schedule(turned_then_updated)
    sch.reorder(*reversed(sch.get_loops("turned")))
    assert sch.auto_coalesce("turned", stage="shared").path == "staged"
    sch.auto_coalesce("update")
    a, c = numbers(64, 128), numbers(128, 64)
    report = simulate(sch, a, c, None)
    np.testing.assert_array_equal(report.outputs["B"], np.maximum(a.T, c))
