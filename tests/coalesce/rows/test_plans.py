"""The model of plans, held against times of an H200, and what plans say of themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tvm_layout_ext import te
from tvm_layout_ext.coalesce.rows.chain import read_chain
from tvm_layout_ext.coalesce.rows.emit import LARGE_BLOCK
from tvm_layout_ext.coalesce.rows.plan import RowPlan, modelled_time, ranked_plans
from tvm_layout_ext.coalesce.rows.traffic import RowTraffic
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.ir.queries import blocks_in
from tvm_layout_ext.tune.space.operator import find_operator

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "h200_rows_clusters.json"
ROWS = json.loads(RESULTS.read_text())["rows"]
#: How much slower the chosen plan may be than the fastest that was timed.
_SLOWER = 1.13


def _kernel(plan: RowPlan) -> tuple[int, ...]:
    """What of a plan is in the kernel: small blocks do not bound their registers."""
    is_large = plan.threads >= LARGE_BLOCK
    return (*plan.numbers()[: 7 if is_large else 6], plan.cluster, plan.ahead)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_the_chosen_plan_is_near_the_fastest(row: dict[str, Any]) -> None:
    name, dtype, shape = row["name"].split()
    size = tuple(map(int, shape.split("x")))
    func = te.create_prim_func(find_operator(name).compute(size, dtype))
    names = [str(block.name_hint) for block in blocks_in(func.body.block.body)]
    chain = read_chain(func, names)
    seconds = {_kernel(RowPlan(*one["plan"])): one["seconds"] for one in row["plans"]}
    traffic = RowTraffic(chain)
    ranked = ranked_plans(traffic, architecture("sm_90a"))
    proposed = [plan for plan in ranked if _kernel(plan) in seconds]
    assert len(proposed) >= 5
    times = [modelled_time(traffic, plan) for plan in proposed]
    assert times == sorted(times)
    fastest = min(seconds[_kernel(plan)] for plan in proposed)
    assert seconds[_kernel(proposed[0])] < _SLOWER * fastest


@pytest.mark.parametrize("kind", ["rms_norm", "layer_norm", "softmax"])
def test_a_single_row_is_loaded_once(kind: str) -> None:
    """Nothing tells its elements from what many rows share: both were loaded in each sweep."""
    func = te.create_prim_func(find_operator(kind).compute((1, 4096), "float16"))
    chain = read_chain(func, [str(block.name_hint) for block in blocks_in(func.body.block.body)])
    plan = ranked_plans(RowTraffic(chain), architecture("sm_90a"))[0]
    assert all(load.by_row for load in chain.loads)
    assert (plan.registers, plan.lanes) == (plan.steps(chain), 512)
