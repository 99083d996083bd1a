"""Pipelines that are no products: a streamed reduction and a stencil that marches."""

from __future__ import annotations

import random
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tvm.s_tir.schedule.testing import verify_trace_roundtrip

import tvm_layout_ext as tlx
from tests.sampling import SEED, pairwise
from tests.schedules.running import cuda_of, kernel_bytes, require_no_spills, run
from tvm_layout_ext import te
from tvm_layout_ext.gpu.hardware import Architecture, architecture
from tvm_layout_ext.schedules import stencil, stream_reduce
from tvm_layout_ext.tune.measure.simulated import count
from tvm_layout_ext.tune.space.operator import Operator
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


@pytest.mark.matrix
@pytest.mark.parametrize("draw", range(6))
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("name", "shape"), [("stream_reduce", (40, 1300)), ("stencil", (80, 200)), ("stencil", (9, 70))]
)
def test_any_legal_configuration_is_right(
    name: str, shape: tuple[int, int], dtype: str, draw: int
) -> None:
    task = task_of(name, shape, dtype)
    config = random.Random(f"{SEED} {name} {shape} {dtype} {draw}").choice(task.space.legal)
    assert run(task, config).hazards == []


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("name", "shape"),
    [("stream_reduce", (256, 4096)), ("stencil", (256, 512)), ("stencil", (250, 496))],
)
def test_no_conflict_and_no_sector_too_many(name: str, shape: tuple[int, int], dtype: str) -> None:
    """Rows of whole sectors, ragged tiles or not."""
    task = task_of(name, shape, dtype)
    _, model = count(task, task.operator.default_config())
    assert model["bank_conflicts"] == 0
    assert model["sectors"] == model["ideal_sectors"]


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


@pytest.mark.parametrize(
    ("name", "shape", "changes", "rule"),
    [
        ("stream_reduce", (64, 4096), {"warps": 8, "rows": 4}, "threads idle"),
        ("stream_reduce", (64, 4096), {"columns": 128}, "threads idle"),
        ("stream_reduce", (64, 100), {}, "tile too large"),
        ("stream_reduce", (2, 4096), {}, "tile too large"),
        ("stream_reduce", (64, 4096), {"rows": 32, "columns": 1024, "warps": 2}, "code size"),
        ("stream_reduce", (64, 4096), {"rows": 32, "columns": 1024, "warps": 8, "stages": 6},
         "shared memory"),
        ("stencil", (512, 512), {"tile_x": 256}, "threads idle"),
        ("stencil", (512, 512), {"tile_x": 32, "threads": 256, "tile_y": 4}, "threads idle"),
        ("stencil", (40, 512), {}, "tile too large"),
        ("stencil", (512, 40), {}, "tile too large"),
    ],
)  # fmt: skip
def test_illegal_configuration_names_its_rule(
    name: str, shape: tuple[int, int], changes: dict[str, int], rule: str
) -> None:
    operator: Operator = OPERATORS[name]
    dtype = "float16" if name == "stream_reduce" else "float32"
    refusal = operator.check(shape, dtype, operator.default_config() | changes, SM90)
    assert refusal is not None
    assert refusal.rule == rule
    assert refusal.text.endswith(".")


@pytest.mark.parametrize("name", OPERATORS)
def test_replays_from_its_trace(name: str) -> None:
    operator = OPERATORS[name]
    shape, config = (70, 300), operator.default_config() | SMALL[name]
    tensors = operator.compute(shape, "float32")
    if name == "stencil":
        tensors = stencil.compute(shape, "float32", (config["steps"] * config["tile_y"], 64))
    func = te.create_prim_func(list(tensors)).with_attr("global_symbol", "main")
    verify_trace_roundtrip(operator.schedule(tensors, config), func)


@pytest.mark.matrix
@pytest.mark.nvcc
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shape", [(4096, 4096), (1000, 1001)])
@pytest.mark.parametrize("name", OPERATORS)
def test_stays_in_registers(name: str, shape: tuple[int, int], dtype: str, tmp_path: Path) -> None:
    task = task_of(name, shape, dtype)
    require_no_spills(cuda_of(task.module(task.space.default())), tmp_path)
