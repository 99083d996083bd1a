"""What mapped blocks ask of a GPU, counted from their schedules."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import s_tir, te

from benchmarks.thread_programs import Program
from tests.programs.emitted import cuda_text
from tests.transform.bytes.test_pack_argmax import extreme
from tvm_layout_ext.coalesce.cost import count_kernels
from tvm_layout_ext.coalesce.rows.write import write_chains
from tvm_layout_ext.gpu.kernel_time import AccessWork, KernelWork
from tvm_layout_ext.ir.annotations import FUSE_ROWS, MARK


def bound(program: Program, threads: int = 128) -> s_tir.Schedule:
    """One element a thread, in the order of the results; sums one after the other."""
    sch = s_tir.Schedule(program.function())
    loops = sch.get_loops("B")
    count = len(program.results()[0][0])
    grid, thread = sch.split(sch.fuse(*loops[:count]), [None, threads])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return sch


def counted(program: Program) -> KernelWork:
    (work,) = count_kernels(bound(program).mod["main"])
    return work


def access(work: KernelWork, name: str, kind: str) -> AccessWork:
    (found,) = [one for one in work.accesses if (one.name, one.kind) == (name, kind)]
    return found


def test_a_copy_loads_and_stores_each_sector_once() -> None:
    work = counted(Program("copy", (1024, 1024), "float32"))
    assert (work.blocks, work.threads, work.resident) == (8192, 128, 16)
    for name, kind in (("A", "load"), ("B", "store")):
        one = access(work, name, kind)
        assert (one.bytes, one.requests) == (4, 32768)
        assert one.sectors == one.least == one.through == one.memory == 131072
        assert one.lines == 32768


def test_a_transpose_loads_a_sector_for_each_lane_and_the_memory_gives_each_once() -> None:
    load = access(counted(Program("permute", (1024, 1024), "float32", (1, 0))), "A", "load")
    assert (load.sectors, load.least) == (1 << 20, 131072)
    assert load.memory == 131072
    assert load.torn == load.through


def test_rows_that_threads_sum_alone_come_from_the_first_cache_mostly() -> None:
    load = access(counted(Program("sum", (65536, 64), "float32", (1,))), "A", "load")
    assert load.sectors == 8 * load.least
    assert load.through < 0.7 * load.sectors


def test_guards_leave_lanes_out() -> None:
    work = counted(Program("copy", (1000,), "float32"))
    assert access(work, "B", "store").requests == 32
    assert access(work, "B", "store").sectors == pytest.approx(125, rel=0.01)


def test_an_argmax_loads_what_it_names_three_times_once() -> None:
    work = counted(Program("argmax", (64, 4096), "float32", (0,)))
    assert access(work, "A", "load").requests == 64 * 128


def kernel_of_rows(program: Program, *plan: int) -> KernelWork:
    sch = s_tir.Schedule(program.function())
    sch.annotate(sch.get_sblock("B"), FUSE_ROWS, [*plan, "B"])
    (work,) = count_kernels(write_chains(sch.mod["main"])[0])
    return work


def test_loads_of_a_kernel_of_rows_wait_for_no_condition_but_their_own() -> None:
    work = kernel_of_rows(Program("argmax", (64, 1000), "float32", (1,)), 32, 4, 4, 8, 0, 0, 8)
    assert access(work, "A", "load").rounds == 3


def test_values_with_a_name_are_computed_too() -> None:
    """Of an argmax those are the choices between two elements and their places."""
    both, one = (
        kernel_of_rows(Program(kind, (64, 1000), "float32", (1,)), 32, 4, 4, 8, 0, 0, 8)
        for kind in ("argmax", "max")
    )
    assert both.instructions > 1.8 * one.instructions


@pytest.mark.parametrize(("terms", "is_packed"), [(65_504, True), (65_505, False)])
def test_an_argmax_counts_as_one_number_where_it_is_one(terms: int, is_packed: bool) -> None:
    """Beside 16 bits there is room for 65,536 indices: of 2,047 steps of 32, and the start's."""
    sch = s_tir.Schedule(extreme((64, terms), 1, "int16"))
    row, k = sch.get_loops("B")
    _, lane = sch.split(k, [None, 32])
    sch.bind(row, "blockIdx.x")
    sch.bind(lane, "threadIdx.x")
    (work,) = count_kernels(sch.mod["main"])
    each = work.instructions / (64 * terms / 32)
    assert (each < 5) == is_packed
    marked = tvm.IRModule({"main": sch.mod["main"].with_attr(MARK, 1)})
    assert ("__byte_perm" in cuda_text(marked)) == is_packed


def test_results_in_memory_are_no_numbers_of_an_argmax() -> None:
    work = counted(Program("argmax", (64, 4096), "int8", (0,)))
    assert work.instructions > 5 * 2 * 4096


def test_what_a_sum_has_so_far_is_in_registers() -> None:
    work = counted(Program("sum", (64, 4096), "float32", (0,)))
    assert access(work, "B", "store").requests == 128
    assert [one.kind for one in work.accesses if one.name == "B"] == ["store"]


def test_a_wait_for_loads_under_a_condition_is_one_for_two() -> None:
    def rounds(columns: int) -> float:
        sch = bound(Program("sum", (64, columns), "float32", (0,)))
        sch.unroll(sch.get_loops("B")[-1])
        (work,) = count_kernels(sch.mod["main"])
        return access(work, "A", "load").rounds

    assert (rounds(4096), rounds(4000)) == (8, 32)


def test_divisions_count_as_instructions() -> None:
    plain, divided = (
        counted(Program("permute", shape, "float32", (1, 0, 2))).instructions
        for shape in ((64, 64, 64), (63, 65, 64))
    )
    assert divided > 1.5 * plain


def test_threads_of_a_row_combine_by_shuffles() -> None:
    sch = s_tir.Schedule(Program("sum", (4096, 1024), "float32", (1,)).function())
    row, k = sch.get_loops("B")
    _, lane = sch.split(k, [None, 32])
    sch.bind(row, "blockIdx.x")
    sch.bind(lane, "threadIdx.x")
    (work,) = count_kernels(sch.mod["main"])
    assert work.combines == 5 * 4096


def test_bank_conflicts_count_as_wavefronts() -> None:
    def wavefronts(pad: int) -> float:
        a = te.placeholder((1024, 1024), "float32", "A")
        sch = s_tir.Schedule(
            te.create_prim_func([a, te.compute((1024, 1024), lambda i, j: a[j, i], "B")])
        )
        tile = sch.cache_read("B", 0, "shared")
        i, j = sch.get_loops("B")
        i0, i1, j0, j1 = *sch.split(i, [None, 32]), *sch.split(j, [None, 32])
        sch.reorder(i0, j0, i1, j1)
        grid = sch.fuse(i0, j0)
        sch.compute_at(tile, grid)
        sch.bind(grid, "blockIdx.x")
        for block in ("B", tile):
            row, lane = sch.get_loops(block)[-2:]
            sch.bind(row, "threadIdx.y")
            sch.bind(lane, "threadIdx.x")
        if pad:
            sch.storage_align(tile, 0, 0, 32, pad)
        (work,) = count_kernels(sch.mod["main"])
        return work.total("wavefronts", "load", "shared")

    assert wavefronts(0) == 32 * wavefronts(1)


def test_known_kernels_and_loops_without_threads_are_left_out() -> None:
    sch = bound(Program("copy", (1024,), "float32"))
    function: Any = sch.mod["main"]
    assert count_kernels(function, [sch.get(sch.get_loops("B")[0])]) == []
    assert count_kernels(Program("copy", (1024,), "float32").function()) == []
