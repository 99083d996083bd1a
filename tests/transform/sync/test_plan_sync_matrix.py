"""Planned barriers suffice; in ready operators each is needed: without it there is a race."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests import sampling
from tests.programs import kernels
from tests.programs.barriers import barriers, check_minimal, marked
from tests.programs.chains import Problem, chains
from tests.programs.pipelined import TILE, Stream
from tests.programs.products import Product, config
from tvm_layout_ext import ScheduleError
from tvm_layout_ext.build import device_program
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.schedules import gemm
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.tune.space.operator import find_operator
from tvm_layout_ext.tune.space.task import Task

SM90 = architecture("sm_90a")
OPERATORS = {
    "transpose": [(64, 64), (33, 47), (129, 64)],
    "matmul": [(64, 64, 64), (33, 20, 17), (70, 4, 64)],
    "row_sum": [(64, 96), (33, 1000)],
    "column_sum": [(96, 64), (1000, 33)],
}


@pytest.mark.matrix
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("async_copy", [False, "auto"])
@pytest.mark.parametrize("loads", [1, 2, 3])
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5])
def test_pipelines(stages: int, loads: int, async_copy: bool | str, ragged: bool) -> None:
    stream = Stream(loads, ragged)
    arrays = stream.inputs(7, 5, np.random.default_rng(stages))
    out = np.zeros(TILE, stream.dtype)
    sch = stream.schedule(stages, async_copy)
    report = check_minimal(sch.mod, *arrays, out, 7, 7 * TILE - 5)
    np.testing.assert_array_equal(report.outputs["B"], stream.expected(arrays, 7))
    assert report.barriers == (7 if stages > 1 else 14)


@pytest.mark.costly
@pytest.mark.matrix
@pytest.mark.parametrize("scope", ["shared", "shared.dyn"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("stages", [0, 2, 3, 4])
def test_matmuls_that_tvm_pipelines(stages: int, dtype: str, scope: str) -> None:
    A, B = (kernels.random((64, 64), dtype, seed) for seed in (0, 1))
    check_minimal(kernels.matmul(64, dtype, "float32", stages, scope), A, B)


@pytest.mark.matrix
@pytest.mark.parametrize("threads", [8, 32, 64, 100, 128, 256])
@pytest.mark.parametrize("columns", [40, 128, 200])
def test_reductions_over_threads(columns: int, threads: int) -> None:
    check_minimal(kernels.row_sum(16, columns, threads), kernels.random((16, columns)))


@pytest.mark.costly
@pytest.mark.matrix
@pytest.mark.parametrize("epilogue", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("operand", ["float16", "float32", "int8"])
@pytest.mark.parametrize("k", [32, 96])
def test_tensor_core_products(k: int, operand: str, transposed: bool, epilogue: bool) -> None:
    sums = "int32" if operand == "int8" else "float32"
    kind = "mma.m16n8k8.f32.tf32" if operand == "float32" else "auto"
    out = sums if not epilogue else "float32"
    product = Product(operand, sums, out, (64, 64, k), 0, transposed, not transposed, False, kind)
    sch = _scheduled(product)
    arguments, _ = product.inputs()
    check_minimal(sch.mod, *arguments)


def _scheduled(product: Product) -> Any:
    from tvm import s_tir

    sch = s_tir.Schedule(product.func())
    gemm.multiply(sch, "C", config((64, 64, 32), (2, 2)), product.instruction)
    return sch


@pytest.mark.matrix
@pytest.mark.parametrize("draw", range(4))
@pytest.mark.parametrize(
    ("name", "shape"), [(name, shape) for name, shapes in OPERATORS.items() for shape in shapes]
)
def test_ready_schedules(name: str, shape: tuple[int, ...], draw: int) -> None:
    operator = find_operator(name)
    task = Task(operator, shape, operator.dtypes[0], SM90, seed=sampling.SEED)
    legal = task.space.legal
    config = task.space.default() if draw == 0 else legal[draw * 7919 % len(legal)]
    inputs = task.draw(draw)
    check_minimal(task.module(config), *inputs)


def test_random_chains() -> None:
    counts = {"ran": 0, "barriers": 0}

    @settings(
        max_examples=sampling.matrix_examples(200),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(chains())
    def run(chain: tuple[Problem, Any]) -> None:
        problem, schedule = chain
        try:
            # A few are refused only when lowered: a copy under a condition that its reader lacks.
            program = device_program(marked(schedule.to_module(problem.args)))
        except ScheduleError:
            return
        arrays = problem.arrays(seed=0)
        report = simulate(program, *arrays, progress=False)
        assert report.hazards == []
        for tensor, wanted in zip(problem.outputs, problem.reference(*arrays), strict=True):
            np.testing.assert_array_equal(report.outputs[tensor.op.name], wanted)
        counts["ran"] += 1
        counts["barriers"] += barriers(program)

    run()
    assert counts["ran"] >= sampling.matrix_examples(100) // 2
    assert counts["barriers"]
