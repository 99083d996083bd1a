"""Launches and stores: clusters, eviction policies, reductions over threads, other primitives."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.golden.programs.program import Program
from tests.programs import chains, kernels
from tests.programs.barriers import marked
from tests.schedule import test_thread_reductions
from tests.schedule.primitives import test_cluster, test_eviction_policy

__all__ = ["programs"]


def _kept(policy: str, dtype: str, vector: int) -> Any:
    sch = test_eviction_policy.by_threads(dtype, vector)
    sch.eviction_policy("B", policy)
    return sch


def _sums(*arguments: Any) -> Any:
    s, tensors = test_thread_reductions._sums(*arguments)
    return marked(s.to_module(tensors))


def _each_stage(problem: Any) -> Any:
    """Every stage of a chain by ``auto_coalesce``, one kernel each."""
    from tvm import s_tir, te

    sch = s_tir.Schedule(te.create_prim_func(problem.args))
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        sch.auto_coalesce(block)
    return sch


def programs() -> Iterator[Program]:
    for x, y in ((2, 1), (4, 2), (1, 4)):
        yield Program(f"launch/cluster-{x}x{y}", partial(test_cluster.clustered, x, y), 1)
    for policy in ("evict_last", "evict_first"):
        for dtype, vector in (("float32", 4), ("float16", 8), ("int8", 4)):
            made = partial(_kept, policy, dtype, vector)
            yield Program(f"store/{policy}-{dtype}-{vector}", made, int(dtype == "float16"))
    for rows in (2, 3):
        for rfactor in (False, True):
            name = f"threads/sums-{rows}{'-rfactor' if rfactor else ''}"
            yield Program(name, partial(_sums, 6, rows, rfactor), 1)
    problems = {
        "elementwise": chains.elementwise(24, 40),
        "reduction": chains.reduction(24, 40),
        "matmul": chains.matmul(24, 16, 40),
        "stencil": chains.stencil(24, 40),
    }
    for name, problem in problems.items():
        yield Program(f"chain/{name}", partial(_each_stage, problem), 1)
    for dtype in ("float32", "float16"):
        made = partial(_marked_transpose, dtype)
        yield Program(f"barriers/transpose-{dtype}", made, 1)
    yield Program("barriers/row-sum", partial(_marked_row_sum, "float32"), 1)


def _marked_transpose(dtype: str) -> Any:
    return marked(kernels.transpose(64, dtype, pad=1))


def _marked_row_sum(dtype: str) -> Any:
    return marked(kernels.row_sum(64, 128, dtype=dtype))
