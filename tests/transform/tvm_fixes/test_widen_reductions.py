"""Threads reduce values of 8 and 16 bits as words, which they exchange by shuffles."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tvm import s_tir, te, tirx

from tests.programs.emitted import cuda_text
from tests.transform.bytes.test_pack_argmax import expected, extreme, few, require
from tvm_layout_ext.simulate import simulate

KINDS = {"sum": (te.sum, np.sum), "max": (te.max, np.max), "min": (te.min, np.min)}


def rows(kind: str, dtype: str, shape: tuple[int, int]) -> tirx.PrimFunc:
    a = te.placeholder(shape, dtype, "A")
    k = te.reduce_axis((0, shape[1]), "k")
    out = te.compute(shape[:1], lambda i: KINDS[kind][0](a[i, k], axis=k), "B")
    return te.create_prim_func([a, out])


def along_rows(func: Any, lanes: int) -> s_tir.Schedule:
    sch = s_tir.Schedule(func)
    row, k = sch.get_loops("B")
    _, lane = sch.split(k, [None, lanes])
    sch.bind(row, "blockIdx.x")
    sch.bind(lane, "threadIdx.x")
    sch.annotate(row, "layout_ext.min_blocks_per_sm", 1)
    return sch


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lanes", [8, 32, 128])
def test_results_are_those_of_the_narrow_type(kind: str, dtype: str, lanes: int) -> None:
    """Sums leave out what the type has no bits for, in each step and at the end."""
    sch = along_rows(rows(kind, dtype, (3, 1000)), lanes)
    text = cuda_text(sch)
    assert "= __shfl_down_sync" in text
    ends = np.iinfo(dtype)
    rng = np.random.default_rng(0)
    value = rng.integers(ends.min, ends.max, (3, 1000), dtype, endpoint=True)
    report = simulate(sch, value, None)
    assert not report.hazards
    wanted = KINDS[kind][1](value, axis=1, **{"dtype": dtype} if kind == "sum" else {})
    require(report, [wanted])


def test_bfloat16_is_rounded_in_each_step() -> None:
    sch = along_rows(rows("sum", "bfloat16", (1, 32)), 32)
    assert "= __shfl_down_sync" in cuda_text(sch)
    value = np.full((1, 32), 1, ml_dtypes.bfloat16)
    value[0, 0] = 256  # Its sum with 1 is 256, and with 2, 4, 8 and 16 exact.
    (out,) = simulate(sch, value, None).outputs.values()
    assert out == [286]


def test_an_index_goes_with_its_value() -> None:
    sch = along_rows(extreme((5, 200), 1, "int8"), 32)
    assert cuda_text(sch).count("= __shfl_down_sync") == 2 * 5
    value = few((5, 200), "int8", 1)
    require(simulate(sch, value, None, None), expected(value, 1, True, True))
