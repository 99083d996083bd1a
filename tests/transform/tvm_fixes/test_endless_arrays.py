"""Arrays on the chip whose buffers have symbolic sizes."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import s_tir
from tvm.script import tirx as T

import tvm_layout_ext as tlx
from tests.programs.running import gives
from tvm_layout_ext.errors import ScheduleError


@T.prim_func(s_tir=True)
def neighbours(a: T.handle, b: T.handle, t: T.int64) -> None:
    A = T.match_buffer(a, (t * T.int64(128),), "float32")
    B = T.match_buffer(b, (t * T.int64(128),), "float32")
    P = T.sblock_alloc_buffer((t * T.int64(128) + T.int64(2),), "float32")
    for i in T.serial(t * T.int64(128) + T.int64(2)):
        with T.sblock("P"):
            v = T.axis.spatial(t * T.int64(128) + T.int64(2), i)
            inside = T.meta_var(v > T.int64(0) and v <= t * T.int64(128))
            P[v] = T.if_then_else(inside, A[v - T.int64(1)], T.float32(0))
    for i in T.serial(t * T.int64(128)):
        with T.sblock("B"):
            v = T.axis.spatial(t * T.int64(128), i)
            B[v] = P[v] + P[v + T.int64(1)] + P[v + T.int64(2)]


def cached(scope: str, annotated: bool = True) -> s_tir.Schedule:
    """Sums of three neighbours, of a part of the padded row that a thread or a block keeps."""
    sch = s_tir.Schedule(neighbours)
    block = sch.get_sblock("B")
    grid, thread, _ = sch.split(sch.get_loops(block)[0], [None, 32, 4])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.compute_at(sch.get_sblock("P"), thread if scope == "local" else grid)
    sch.set_scope("P", 0, scope)
    if scope != "local":
        _, lane = sch.split(sch.get_loops(sch.get_sblock("P"))[-1], [None, 32])
        sch.bind(lane, "threadIdx.x")
    if annotated:
        sch.annotate(block, "layout_ext.test", 1)
    return sch


@pytest.mark.parametrize("scope", ["local", "shared"])
@pytest.mark.parametrize("tiles", [1, 3])
def test_a_part_of_a_row_of_any_length_is_kept(scope: str, tiles: int) -> None:
    a = np.arange(tiles * 128, dtype="float32")
    padded = np.pad(a, 1)
    gives(cached(scope), a, None, tiles, B=padded[:-2] + a + padded[2:])


def test_its_size_is_a_number() -> None:
    text = tlx.lower(cached("local")).script()
    assert "alloc_local((6,)" in text


def test_functions_without_the_mark_stay_as_tvm_has_them() -> None:
    assert "T.min(" in tlx.lower(cached("local", annotated=False)).script()


def test_what_is_kept_whole_is_refused() -> None:
    sch = s_tir.Schedule(neighbours)
    sch.set_scope("P", 0, "shared")
    for name in ("P", "B"):
        (loop,) = sch.get_loops(sch.get_sblock(name))
        _, lane = sch.split(loop, [None, 32])
        sch.bind(lane, "threadIdx.x")
    sch.annotate(sch.get_sblock("B"), "layout_ext.test", 1)
    with pytest.raises(
        ScheduleError, match=r"P_shared in shared memory .* must have a constant size"
    ):
        tlx.build(sch, target=tlx.cuda_target("sm_90a"))
