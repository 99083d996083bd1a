"""Candidates of a user's schedule that no GPU of the task can launch, and no others."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from tvm import s_tir, tirx

from tests.programs.mapped import computed, share
from tests.programs.products import multiplied
from tvm_layout_ext import te
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.tune import Result, tune
from tvm_layout_ext.tune.model.limits import over_limits
from tvm_layout_ext.tune.space.knobs import Config, knob
from tvm_layout_ext.tune.space.task import make_task

SM90 = architecture("sm_90a")


def run(func: tirx.PrimFunc, schedule: Callable[..., Any], *knobs: Any) -> Result:
    return tune(func, schedule=schedule, knobs=knobs, runner="simulate", strategy="replay")


def tried(result: Result, *names: str) -> list[tuple[Any, ...]]:
    """Values of some knobs in the trials, all of which worked."""
    assert [record.error_text for record in result.trials if record.score is None] == []
    return sorted(tuple(record.config[name] for name in names) for record in result.trials)


def product(size: int, dtype: str = "float32") -> tirx.PrimFunc:
    return te.create_prim_func(multiplied((size,) * 3, dtype, dtype))


def a_vector_each(sch: s_tir.Schedule, config: Config) -> None:
    share(sch, 16, config["lanes"])


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
    func = computed((3840,), lambda a, i: a[i], dtype).mod["main"]
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


def test_a_kernel_of_one_block_is_held_to_the_limits_too() -> None:
    """Without a loop over blocks nothing was looked at but the threads."""
    sch = s_tir.Schedule(product(512))
    block = sch.get_sblock("C")
    shared = sch.cache_read(block, 1, "shared")
    outer, inner = sch.split(sch.get_loops(block)[0], [2, None])
    sch.bind(inner, "threadIdx.x")
    sch.compute_at(shared, outer)
    sch.bind(sch.get_loops(shared)[1], "threadIdx.x")
    refusal = over_limits(sch.mod, SM90)
    assert refusal is not None
    assert refusal.rule == "shared memory"
