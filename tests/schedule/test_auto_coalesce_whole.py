"""``stage="whole"``: what takes it by itself, what it is refused for, and that it replays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir, te

import tvm_layout_ext as tlx
from tests.schedule.hanging import distinct_sectors
from tests.schedule.patterns import permuted
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.hardware import MULTIPROCESSORS
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.target import cuda_target
from tvm_layout_ext.transform.auto_coalesce import COALESCE, AutoCoalesce

Shape = tuple[int, ...]
ONE = "one block"

#: What ``benchmarks/results/h200_one_block.json`` has times of: tile and holder of the whole plan,
#: and the tile of ``auto``, which is the faster one of the two.
MEASURED = [
    ((33, 1000), "float16", "1000x33", ONE, "128x64"),
    ((300, 300), "float16", "300x300", ONE, "128x128"),
    ((4097, 7), "float16", "7x4097", ONE, "7x128"),
    ((127, 129), "float32", "129x127", ONE, "64x64"),
    ((100, 100), "float32", "100x100", ONE, "100x32"),
    ((64, 100, 100), "float32", "1x100x100", "64 slabs, a block each", "1x100x32"),
    ((1024, 100, 100), "float32", "1x100x100", "1024 slabs, a block each", "1x100x100"),
    ((1024, 33, 65), "float16", "16x65x33", "64 slabs, a block each", "1x128x64"),
]


def swapped(shape: Shape, dtype: str) -> s_tir.Schedule:
    """Exchange the last two dims of a tensor."""
    order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    return s_tir.Schedule(te.create_prim_func(permuted(shape, order, dtype).tensors()))


@pytest.mark.parametrize(("shape", "dtype", "tile", "held", "faster"), MEASURED)
def test_each_measured_case_takes_what_was_faster(
    shape: Shape, dtype: str, tile: str, held: str, faster: str
) -> None:
    with cuda_target("sm_90a"):
        whole = swapped(shape, dtype).auto_coalesce("B", stage="whole").text
        auto = swapped(shape, dtype).auto_coalesce("B").text
    assert whole.startswith(f"tile {tile}, ")
    assert f" threads, {held}, " in whole
    assert auto.startswith(f"tile {faster}, ")
    assert ("lanes in and" in auto) == (faster == tile)


@pytest.mark.parametrize(("missing", "slabs"), [(1, False), (0, True)])
def test_slabs_need_as_many_blocks_as_multiprocessors(missing: int, slabs: bool) -> None:
    batch = MULTIPROCESSORS - missing
    text = swapped((batch, 100, 100), "float32").auto_coalesce("B").text
    assert (f"{batch} slabs, a block each" in text) == slabs


@pytest.mark.parametrize(("threads", "slabs"), [(800, True), (768, False)])
def test_slabs_need_a_thread_for_16_elements(threads: int, slabs: bool) -> None:
    """A slab is 625 requests of 16 lanes, which 25 warps share out, and fewer only if 5 do."""
    sch = swapped((1024, 100, 100), "float32")
    text = sch.auto_coalesce("B", num_threads=threads).text
    assert ("1024 slabs, a block each" in text) == slabs


@pytest.mark.parametrize(("rows", "held"), [(31, True), (35, False)])
def test_one_block_takes_what_leaves_its_threads_two_elements(rows: int, held: bool) -> None:
    """31x33 and 35x33 are 1,023 and 1,155 elements for 512 threads."""
    assert (ONE in swapped((rows, 33), "float32").auto_coalesce("B").text) == held


@pytest.mark.parametrize("shape", [(64, 64), (8, 32, 32)])
def test_what_tiles_move_once_is_held_whole_where_asked_for(shape: Shape) -> None:
    sch = swapped(shape, "float32")
    assert "lanes in and 32 out" in sch.auto_coalesce("B", stage="whole").text
    value = np.random.default_rng(0).random(shape).astype("float32")
    report = simulate(sch, value, None)
    np.testing.assert_array_equal(report.outputs["B"], value.swapaxes(-1, -2))
    assert report.sectors == 2 * distinct_sectors(np.arange(value.size), 4)
    assert (report.bank_conflicts, report.hazards) == (0, [])


def added() -> Any:
    a, c = (te.placeholder((33, 35), "float32", name) for name in "AC")
    return te.create_prim_func([a, c, te.compute((35, 33), lambda j, i: a[i, j] + c[i, j], "B")])


def summed() -> Any:
    a, k = te.placeholder((33, 35), "float32", "A"), te.reduce_axis((0, 33), "k")
    return te.create_prim_func([a, te.compute((35,), lambda j: te.sum(a[k, j], k), "B")])


def symbolic() -> Any:
    n = te.var("n")
    a = te.placeholder((n, 35), "float32", "A")
    return te.create_prim_func([a, te.compute((35, n), lambda j, i: a[i, j], "B")])


def sliced() -> Any:
    a = te.placeholder((50, 50), "float32", "A")
    return te.create_prim_func([a, te.compute((35, 33), lambda j, i: a[i, j], "B")])


def copied() -> Any:
    a = te.placeholder((33, 35), "float32", "A")
    return te.create_prim_func([a, te.compute((33, 35), lambda i, j: a[i, j], "B")])


NO_PERMUTATION = "needs a permutation of all of A, of known sizes and without gaps, and block B"
REFUSED = [
    (added(), "stages one load, and 2 of block B want another order"),
    (summed(), "of B, it is a reduction"),
    (symbolic(), NO_PERMUTATION),
    (sliced(), NO_PERMUTATION),
    (copied(), "of B, no load of it wants another order than its store"),
    (
        swapped((300, 300), "float32").mod["main"],
        r"needs 360,000 bytes of shared memory for 300x300 elements of A0, .*a block has 232,448",
    ),
    (
        swapped((481, 483), "int8").mod["main"],
        r"no layout without bank conflicts for 483x481 elements of A0 \(232,323 bytes\) in 232,448",
    ),
]


@pytest.mark.parametrize(("func", "why"), REFUSED)
def test_what_no_block_can_hold_is_refused(func: Any, why: str) -> None:
    sch = s_tir.Schedule(func)
    before = sch.mod
    with cuda_target("sm_90"), pytest.raises(ScheduleError, match=f"stage='whole' .*{why}") as said:
        sch.auto_coalesce("B", stage="whole")
    assert str(said.value).count(". ") == 0
    tvm.ir.assert_structural_equal(sch.mod, before)


def test_a_copy_inside_a_kernel_is_refused() -> None:
    func = te.create_prim_func(permuted((64, 64), (1, 0), "float32").tensors())
    sch = s_tir.Schedule(func)
    cache = sch.cache_read("B", 0, "shared")
    row, _ = sch.get_loops("B")
    sch.bind(row, "blockIdx.x")
    sch.bind(sch.get_loops("B")[1], "threadIdx.x")
    sch.compute_at(cache, row)
    with pytest.raises(ScheduleError, match="a copy inside a kernel has the tile of the kernel"):
        sch.auto_coalesce(cache, stage="whole")


def test_slabs_replay_from_their_trace() -> None:
    sch, again = (swapped((41, 31, 50), "float16") for _ in range(2))
    sch.auto_coalesce("B", stage="whole")
    s_tir.schedule.Trace.apply_json_to_schedule(sch.trace.as_json(), again)
    assert sch.mod.script() == again.mod.script()


def test_pass_and_stage_take_it_too() -> None:
    sch = swapped((33, 100), "float32")
    sch.annotate(sch.get_sblock("B"), COALESCE, [0, 16, "whole"])
    mod = AutoCoalesce()(sch.mod)
    direct = swapped((33, 100), "float32")
    direct.auto_coalesce("B", stage="whole")
    tvm.ir.assert_structural_equal(mod["main"].body, direct.mod["main"].body)

    a = te.placeholder((33, 100), "float32", "A")
    b = te.compute((100, 33), lambda j, i: a[i, j], "B")
    stages = tlx.create_schedule(b.op)
    stages[b].auto_coalesce(stage="whole")
    value = np.random.default_rng(0).random((33, 100)).astype("float32")
    report = simulate(tlx.lower(stages, [a, b]), value, None)
    np.testing.assert_array_equal(report.outputs["B"], value.T)
    assert report.sectors == 2 * 413
