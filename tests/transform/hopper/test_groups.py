"""Rows sorted by group, whose tiles the GPU counts."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.programs import warpgroups as w
from tvm_layout_ext import ScheduleError, te
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.schedules.grouped_gemm import OPERATOR
from tvm_layout_ext.transform.hopper import plan

Shape = tuple[int, int, int, int]


def scheduled(shape: Shape, dtype: str = "float16", tile: str = "128x128") -> s_tir.Schedule:
    with w.SM90A:
        return OPERATOR.schedule(OPERATOR.compute(shape, dtype), {"tile": tile, "group": 2})


def drawn(shape: Shape, dtype: str, offsets: list[int]) -> list[np.ndarray]:
    a, b, _ = OPERATOR.inputs(shape, dtype, np.random.default_rng(sum(shape)))
    return [a, b, np.array(offsets, "int32")]


@pytest.mark.parametrize(
    ("shape", "offsets", "tile"),
    [
        # Whole tiles between others, in one block; an empty group, columns beyond the edge.
        ((3, 300, 136, 136), [0, 70, 70, 300], "128x128"),
        ((4, 256, 128, 64), [0, 0, 128, 256, 256], "128x128"),
        ((1, 130, 64, 64), [0, 130], "128x64"),
        ((3, 9, 64, 72), [0, 1, 1, 9], "128x192"),
        # Rows of C that TMA cannot store.
        ((2, 140, 37, 64), [0, 3, 140], "128x64"),
    ],
)
def test_products_of_groups_are_those_of_numpy(
    shape: Shape, offsets: list[int], tile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MULTIPROCESSORS", 1)
    arrays = drawn(shape, "float16", offsets)
    sch = scheduled(shape, tile=tile)
    report = tlx.simulate(sch, *arrays, target=w.SM90A, progress=False)
    assert report.hazards == []
    (found,) = report.outputs.values()
    allowed = OPERATOR.tolerance(shape, "float16")
    np.testing.assert_allclose(
        found.astype(float), OPERATOR.reference(*arrays).astype(float), allowed.rtol, allowed.atol
    )


def test_one_program_takes_any_sizes_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MULTIPROCESSORS", 3)
    shape = (3, 140, 64, 64)
    given = w.program(scheduled(shape, "bfloat16", "128x64"))
    for offsets in ([0, 0, 0, 140], [0, 64, 128, 140]):
        arrays = drawn(shape, "bfloat16", offsets)
        report = tlx.simulate(given, *arrays, None, progress=False)
        assert report.hazards == []
        (found,) = report.outputs.values()
        assert found.dtype == ml_dtypes.bfloat16
        want = OPERATOR.reference(*arrays).astype(float)
        np.testing.assert_allclose(found.astype(float), want, 2**-6, 1e-3)


def _summed(result: str, cluster: int = 1, groups: int = 2) -> s_tir.Schedule:
    A, B = (
        te.placeholder(s, "float16", name=x) for x, s in (("A", (256, 64)), ("B", (2, 256, 64)))
    )
    offsets = te.placeholder((groups + 1,), "int32", name="offsets")
    k, s = te.reduce_axis((0, 64), "k"), te.reduce_axis((0, 2), "s")

    def row(g: Any, i: Any, k: Any) -> Any:
        inside = te.all(offsets[g] <= i, i < offsets[g + 1])
        return te.if_then_else(inside, A[i, k], te.const(0, "float16"))

    own = te.compute((2, 256, 64), row, name="own")
    product = te.compute(
        (2, 256, 256),
        lambda g, i, j: te.sum(own[g, i, k].astype("float32") * B[g, j, k].astype("float32"), k),
        name="product",
    )
    values = {
        "sum": lambda i, j: te.sum(product[s, i, j], axis=s),
        "more": lambda i, j: te.sum(product[s, i, j] + 1.0, axis=s),
    }
    C = te.compute((256, 256), values[result], name="C")
    sch = s_tir.Schedule(te.create_prim_func([A, B, offsets, C]))
    with w.SM90A:
        tc = sch.use_tensor_core("product", "wgmma", multiples=(128, 128, 64))
    m, warpgroup, piece = sch.split(tc.m, [None, 2, 1])
    sch.reorder(m, tc.n, warpgroup, tc.k, piece)
    sch.rasterize(m, tc.n, 2)
    sch.cluster(m, cluster, multicast=True)
    sch.compute_inline("own")
    for operand in (tc.a, tc.b):
        sch.compute_at(operand, tc.k)
    sch.specialize_warps(warpgroup)
    sch.compute_inline(tc.result)
    sch.reverse_compute_at("C", tc.n)
    return sch


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        (("more",), "must add them up, cast or as they are, over all groups"),
        (("sum", 2), "counted on the GPU; only clusters of 1 are legal"),
        (("sum", 1, 3), r"batches of \[2\] around rows of 3 groups"),
    ],
)
def test_what_groups_cannot_have_is_refused(wishes: Any, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        w.program(_summed(*wishes))


def test_groups_need_wgmma_and_rows_that_tma_copies() -> None:
    default = OPERATOR.default_config()
    refused = OPERATOR.check((2, 8, 8, 8), "float16", default, architecture("sm_80"))
    assert refused is not None
    assert "sm_80 has no wgmma; sm_90a has" in refused.text
    refused = OPERATOR.check((2, 8, 8, 12), "float16", default, architecture("sm_90a"))
    assert refused is not None
    assert "24 bytes apart; TMA needs a multiple of 16" in refused.text
