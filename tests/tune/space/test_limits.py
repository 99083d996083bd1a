"""Candidates of a user's schedule that registers and addresses rule out, and no others."""

from __future__ import annotations

import importlib
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tvm import s_tir, tirx
from tvm.s_tir.meta_schedule.builder import BuilderInput
from tvm.script import tirx as T

from tvm_layout_ext import te
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.schedules import gemm
from tvm_layout_ext.target import cuda_target
from tvm_layout_ext.tune import Result, tune
from tvm_layout_ext.tune.measure.builder.builder import INFO, CubinBuilder
from tvm_layout_ext.tune.model.features import kernels_of
from tvm_layout_ext.tune.space.knobs import Config, knob
from tvm_layout_ext.tune.space.limits import over_limits
from tvm_layout_ext.tune.space.live_registers import live_sums, too_many_sums
from tvm_layout_ext.tune.space.operator import find_operator
from tvm_layout_ext.tune.space.task import make_task

SM90 = architecture("sm_90a")


def run(func: tirx.PrimFunc, schedule: Callable[..., Any], *knobs: Any) -> Result:
    return tune(func, schedule=schedule, knobs=knobs, runner="simulate", strategy="replay")


def tried(result: Result, *names: str) -> list[tuple[Any, ...]]:
    """Values of some knobs in the trials, all of which worked."""
    assert [record.error_text for record in result.trials if record.score is None] == []
    return sorted(tuple(record.config[name] for name in names) for record in result.trials)


