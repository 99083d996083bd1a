"""Blocks that write one buffer together: parts of a concatenation, sums scaled in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import s_tir
from tvm.s_tir.schedule.testing import verify_trace_roundtrip

from tests.programs.coalesced import few, nests, sectors
from tests.programs.running import gives
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.simulate.report import Report


def run(func: Any, blocks: dict[str, str], *arrays: np.ndarray) -> Report:
    """Map blocks, each by the path that is named, and run what the trace gives."""
    sch = s_tir.Schedule(func, debug_mask="all")
    assert {block: sch.auto_coalesce(block).path for block in blocks} == blocks
    verify_trace_roundtrip(sch, func)
    report = simulate(sch, *arrays, None)
    assert (report.hazards, report.bank_conflicts) == ([], 0)
    return report


row_sums = nests(
    "A 64x1024, C 64x1024, B 128",
    "upper: i 64, k 1024: B[vi] += A[vi, vk]",
    "lower: i 64, k 1024: B[vi + 64] += C[vi, vk]",
)
column_sums = nests(
    "A 1024x256, C 1024x256, B 512",
    "upper: i 256, k 1024: B[vi] += A[vk, vi]",
    "lower: i 256, k 1024: B[vi + 256] += C[vk, vi]",
)
mean = nests(
    "A 64x1024, B 64",
    "sum: i 64, k 1024: B[vi] += A[vi, vk]",
    "scale: i 64: B[vi] = B[vi] * T.float32(0.0009765625)",
)
beside_a_transpose = nests(
    "A 64x128, C 128x64, B 128x128",
    "turned: i 128, j 64: B[vi, vj] = A[vj, vi]",
    "plain: i 128, j 64: B[vi, vj + 64] = C[vi, vj]",
)
in_three_parts = nests(
    "A 33x7, C 33x24, D 33x9, B 33x40",
    "first: i 33, j 7: B[vi, vj] = A[vi, vj]",
    "second: i 33, j 24: B[vi, vj + 7] = C[vi, vj]",
    "third: i 33, j 9: B[vi, vj + 31] = D[vi, vj]",
)
turned_then_updated = nests(
    "A 64x128, C 128x64, B 128x64",
    "turned: i 128, j 64: B[vi, vj] = A[vj, vi]",
    "update: i 128, j 64: B[vi, vj] = T.max(B[vi, vj], C[vi, vj])",
)
read_then_overwritten = nests(
    "A 64x128, C 64x128, B 128x64",
    "turned: i 128, j 64: B[vi, vj] = A[vj, vi]",
    "overwrite: i 64, j 128: A[vi, vj] = C[vi, vj]",
)
column_sums_scaled = nests(
    "A 64x1024, B 1024",
    "sum: k 64, j 1024: B[vj] += A[vk, vj]",
    "scale: i 1024: B[vi] = B[vi] * T.float32(2)",
)


@pytest.mark.parametrize(("func", "axis"), [(row_sums, 1), (column_sums, 0)])
def test_threads_that_sum_into_two_parts_of_one_buffer_sum_together(func: Any, axis: int) -> None:
    """TVM's LowerCrossThreadReduction passed over both: each thread added as if it were alone."""
    shape = (64, 1024) if axis else (1024, 256)
    a, c = few(*shape), few(*shape)[::-1].copy()
    report = run(func, {"upper": "reduction", "lower": "reduction"}, a, c)
    np.testing.assert_array_equal(report.outputs["B"], np.concatenate([a.sum(axis), c.sum(axis)]))
    assert sectors(report, "A", "load") == sectors(report, "C", "load") == a.nbytes // 32


def test_a_users_own_schedule_of_a_sum_that_is_scaled_is_lowered_too() -> None:
    sch = s_tir.Schedule(mean)
    i, k = sch.get_loops("sum")
    sch.bind(i, "blockIdx.x")
    sch.bind(sch.split(k, [None, 64])[1], "threadIdx.x")
    sch.auto_coalesce("scale")
    a = few(64, 1024)
    gives(sch, a, None, B=a.mean(1))


@pytest.mark.parametrize(
    ("func", "shapes", "blocks", "wanted"),
    [
        (mean, [(64, 1024)], "sum reduction scale direct", lambda a: a.mean(1)),
        (
            beside_a_transpose,
            [(64, 128), (128, 64)],
            "turned staged plain direct",
            lambda a, c: np.concatenate([a.T, c], 1),
        ),
        (
            in_three_parts,
            [(33, 7), (33, 24), (33, 9)],
            "first direct second direct third direct",
            lambda *parts: np.concatenate(parts, 1),
        ),
        (
            turned_then_updated,
            [(64, 128), (128, 64)],
            "turned staged update direct",
            lambda a, c: np.maximum(a.T, c),
        ),
        (
            read_then_overwritten,
            [(64, 128), (64, 128)],
            "turned staged overwrite direct",
            lambda a, c: a.T,
        ),
        (column_sums_scaled, [(64, 1024)], "sum reduction scale direct", lambda a: 2 * a.sum(0)),
    ],
    ids=["mean", "beside-transpose", "three-parts", "updated", "overwritten", "scaled"],
)
def test_each_block_stays_in_its_place(func: Any, shapes: Any, blocks: str, wanted: Any) -> None:
    """TVM's ``reindex_cache_write`` refuses a buffer that two blocks write.

    Of a store without readers its ``cache_write`` makes the last nest of the function.
    """
    values = [few(*shape) + n for n, shape in enumerate(shapes)]
    expected, names = wanted(*map(np.copy, values)), blocks.split()
    report = run(func, dict(zip(names[::2], names[1::2], strict=True)), *values)
    np.testing.assert_array_equal(report.outputs["B"], expected)
    if names[1] == "staged":
        assert sectors(report, "A", "load") == values[0].nbytes // 32


def test_a_block_with_loops_in_another_order_is_staged_beside_another_writer() -> None:
    sch = s_tir.Schedule(turned_then_updated)
    sch.reorder(*reversed(sch.get_loops("turned")))
    assert sch.auto_coalesce("turned", stage="shared").path == "staged"
    sch.auto_coalesce("update")
    a, c = few(64, 128), few(128, 64)
    gives(sch, a, c, None, B=np.maximum(a.T, c))
