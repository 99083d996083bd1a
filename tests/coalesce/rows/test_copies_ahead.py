"""What is kept in shared memory, and weights that all rows share, are copied before their use."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.coalesce.rows.test_kernels import drawn, shares, softmax
from tests.programs.kernels import changed
from tvm_layout_ext import te
from tvm_layout_ext.build import device_program
from tvm_layout_ext.coalesce.rows.chain import RowChain, read_chain
from tvm_layout_ext.coalesce.rows.plan import RowPlan, ranked_plans
from tvm_layout_ext.coalesce.rows.traffic import RowTraffic
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.ir import ops
from tvm_layout_ext.ir.annotations import FUSE_ROWS
from tvm_layout_ext.ir.queries import blocks_in
from tvm_layout_ext.tune.space.operator import find_operator

SHAPE = (3, 8192)


def chain_of(name: str, shape: tuple[int, int], dtype: str) -> tuple[Any, list[str], RowChain]:
    func = te.create_prim_func(find_operator(name).compute(shape, dtype))
    func = func.with_attr("global_symbol", "main")
    names = [str(block.name_hint) for block in blocks_in(func.body.block.body)]
    return func, names, read_chain(func, names)


def copies_of(sch: s_tir.Schedule) -> list[str]:
    """Buffers that are copied asynchronously, in turn."""
    return re.findall(r"T\.ptx\.cp\(T\.cuda.*, (\w+)_shared,.*\"async\"", tlx.lower(sch).script())


def planned(name: str, dtype: str, plan: RowPlan, shape: tuple[int, int] = SHAPE) -> Any:
    func, names, _ = chain_of(name, shape, dtype)
    sch = s_tir.Schedule(func)
    sch.annotate(sch.get_sblock(names[-1]), FUSE_ROWS, [*plan.numbers(), *names])
    return sch


@pytest.mark.parametrize("cluster", [1, 4])
def test_a_row_in_shared_memory_comes_by_asynchronous_copies(cluster: int) -> None:
    sch = softmax(2, 8192, keep="shared", cluster=cluster)
    assert copies_of(sch) == ["X"]
    x = drawn(2, 8192)
    report = tlx.simulate(sch, x, None, progress=False)
    assert not report.hazards
    assert sum(access.bank_conflicts for access in report.accesses) == 0
    assert sum(a.sectors for a in report.accesses if a.buffer == "X") == x.nbytes // 32
    np.testing.assert_allclose(report.outputs["compute"], shares(x), rtol=1e-5)


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("length", [8192, 8200])
def test_weights_come_ahead_of_their_use(name: str, dtype: str, cluster: int, length: int) -> None:
    shape = (3, length)
    _, _, chain = chain_of(name, shape, dtype)
    vector = RowTraffic(chain).vector
    plan = RowPlan(128, 1, vector, 2, 0, 0, 1, cluster)
    plan = replace(plan, shared=plan.steps(chain) - 2, ahead=2)
    sch = planned(name, dtype, plan, shape)
    operator = find_operator(name)
    inputs = operator.inputs(shape, dtype, np.random.default_rng(0))
    report = tlx.simulate(sch, *inputs, None, progress=False)
    assert not report.hazards
    np.testing.assert_allclose(
        report.outputs["B"], operator.reference(*inputs), rtol=2e-3, atol=2e-3
    )
    assert copies_of(sch) == ["A", "weights", "biases"][: 3 if name == "layer_norm" else 2]


def test_a_copy_that_nothing_waits_for_is_told() -> None:
    given = device_program(softmax(2, 8192, keep="shared", cluster=2))
    given = changed(given, ops.PTX_CP_ASYNC_WAIT_GROUP, lambda call: te.const(0, "int32"), 0)
    report = tlx.simulate(given, drawn(2, 8192), None, progress=False)
    assert report.hazards


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
def test_gpus_without_such_copies_get_none(arch: str) -> None:
    _, _, chain = chain_of("rms_norm", (64, 32768), "float16")
    plans = ranked_plans(RowTraffic(chain), architecture(arch))
    assert {plan.ahead for plan in plans} == {"sm_75": {0}, "sm_80": {0, 1}, "sm_90a": {0, 1, 2}}[
        arch
    ]
    assert all(plan.ahead for plan in plans if plan.shared) == (arch != "sm_75")


def test_rows_that_lie_askew_are_not_copied_so() -> None:
    x = te.placeholder((64, 9001), "float16", "X")
    k = te.reduce_axis((0, 9001), "k")
    total = te.compute((64,), lambda i: te.sum(x[i, k].astype("float32"), k), "total")
    func = te.create_prim_func([x, total])
    traffic = RowTraffic(read_chain(func, ["total"]))
    assert all(not plan.ahead for plan in ranked_plans(traffic, architecture("sm_90a")))
