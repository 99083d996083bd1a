"""Pipelines that are no products: a streamed reduction and a stencil that marches."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

import tvm_layout_ext as tlx
from tests.sampling import SEED, pairwise
from tests.schedules.running import kernel_bytes, run
from tvm_layout_ext.gpu.hardware import Architecture, architecture
from tvm_layout_ext.schedules import stencil, stream_reduce
from tvm_layout_ext.tune.space.task import Task

SM90 = architecture("sm_90a")
OPERATORS = {one.name: one for one in (stream_reduce.OPERATOR, stencil.OPERATOR)}
#: Whole tiles; every size ragged, rows at odd elements, at 8 bytes, at 16; less than a tile.
SHAPES: dict[str, list[tuple[int, int]]] = {
    "stream_reduce": [(16, 2048), (33, 1001), (7, 516), (8, 1000), (1, 1), (3, 20)],
    "stencil": [(64, 256), (33, 47), (70, 300), (1, 1), (65, 136), (5, 1)],
}
#: Small tiles, so that small shapes take many steps.
SMALL: dict[str, dict[str, int]] = {
    "stream_reduce": {"rows": 4, "columns": 256, "warps": 2},
    "stencil": {"tile_y": 4, "tile_x": 64, "steps": 8, "threads": 128},
}
CASES = pairwise(
    (
        (name, shape, dtype, stages, asynchronous)
        for name, shapes in SHAPES.items()
        for shape in shapes
        for dtype in OPERATORS[name].dtypes
        for stages in range(1, 7)
        for asynchronous in (0, 1)
    ),
    key=lambda name, shape, *more: (name, SHAPES[name].index(shape), *more),
)


def task_of(name: str, shape: tuple[int, int], dtype: str) -> Task:
    return Task(OPERATORS[name], shape, dtype, SM90, seed=SEED)


def module(name: str, shape: tuple[int, int], dtype: str, **changes: int) -> Any:
    return task_of(name, shape, dtype).module(OPERATORS[name].default_config() | changes)


def test_rows_of_a_single_step_are_streamed_too() -> None:
    """Tile and weights lay over each other in shared memory: 12 of 120 configurations failed."""
    config = {"rows": 8, "columns": 256, "warps": 8, "stages": 2, "asynchronous": 1}
    run(task_of("stream_reduce", (48, 48), "float16"), config)


@pytest.mark.matrix
@pytest.mark.parametrize(("name", "shape", "dtype", "stages", "asynchronous"), CASES)
def test_every_depth_gives_numpys_result_without_a_hazard(
    name: str, shape: tuple[int, int], dtype: str, stages: int, asynchronous: int
) -> None:
    config = OPERATORS[name].default_config() | SMALL[name]
    changes = {"stages": stages, "asynchronous": asynchronous}
    report = run(task_of(name, shape, dtype), config | changes)
    assert report.hazards == []
    assert report.bank_conflicts == 0


def test_stencil_reads_its_halo_and_nothing_else() -> None:
    """A tile of 8x128 floats needs 10 rows of 18 sectors, less where A ends, and writes 8 of 16."""
    config = OPERATORS["stencil"].default_config() | {"steps": 4}
    report = run(task_of("stencil", (64, 256), "float32"), config)
    sectors = dict.fromkeys(("load", "store"), 0)
    for access in report.accesses:
        if access.scope == "global":
            sectors[access.kind] += access.sectors
    rows = 8 * 10 - 2  # the first and the last row of all lie outside
    assert sectors == {"load": rows * 2 * (18 - 1), "store": 64 * 32}


@pytest.mark.parametrize("stages", [2, 3, 5])
@pytest.mark.parametrize(("name", "loads"), [("stream_reduce", 4 + 1), ("stencil", 3)])
def test_steady_state_has_one_barrier_and_one_group(name: str, loads: int, stages: int) -> None:
    """Copies of 16 bytes: 8 rows of 64 vectors and the weights; 10 rows of 36 by 128 threads."""
    dtype = "float16" if name == "stream_reduce" else "float32"
    text = tlx.lower(module(name, (64, 8192), dtype, stages=stages)).script()
    loop = re.search(r"\n( *)for \w+ in range\(\d+\):\n(?:\1 .*\n)+", text)
    assert loop is not None
    assert loop[0].count("tvm_storage_sync") == 1
    assert loop[0].count("commit_group") == 1
    assert f'T.ptx.cp({stages - 2}, "async", "wait_group", "")' in loop[0]
    assert loop[0].count('"async", "cg"') == loads
    assert '"async", "ca"' not in text


@pytest.mark.parametrize("name", OPERATORS)
def test_copies_through_registers_where_asked(name: str) -> None:
    text = tlx.lower(module(name, (64, 4096), "float32", asynchronous=0)).script()
    assert "async" not in text


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("stream_reduce", {"stages": 3}),
        ("stream_reduce", {"rows": 16, "columns": 1024, "warps": 8, "stages": 3}),
        ("stencil", {"stages": 4}),
        ("stencil", {"tile_y": 8, "tile_x": 64, "threads": 256, "stages": 5}),
    ],
)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_checks_count_the_bytes_of_the_kernel(
    name: str, changes: dict[str, int], dtype: str
) -> None:
    config = OPERATORS[name].default_config() | changes
    shape = (4096, 8192)
    size = sum(kernel_bytes(module(name, shape, dtype, **changes)))
    assert OPERATORS[name].check(shape, dtype, config, _with(size)) is None
    refusal = OPERATORS[name].check(shape, dtype, config, _with(size - 1))
    assert refusal is not None
    assert refusal.text == f"The tiles need {size:,} bytes of {size - 1:,}."


def _with(shared: int) -> Architecture:
    """A GPU with so many bytes for a block."""
    return replace(SM90, shared_per_block=shared)
