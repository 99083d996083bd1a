from __future__ import annotations

import numpy as np
import pytest
from tvm import s_tir
from tvm.script import tirx as T

import tvm_layout_ext as tlx
from tests.programs.running import gives
from tvm_layout_ext.errors import ScheduleError


@T.prim_func(s_tir=True)
def fewer(a: T.handle, b: T.handle, n: T.int64) -> None:
    A = T.match_buffer(a, (T.int64(4), n - T.int64(1), n - T.int64(1)), "float32")
    B = T.match_buffer(b, (T.int64(4), n - T.int64(1)), "float32")
    for i, j, k in T.grid(T.int64(4), n - T.int64(1), n - T.int64(1)):
        with T.sblock("B"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                B[vi, vj] = T.float32(0)
            B[vi, vj] = B[vi, vj] + A[vi, vj, vk]


def row_sums(size: int | None = None) -> s_tir.Schedule:
    """Sums along rows of one element fewer than a size, by threads of a warp."""
    func = fewer if size is None else fewer.specialize({fewer.params[2]: size})
    sch = s_tir.Schedule(func)
    block = sch.get_sblock("B")
    rows = sch.fuse(*sch.get_loops(block)[:2])
    grid, row = sch.split(rows, [None, 4])
    _, lane = sch.split(sch.get_loops(block)[-1], [None, 32])
    for loop, tag in ((grid, "blockIdx.x"), (row, "threadIdx.y"), (lane, "threadIdx.x")):
        sch.bind(loop, tag)
    return sch


@pytest.mark.parametrize("annotated", [False, True])
def test_threads_that_would_update_one_result_are_refused(annotated: bool) -> None:
    sch = row_sums()
    if annotated:
        sch.annotate(sch.get_sblock("B"), "layout_ext.test", 1)
    with pytest.raises(ScheduleError, match=r"^Stage B reduces over threadIdx.x at \["):
        tlx.lower(sch)


def test_the_same_rows_of_a_known_size_pass() -> None:
    a = np.arange(4 * 9, dtype="float32")[:, None] + np.ones((36, 9), "float32")
    a = a.reshape(4, 9, 9)
    gives(row_sums(10), a, B=a.sum(-1))