def product(size: int, dtype: str = "float32") -> tirx.PrimFunc:
    a, b = (te.placeholder((size, size), dtype, name=name) for name in "AB")
    k = te.reduce_axis((0, size), name="k")
    return te.create_prim_func(
        [a, b, te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")]
    )


def in_registers(sch: s_tir.Schedule, config: Config) -> None:
    """Each of threads x threads has rows x columns sums."""
    block = sch.get_sblock("C")
    sums = sch.cache_write(block, 0, "local")
    i, j, k = sch.get_loops(block)
    io, it, ii = sch.split(i, [None, config["threads"], config["rows"]])
    jo, jt, ji = sch.split(j, [None, config["threads"], config["columns"]])
    sch.reorder(io, jo, it, jt, k, ii, ji)
    for loop, tag in zip((io, jo, it, jt), ("blockIdx.y", "blockIdx.x", "threadIdx.y",
                                            "threadIdx.x"), strict=True):  # fmt: skip
        sch.bind(loop, tag)
    for loop in (ii, ji):
        sch.unroll(loop)
    sch.reverse_compute_at(sums, jt)
    sch.decompose_reduction(block, k)


def test_sums_that_no_thread_has_registers_for_are_pruned_and_counted() -> None:
    knobs = [knob("threads", (2,)), knob("rows", (4, 16)), knob("columns", (4, 16))]
    result = run(product(32), in_registers, *knobs)
    assert tried(result, "rows", "columns") == [(4, 4), (4, 16), (16, 4)]
    assert result.task.space.refused == {"registers": 1}
    assert result.task.space.reasons == {
        "registers": "The sums of a thread take 256 registers (C_local 256), and each of 4 threads "
        "of a block on sm_90a may have 255."
    }


def test_sums_that_all_threads_together_have_no_registers_for_are_pruned() -> None:
    def refusal(rows: int) -> str:
        sch = s_tir.Schedule(product(512))
        in_registers(sch, {"threads": 32, "rows": rows, "columns": 8})
        found = over_limits(sch.mod, SM90)
        return found.text if found else ""

    assert refusal(8) == ""
    assert refusal(16) == (
        "The sums of a thread take 128 registers (C_local 128), and each of 1,024 threads of a "
        "block on sm_90a may have 64."
    )


def test_results_that_need_not_live_together_are_not_counted() -> None:
    """Each sum is complete before the next begins: one register does."""

    def one_by_one(sch: s_tir.Schedule, config: Config) -> None:
        block = sch.get_sblock("C")
        sums = sch.cache_write(block, 0, "local")
        i, j, _ = sch.get_loops(block)
        sch.bind(i, "threadIdx.x")
        outer, _ = sch.split(j, [1, None])
        sch.reverse_compute_at(sums, outer)
        sch.bind(outer, "blockIdx.x")

    sch = s_tir.Schedule(product(512))
    one_by_one(sch, {})
    (kernel,) = kernels_of(sch.mod)
    assert max(tile.bytes for tile in kernel.tiles.values()) == 512 * 4
    assert live_sums(kernel) == {"C_local": 1}


@pytest.mark.parametrize("seed", range(4))
def test_fragments_of_tensor_cores_count_a_lanes_share(seed: int) -> None:
    task = make_task("gemm", (1024, 1024, 1024), "float16")
    config = random.Random(seed).choice(task.space.legal)
    sch = s_tir.Schedule(task.unscheduled)
    gemm.multiply(sch, "product", config)
    m, n = (config[f"tile_{dim}"] // config[f"warps_{dim}"] for dim in "mn")
    heaviest = max(sum(live_sums(kernel).values()) for kernel in kernels_of(sch.mod))
    assert heaviest == m * n // 32
    assert over_limits(sch.mod, SM90) is None


def test_a_warps_tile_that_is_too_large_is_pruned() -> None:
    func = find_operator("gemm").unscheduled((256, 256, 256), "float16")
    sch = s_tir.Schedule(func)
    config = find_operator("gemm").default_config() | {"tile_m": 256, "tile_n": 128}
    gemm.multiply(sch, "product", config | {"warps_m": 2, "warps_n": 1})
    refusal = over_limits(sch.mod, SM90)
    assert refusal is not None
    assert refusal.rule == "registers"
    assert refusal.text.startswith("The sums of a thread take 512 registers (product_")


@pytest.mark.nvcc
def test_what_is_refused_for_its_sums_spills_and_what_just_fits_does_not() -> None:
    """255 sums and nothing else would fit; ptxas is asked on either side of the rule."""
    target, inputs, refused = cuda_target("sm_90a"), [], []
    for columns in (8, 16):
        sch = s_tir.Schedule(product(512))
        in_registers(sch, {"threads": 16, "rows": 16, "columns": columns})
        inputs.append(BuilderInput(sch.mod, target))
        (kernel,) = kernels_of(sch.mod)
        refused.append(too_many_sums(kernel, SM90) is not None)
    builder = CubinBuilder("sm_90a", workers=1)
    folders = [str(result.artifact_path) for result in builder.build(inputs)]
    infos = [json.loads((Path(folder) / INFO).read_text()) for folder in folders]
    builder.close()
    assert refused == [False, True]
    assert [info["spill_bytes"] > 0 for info in infos] == refused


def by_rows(sch: s_tir.Schedule, config: Config) -> None:
    row, column = sch.get_loops(sch.get_sblock("B"))
    lane, vector = sch.split(column, [None, config["vector"]])
    sch.bind(row, "blockIdx.x")
    sch.bind(lane, "threadIdx.x")
    sch.vectorize(vector)


def rows_of(columns: int, taken: int) -> tirx.PrimFunc:
    source = te.placeholder((16, columns), "float32", name="A")
    copy = te.compute((16, taken), lambda i, j: source[i, j] * 2.0, name="B")
    return te.create_prim_func([source, copy])


@pytest.mark.parametrize(("columns", "taken"), [(36, 32), (34, 32), (33, 32), (30, 30)])
def test_vectors_that_are_loaded_from_torn_rows_are_not_pruned(columns: int, taken: int) -> None:
    """TVM loads their elements one by one, and stores vectors that end rows of 30 so, too."""
    result = run(rows_of(columns, taken), by_rows, knob("vector", (1, 2, 4)))
    assert tried(result, "vector") == [(1,), (2,), (4,)]
    assert not result.task.space.refused


@pytest.mark.parametrize(("columns", "most"), [(36, 4), (34, 2), (33, 1)])
def test_vectors_that_are_stored_to_torn_rows_of_global_memory_are_refused(
    columns: int, most: int
) -> None:
    @T.prim_func(s_tir=True)
    def func(A: T.Buffer((16, 32), "float32"), B: T.Buffer((16, columns), "float32")):
        for i, j in T.grid(16, 32):
            with T.sblock("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] * 2.0

    for vector in (1, 2, 4):
        sch = s_tir.Schedule(func)
        by_rows(sch, {"vector": vector})
        refusal = over_limits(sch.mod, SM90)
        if vector <= most:
            assert refusal is None
        else:
            assert refusal is not None
            assert refusal.rule == "alignment"
            assert re.fullmatch(
                rf"Kernel func_kernel stores {4 * vector} bytes at byte [0-9,]+ of B; only "
                rf"multiples of {4 * vector} are legal\.",
                refusal.text,
            )


def on_tensor_cores(sch: s_tir.Schedule, config: Config) -> None:
    tc = sch.use_tensor_core("product", "auto", multiples=[64, 64, 32])
    mo, wm, mi = sch.split(tc.m, [None, 2, 2])
    no, wn, ni = sch.split(tc.n, [None, 2, 4])
    ko, ki = sch.split(tc.k, [None, 2])
    sch.reorder(mo, no, wm, wn, ko, ki, mi, ni)
    sch.bind(mo, "blockIdx.y")
    sch.bind(no, "blockIdx.x")
    sch.bind(wm, "threadIdx.y")
    sch.bind(wn, "threadIdx.z")
    for fragment in (tc.a_fragment, tc.b_fragment):
        sch.compute_at(fragment, ki, preserve_unit_loops=True)
    for operand in (tc.a, tc.b):
        sch.compute_at(operand, ko, preserve_unit_loops=True)
        i, j = sch.get_loops(operand)[-2:]
        sch.storage_align(operand, 0, -2, factor=32, offset=config["pad"])
        rest, vector = sch.split(sch.fuse(i, j), [None, config["vector"]])
        gemm.spread(sch, rest, (2, 2))
        sch.vectorize(vector)
        if config.get("demanded"):
            sch.double_buffer(operand, 2, async_copy=True)
    gemm.store(sch, tc.result, no, wn, (2, 2))


def test_padding_that_tears_rows_of_ldmatrix_or_vectors_is_pruned() -> None:
    func = find_operator("gemm").unscheduled((128, 128, 64), "float16")
    knobs = [knob("pad", (0, 8, 16, 4, 1)), knob("vector", (8, 4))]
    result = run(func, on_tensor_cores, *knobs)
    assert tried(result, "pad", "vector") == [(pad, v) for pad in (0, 8, 16) for v in (4, 8)]
    assert result.task.space.refused == {"alignment": 4}
    assert " of A_reindex_shared.dyn; only multiples of " in result.task.space.reasons["alignment"]
    sch = s_tir.Schedule(func)
    on_tensor_cores(sch, {"pad": 4, "vector": 4})
    refusal = over_limits(sch.mod, SM90)
    assert refusal is not None
    assert refusal.text == (
        "Kernel main_kernel makes ldmatrix take 16 bytes at byte 72 of A_reindex_shared.dyn; only "
        "multiples of 16 are legal."
    )


def test_copies_that_cannot_be_asynchronous_are_pruned_where_they_have_to_be() -> None:
    func = find_operator("gemm").unscheduled((128, 128, 64), "float16")
    knobs = [knob("pad", (8,)), knob("vector", (8, 1)), knob("demanded", (1,))]
    result = run(func, on_tensor_cores, *knobs)
    assert tried(result, "vector") == [(8,)]
    assert result.task.space.refused == {"alignment": 1}
    text = result.task.space.reasons["alignment"]
    assert text.startswith("The copy into ")
    assert " cannot be asynchronous: " in text


def a_vector_each(sch: s_tir.Schedule, config: Config) -> None:
    (loop,) = sch.get_loops(sch.get_sblock("B"))
    block, thread, vector = sch.split(loop, [None, 16, config["lanes"]])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.vectorize(vector)


@pytest.mark.parametrize(
    ("dtype", "legal", "text"),
    [
        ("int8", [1, 2, 3, 4, 8, 16], r"^The kernel loads vectors of (5|6|12|32) int8 \(A\), and "
         r"CUDA code has those of 2, 3, 4, 8 or 16\.$"),
        ("float32", [1, 2, 3, 4, 6, 8], r"^The kernel loads vectors of (5|12|16|32) float32 \(A\), "
         r"and CUDA code has those of 2, 3, 4, 6 or 8\.$"),
        ("bool", [1], r"^A vector of \d+ bool cannot be loaded from A, as CUDA code has none"),
    ],
)  # fmt: skip
def test_vectors_that_cuda_lacks_reached_the_compiler(
    dtype: str, legal: list[int], text: str
) -> None:
    lanes = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32)
    source = te.placeholder((3840,), dtype, name="A")
    func = te.create_prim_func([source, te.compute((3840,), lambda i: source[i], name="B")])
    result = run(func, a_vector_each, knob("lanes", lanes))
    assert tried(result, "lanes") == [(one,) for one in legal]
    assert result.task.space.refused == {"vector types": len(lanes) - len(legal)}
    assert re.search(text, result.task.space.reasons["vector types"])


READY = [
    ("gemm", (128, 128, 128), "float16"),
    ("matmul", (64, 64, 64), "float32"),
    ("transpose", (100, 60), "float16"),
    ("permute", (2, 6, 10, 14), "float32"),
    ("row_sum", (30, 250), "float32"),
    ("column_sum", (60, 200), "float16"),
    ("elementwise", (33, 70), "float32"),
    ("slice", (20, 40), "float32"),
    ("pad", (20, 40), "float16"),
    ("stencil", (40, 40), "float32"),
]


@pytest.mark.matrix
@pytest.mark.parametrize("draw", range(6))
@pytest.mark.parametrize(("name", "shape", "dtype"), READY)
def test_nothing_that_runs_is_pruned(name: str, shape: Any, dtype: str, draw: int) -> None:
    """Legal configurations of ready operators; the simulated GPU runs each (tests/schedules)."""
    task = make_task(name, shape, dtype)
    config = random.Random(f"{name} {draw}").choice(task.space.legal)
    assert over_limits(task.module(config), SM90) is None


def strided(sch: s_tir.Schedule, config: Config) -> None:
    block = sch.get_sblock("B")
    tile = sch.cache_read(block, 0, "shared")
    io, _ = sch.split(sch.get_loops(block)[0], [None, 8])
    sch.bind(io, "blockIdx.x")
    sch.compute_at(tile, io)
    sch.storage_align(tile, 0, 0, factor=4, offset=config["offset"])
    for at, width in ((block, config["read"]), (tile, config["write"])):
        rest, vector = sch.split(sch.fuse(*sch.get_loops(at)[-2:]), [None, width])
        sch.bind(sch.split(rest, [None, 32])[1], "threadIdx.x")
        sch.vectorize(vector)


@pytest.mark.matrix
@pytest.mark.parametrize("columns", [24, 25, 26])
def test_refused_are_exactly_those_that_fail_on_the_simulated_gpu(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    knobs = [knob(n, (1, 2, 4)) for n in ("read", "write")] + [knob("offset", (0, 1, 2))]
    func = rows_of(columns, columns)
    pruned = {tuple(r.config.values()) for r in run(func, strided, *knobs).trials}
    # The package's name of it is its function ``tune``.
    design = importlib.import_module("tvm_layout_ext.tune.search.design")
    monkeypatch.setattr(design, "over_limits", lambda *_: None)
    trials = run(func, strided, *knobs).trials
    assert pruned == {tuple(r.config.values()) for r in trials if r.score is not None}
    assert all("Misaligned" in str(r.error_text) for r in trials if r.score is None)


@pytest.mark.parametrize(("size", "rule"), [(32, "registers"), (512, "shared memory")])
def test_a_kernel_of_one_block_is_held_to_the_limits_too(size: int, rule: str) -> None:
    """Without a loop over blocks nothing was looked at but the threads."""
    sch = s_tir.Schedule(product(size))
    block = sch.get_sblock("C")
    if rule == "registers":
        sums = sch.cache_write(block, 0, "local")
        i, j, k = sch.get_loops(block)
        outer, inner = sch.split(i, [2, None])
        sch.reorder(outer, k, inner, j)
        sch.bind(outer, "threadIdx.x")
        sch.reverse_compute_at(sums, outer)
    else:
        shared = sch.cache_read(block, 1, "shared")
        outer, inner = sch.split(sch.get_loops(block)[0], [2, None])
        sch.bind(inner, "threadIdx.x")
        sch.compute_at(shared, outer)
        sch.bind(sch.get_loops(shared)[1], "threadIdx.x")
    refusal = over_limits(sch.mod, SM90)
    assert refusal is not None
    assert refusal.rule == rule
