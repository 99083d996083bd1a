"""Reductions with small results are cut into slabs that a second kernel adds up."""

from __future__ import annotations

import numpy as np
import pytest
import tvm_ffi
from tvm import s_tir, te, tirx

from tvm_layout_ext.build import device_program
from tvm_layout_ext.coalesce.reduction import slabs as module
from tvm_layout_ext.schedules.column_sum import compute as column_sum
from tvm_layout_ext.schedules.row_sum import compute as row_sum
from tvm_layout_ext.simulate import simulate


def scheduled(tensors: list[te.Tensor]) -> tuple[s_tir.Schedule, str]:
    sch = s_tir.Schedule(te.create_prim_func(tensors))
    outcome = sch.auto_coalesce("B")
    assert outcome.path == "reduction"
    return sch, outcome.report


def kernels(tensors: list[te.Tensor]) -> int:
    return len(device_program(scheduled(tensors)[0]).kernels)


@pytest.mark.parametrize(
    ("make", "shape", "axis", "slabs"),
    [
        (column_sum, (4096, 512), 0, 16),
        (column_sum, (8192, 40), 0, 32),
        (column_sum, (6144, 2048), 0, 24),
        (row_sum, (2, 1 << 20), 1, 512),
    ],
)
def test_sums_of_slabs_are_numpys(
    make: object, shape: tuple[int, int], axis: int, slabs: int
) -> None:
    sch, text = scheduled(make(shape, "float16"))  # type: ignore[operator]
    assert f"in {slabs} slabs" in text
    value = np.random.default_rng(0).integers(-8, 8, shape).astype("float16")
    report = simulate(sch, value, None)
    np.testing.assert_array_equal(report.outputs["B"], value.astype("float32").sum(axis))
    assert not report.hazards
    assert report.bank_conflicts == 0


def test_large_results_and_small_reductions_stay_one_kernel() -> None:
    assert kernels(column_sum((4096, 1 << 17), "float16")) == 1
    assert kernels(column_sum((512, 256), "float16")) == 1
    assert kernels(row_sum((32768, 4096), "float16")) == 1
    assert kernels(row_sum((64, 1 << 18), "float16")) == 1
    assert kernels(column_sum((16384, 4096), "float16")) == 1
    assert kernels(column_sum((32768, 4096), "float16")) == 2


def launch(kernel: tirx.PrimFunc) -> dict[str, int]:
    """Extents of the thread axes of a kernel."""
    found: dict[str, int] = {}

    def look(axis: tirx.AttrStmt) -> None:
        if axis.attr_key == "thread_extent":
            found[str(axis.node.thread_tag)] = int(axis.value)

    tvm_ffi.structural_walk(kernel.body, [(tirx.AttrStmt, look)])
    return found


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_slabs_and_strips_are_one_wave_of_two_blocks_a_multiprocessor(dtype: str) -> None:
    sch, text = scheduled(column_sum((32768, 4096), dtype))
    assert "in 16 slabs" in text
    first, second = device_program(sch).kernels.values()
    assert launch(first) == {"blockIdx.x": 256, "threadIdx.x": 32, "threadIdx.y": 8}
    assert launch(second) == {"blockIdx.x": 128, "threadIdx.x": 32, "threadIdx.y": 4}


def test_the_first_kernel_lets_the_second_begin_and_that_waits() -> None:
    sch, _ = scheduled(column_sum((32768, 4096), "float16"))
    first, second = (str(kernel.body) for kernel in device_program(sch).kernels.values())
    assert first.startswith('T.ptx.griddepcontrol("launch_dependents", "")')
    assert second.startswith('T.ptx.griddepcontrol("wait", "")')


def test_each_thread_of_the_second_kernel_loads_one_vector_and_one_warp_stores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_SECOND_KERNEL_BYTES", 0)
    sch, text = scheduled(column_sum((4096, 4096), "float16"))
    assert "in 16 slabs" in text
    value = np.random.default_rng(0).integers(-8, 8, (4096, 4096)).astype("float16")
    report = simulate(sch, value, None)
    np.testing.assert_array_equal(report.outputs["B"], value.astype("float32").sum(0))
    assert not report.hazards
    assert not report.redundant
    asked = {a.buffer: a for a in report.accesses if a.scope == "global" and a.kind == "load"}
    assert asked["B.rf"].vector_bytes == 16
    assert asked["B.rf"].requests == 128 * 4
    stored = [a for a in report.accesses if a.buffer == "B" and a.kind == "store"]
    assert [a.requests for a in stored] == [128]


@pytest.mark.parametrize(
    ("make", "shape", "axis"),
    [
        (column_sum, (3 * 2039, 2048), 0),
        (column_sum, (100003, 33), 0),
        (row_sum, (1, 6700417), 1),
    ],
)
def test_reductions_that_few_slabs_divide_run_on_over_zeros(
    make: object, shape: tuple[int, int], axis: int
) -> None:
    """1,000,003 rows, a prime, of 33 columns ran in 3 blocks."""
    sch, text = scheduled(make(shape, "float16"))  # type: ignore[operator]
    assert int(text.partition("in ")[2].split()[0]) >= 16
    value = np.random.default_rng(0).integers(-8, 8, shape).astype("float16")
    report = simulate(sch, value, None)
    np.testing.assert_array_equal(report.outputs["B"], value.astype("float32").sum(axis))
    assert not report.hazards


def test_terms_that_zeros_would_change_keep_their_extent() -> None:
    a, k = te.placeholder((100003, 33), "float32", "A"), te.reduce_axis((0, 100003), "k")
    sums = te.compute((33,), lambda j: te.sum(tirx.exp(a[k, j]), axis=k), "B")
    assert "slabs" not in scheduled([a, sums])[1]


def test_many_columns_move_the_fewest_sectors_in_both_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_SECOND_KERNEL_BYTES", 0)
    rows, columns, slabs = 4096, 4096, 16
    sch, text = scheduled(column_sum((rows, columns), "float16"))
    assert f"in {slabs} slabs" in text
    value = np.random.default_rng(0).integers(-8, 8, (rows, columns)).astype("float16")
    report = simulate(sch, value, None)
    sectors = {"A": 0, "B.rf": 0, "B": 0}
    for access in report.accesses:
        if access.scope == "global":
            sectors[access.buffer] += access.sectors
    assert report.bank_conflicts == 0
    partial = slabs * columns * 4 // 32
    assert sectors == {"A": rows * columns * 2 // 32, "B.rf": 2 * partial, "B": columns * 4 // 32}


def test_slabs_replay_from_the_trace() -> None:
    tensors = column_sum((4096, 512), "float16")
    sch, _ = scheduled(tensors)
    again = s_tir.Schedule(te.create_prim_func(tensors))
    s_tir.schedule.Trace.apply_json_to_schedule(sch.trace.as_json(), again)
    assert sch.mod.script() == again.mod.script()


def test_the_second_kernel_must_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SECOND_KERNEL_BYTES", 1 << 40)
    assert kernels(column_sum((4096, 512), "float16")) == 1
