from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import s_tir
from tvm.script import tirx as T

import tvm_layout_ext as tlx
from tests.programs.running import gives
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.simulate import simulate


@T.prim_func(s_tir=True)
def reversed_rows(a: T.handle, b: T.handle, n: T.int32) -> None:
    A = T.match_buffer(a, (n, 4), "float32")
    B = T.match_buffer(b, (n, 4), "float32")
    for i, j in T.grid(n, 4):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[n - 1 - vi, vj]


def cached(scope: str, size: int | None = None) -> s_tir.Schedule:
    """The rows that a block reads, backwards from an end that is known or not."""
    func = (
        reversed_rows if size is None else reversed_rows.specialize({reversed_rows.params[2]: size})
    )
    sch = s_tir.Schedule(func)
    block = sch.get_sblock("B")
    rows, lane = sch.split(sch.get_loops(block)[0], [None, 128])
    sch.bind(rows, "blockIdx.x")
    sch.bind(lane, "threadIdx.x")
    sch.compute_at(sch.cache_read(block, 0, scope), rows)
    return sch


def _simulated(sch: Any) -> Any:
    return simulate(sch, np.zeros((30, 4), "float32"), None, 30)


@pytest.mark.parametrize("scope", ["shared", "shared.dyn", "local"])
@pytest.mark.parametrize("what", [tlx.lower, tlx.build, _simulated])
@pytest.mark.parametrize("annotated", [False, True])
def test_a_tile_without_a_bound_is_refused_in_one_sentence(
    scope: str, what: Callable[[Any], Any], annotated: bool
) -> None:
    """Its shape was (-4,): "negative dimensions", "bad optional access", or nothing was said."""
    sch = cached(scope)
    if annotated:
        sch.annotate(sch.get_sblock("B"), "layout_ext.test", 1)
    with pytest.raises(ScheduleError, match=r"^TVM finds no bound of dim 0 of buffer A_\S+ in "):
        what(sch)


def test_the_same_tile_of_a_known_size_passes() -> None:
    a = np.arange(400, dtype="float32").reshape(100, 4)
    gives(cached("shared", 100), a, None, B=a[::-1])


def test_functions_for_other_targets_are_left_alone() -> None:
    """What a CPU gets from its heap is its own business."""
    sch = s_tir.Schedule(reversed_rows)
    block = sch.get_sblock("B")
    sch.compute_at(sch.cache_read(block, 0, "local"), sch.get_loops(block)[0])
    assert "A_local" in tlx.lower(sch, target="llvm").script()
