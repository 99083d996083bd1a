"""Reductions whose results are few are shared out over blocks, and a second kernel combines."""

from __future__ import annotations

import re

import pytest
from tvm import s_tir, te

from benchmarks.thread_programs import Program
from tests.programs.reduced import gives_numpys
from tvm_layout_ext.build import device_program
from tvm_layout_ext.coalesce.cost import count_kernels
from tvm_layout_ext.coalesce.reduction.columns import ColumnsTile
from tvm_layout_ext.coalesce.reduction.split import choose_slabs
from tvm_layout_ext.gpu.hardware import MULTIPROCESSORS
from tvm_layout_ext.schedules.column_sum import compute as column_sum
from tvm_layout_ext.schedules.row_sum import compute as row_sum


def scheduled(tensors: list[te.Tensor]) -> tuple[s_tir.Schedule, str]:
    sch = s_tir.Schedule(te.create_prim_func(tensors))
    outcome = sch.auto_coalesce("B")
    assert outcome.path == "reduction"
    return sch, outcome.text


TILE = ColumnsTile(32, 1, 8, 8)


@pytest.mark.parametrize(
    ("extent", "blocks", "slabs"),
    [
        (1 << 20, 1, 256),
        (1000000, 1, 250),
        (1 << 20, 2000, 1),
        (100, 1, 1),
        (10007, 1, 154),
        (6400, 4, 50),
        # 32 slabs are 160 blocks, of which a few multiprocessors have two.
        (65536, 5, 64),
    ],
)
def test_slabs_fill_the_gpu_and_divide_where_they_can(extent: int, blocks: int, slabs: int) -> None:
    assert choose_slabs(extent, blocks, TILE) == slabs


@pytest.mark.parametrize("extent", [10007, 12345, 99991, 65536 + 1])
def test_no_slab_is_empty_or_too_short_for_its_threads(extent: int) -> None:
    slabs = choose_slabs(extent, 1, TILE)
    chunk = -(-extent // slabs)
    assert 0 < extent - (slabs - 1) * chunk <= chunk
    assert chunk >= TILE.deals * TILE.together


#: Kind, shape, type and axes.
LARGE = [
    ("sum", (33554432, 1), "float32", (0,)),
    ("sum", (1000000, 33), "float32", (0,)),
    ("sum", (500000, 128), "float32", (0,)),
    ("sum", (1000000, 100), "float32", (0,)),
    ("sum", (16, 2097152), "float32", (1,)),
    ("sum", (1, 33554432), "float32", (1,)),
    ("sum", (64, 1000003), "float16", (1,)),
    ("argmax", (16777216, 2), "float32", (0,)),
    ("argmax", (8, 1000000, 4), "float32", (1,)),
    ("argmax", (65536, 1000), "float16", (0,)),
    ("argmax", (4096, 4096, 3), "float32", (1,)),
    ("argmax", (16, 2097152), "float32", (1,)),
    ("sum", (32, 65536, 17), "float32", (0, 1)),
    ("sum", (4096, 4096, 3), "float32", (0, 1)),
    ("sum", (64, 512, 1024), "float16", (0, 2)),
    ("max", (10007, 4999), "float16", (0,)),
    ("sum", (8, 20797, 206), "float32", (0, 1, 2)),
]


@pytest.mark.parametrize("case", LARGE, ids=lambda case: Program(*case).name)
def test_large_reductions_fill_the_gpu(case: tuple) -> None:
    """Each ran on less than a third of the multiprocessors, most in one block of threads."""
    sch, _ = scheduled(Program(*case).tensors())
    work = max(count_kernels(sch.mod["main"]), key=lambda one: one.total("sectors"))
    assert work.blocks >= MULTIPROCESSORS / 3
    least = Program(*case).bytes() / 32
    assert work.total("sectors", "load", "global") <= 1.6 * least


#: The same, small enough to be simulated.
SMALL = [
    ("sum", (4096, 512), "float16", (0,)),
    ("sum", (8192, 40), "float16", (0,)),
    ("sum", (100003, 3), "float32", (0,)),
    ("max", (20011, 33), "float16", (0,)),
    ("argmax", (30000, 2), "float32", (0,)),
    ("argmax", (3, 100003), "float32", (1,)),
    ("argmax", (2, 1 << 18), "float16", (1,)),
    ("sum", (2, 1 << 18), "float16", (1,)),
    ("max", (100003,), "int8", (0,)),
    ("sum", (13, 206, 80), "float32", (0, 1, 2)),
    ("sum", (300000, 1), "float32", (0,)),
]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: Program(*case).name)
def test_results_of_slabs_are_numpys(case: tuple) -> None:
    program = Program(*case)
    sch, text = scheduled(program.tensors())
    assert re.search(r"in \d+ slabs that a second kernel combines", text)
    gives_numpys(program, sch)


@pytest.mark.parametrize(
    ("tensors", "kernels"),
    [
        (lambda: column_sum((4096, 1 << 17), "float16"), 1),
        (lambda: column_sum((64, 256), "float16"), 1),
        (lambda: row_sum((32768, 4096), "float16"), 1),
        (lambda: column_sum((32768, 4096), "float16"), 2),
        (lambda: row_sum((4, 1 << 22), "float16"), 2),
    ],
)
def test_a_second_kernel_must_pay(tensors: object, kernels: int) -> None:
    sch, _ = scheduled(tensors())  # type: ignore[operator]
    assert len(device_program(sch).kernels) == kernels


def test_the_first_kernel_lets_the_second_begin_and_that_waits() -> None:
    sch, _ = scheduled(column_sum((32768, 4096), "float16"))
    first, second = (str(kernel.body) for kernel in device_program(sch).kernels.values())
    assert first.startswith('T.ptx.griddepcontrol("launch_dependents", "")')
    assert second.startswith('T.ptx.griddepcontrol("wait", "")')
