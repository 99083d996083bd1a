"""Sums of steps that have scales of their own, in kernels of warpgroups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.programs import warpgroups as w
from tests.programs.kernels import changed
from tvm_layout_ext import ScheduleError, te
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.ir import ops
from tvm_layout_ext.ir.queries import nodes_in
from tvm_layout_ext.schedules.gemm_scaled import OPERATOR
from tvm_layout_ext.transform.hopper import plan
from tvm_layout_ext.tune.space.space import Space

SHAPE = (136, 136, 256)


def scheduled(shape: tuple[int, int, int], **wishes: Any) -> s_tir.Schedule:
    config = {"tile": "128x128", "cluster": 1, "group": 2} | wishes
    with w.SM90A:
        return OPERATOR.schedule(OPERATOR.compute(shape, "float8_e4m3fn"), config)


@pytest.mark.parametrize(
    ("shape", "wishes"),
    [
        (SHAPE, {}),
        ((264, 40, 256), {"tile": "256x128"}),
        ((200, 40, 128), {"tile": "128x64", "cluster": 2}),
    ],
)
def test_scaled_sums_are_those_of_numpy(
    shape: tuple[int, int, int], wishes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MULTIPROCESSORS", 2)
    arrays = OPERATOR.inputs(shape, "float8_e4m3fn", np.random.default_rng(1))
    report = tlx.simulate(scheduled(shape, **wishes), *arrays, target=w.SM90A, progress=False)
    assert report.hazards == []
    (found,) = report.outputs.values()
    want, allowed = OPERATOR.reference(*arrays), OPERATOR.tolerance(shape, "float8_e4m3fn")
    off = np.abs(found.astype(np.float64) - want.astype(np.float64))
    assert (off <= allowed.atol / 8 + allowed.rtol * np.abs(want.astype(np.float64))).all()


def test_a_scale_of_many_columns_is_loaded_once_a_step() -> None:
    """Two rows of a thread and 128 columns that share theirs, of the first and of the next step."""
    (kernel,) = tlx.device_program(scheduled(SHAPE), target=w.SM90A).kernels.values()
    loads = [one for one in nodes_in(kernel.body, tvm.ir.TensorLoad) if "scales" in one.source.name]
    names = sorted({one.source.name for one in loads})
    assert (names, len(loads)) == (["a_scales", "b_scales"], 2 * 3)


def scaled_by(scales: Any, *more: Any) -> s_tir.Schedule:
    """A product of 64 x 64 x 384 with ``scales(a_scales, b_scales, i, j, s)`` for its own."""
    A, B, a_scales, b_scales, C = OPERATOR.compute((64, 64, 384), "float8_e4m3fn")
    (sums,) = (one for one in C.op.input_tensors if one.op.name == "sums")
    (product,) = (one for one in sums.op.input_tensors if one.op.name == "product")
    s = te.reduce_axis((0, 3), name="s")

    def term(i: Any, j: Any) -> Any:
        return product[s, i, j] * scales(a_scales, b_scales, i, j, s)

    found = te.compute((64, 64), lambda i, j: te.sum(term(i, j), axis=s), name="sums")
    result = te.compute((64, 64), lambda i, j: found[i, j].astype("bfloat16"), name="C")
    config = {"tile": "128x64", "cluster": 1, "group": 2}
    with w.SM90A:
        return OPERATOR.schedule([A, B, a_scales, b_scales, *more, result], config)


def require_scaled(sch: s_tir.Schedule, of_a: Any, of_b: Any, *more: Any) -> None:
    """Hold it against NumPy, whose scales are picked of those given."""
    a, b, *given = OPERATOR.inputs((64, 64, 384), "float8_e4m3fn", np.random.default_rng(1))
    report = tlx.simulate(sch, a, b, *given, *more, target=w.SM90A, progress=False)
    assert report.hazards == []
    (found,) = report.outputs.values()
    want = OPERATOR.reference(a, b, given[0][:, of_a], given[1][:, of_b])
    np.testing.assert_allclose(found.astype(float), want.astype(float), rtol=2**-7, atol=0.5)


def test_scales_that_lie_backwards_end_with_the_first() -> None:
    """Behind the last step no scales are, and before the first one none either."""
    sch = scaled_by(lambda a, b, i, j, s: a[i, 2 - s] * b[j // 128, 2 - s])
    require_scaled(sch, [2, 1, 0], [2, 1, 0])


def test_scales_that_are_found_by_other_numbers_are_those_of_their_step() -> None:
    """The number comes a step ahead with the scale that is read through it."""
    at = te.placeholder((3,), "int32", name="at")
    sch = scaled_by(lambda a, b, i, j, s: a[i, at[s]] * b[j // 128, s], at)
    require_scaled(sch, [1, 2, 0], [0, 1, 2], np.array([1, 2, 0], np.int32))


def test_totals_beside_sums_must_fit_the_registers() -> None:
    with pytest.raises(ScheduleError, match="each thread has registers for 192"):
        tlx.device_program(scheduled(SHAPE, tile="256x256"), target=w.SM90A)


def test_a_batch_inside_of_tiles_must_be_added_up() -> None:
    A, B = (te.placeholder((n, 256), "float8_e4m3fn", name=x) for n, x in ((128, "A"), (256, "B")))
    k = te.reduce_axis((0, 128), "k")
    product = te.compute(
        (2, 128, 256),
        lambda s, i, j: te.sum(
            A[i, s * 128 + k].astype("float32") * B[j, s * 128 + k].astype("float32"), axis=k
        ),
        name="product",
    )
    sch = s_tir.Schedule(te.create_prim_func([A, B, product]))
    with w.SM90A:
        tc = sch.use_tensor_core("product", "wgmma", multiples=(128, 128, 128))
    m, warpgroup, piece = sch.split(tc.m, [None, 2, 1])
    sch.reorder(m, tc.n, warpgroup, *tc.batch, tc.k, piece)
    sch.rasterize(m, tc.n, 2)
    for operand in (tc.a, tc.b):
        sch.compute_at(operand, tc.batch[0])
    sch.specialize_warps(warpgroup)
    sch.reverse_compute_at(tc.result, tc.n)
    with pytest.raises(
        ScheduleError, match=r"nothing adds its sums up; bind loop s to blockIdx\.z"
    ):
        tlx.device_program(sch, target=w.SM90A)


def test_sums_that_are_scaled_before_they_are_there_are_found() -> None:
    given = w.program(scheduled((128, 64, 256), tile="128x64"))
    broken = changed(given, ops.PTX_WGMMA_WAIT_GROUP, lambda call: None)
    arrays = OPERATOR.inputs((128, 64, 256), "float8_e4m3fn", np.random.default_rng(1))
    report = tlx.simulate(broken, *arrays, None, progress=False)
    assert any("sums of a wgmma that was not waited for" in str(one) for one in report.hazards)


@pytest.mark.parametrize(
    ("shape", "tile"),
    [((4096, 4096, 4096), "256x128"), ((700, 4096, 4096), "256x128"), ((64, 64, 4096), "128x64")],
)
def test_the_tile_by_default(shape: tuple[int, int, int], tile: str) -> None:
    config = Space(OPERATOR, shape, "float8_e4m3fn", architecture("sm_90a")).default()
    assert (config["tile"], config["cluster"]) == (tile, 1)
