"""Convolutions by warpgroups: what they compute, the boxes they copy, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import s_tir, tirx

import tvm_layout_ext as tlx
from tests.programs import warpgroups as w
from tests.programs.emitted import cuda_text, require_no_spills
from tvm_layout_ext import NotModelled, ScheduleError, SimulationError, decisions, te
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.simulate.memory.memory import Memory
from tvm_layout_ext.simulate.warpgroups.tensor_map import TensorMap
from tvm_layout_ext.transform.hopper.windows import best_box
from tvm_layout_ext.tune.space.operator import find_operator
from tvm_layout_ext.tune.space.space import Space

Shape = tuple[int, ...]


def convolution(
    image: Shape,
    weight: Shape,
    stride: int = 1,
    pad: int = 0,
    dilation: int = 1,
    dtype: str = "float16",
    turned: bool = False,
) -> s_tir.Schedule:
    """Block ``conv`` over a padded image; ``turned``: weights lie RSCK."""
    n, h, width, c = image
    k, r, s, _ = weight
    size = [(e + 2 * pad - dilation * (v - 1) - 1) // stride + 1 for e, v in ((h, r), (width, s))]
    A = te.placeholder(image, dtype, name="A")
    B = te.placeholder((r, s, c, k) if turned else weight, dtype, name="B")

    def padded(i: Any, y: Any, x: Any, z: Any) -> Any:
        inside = tirx.all(pad <= y, y < h + pad, pad <= x, x < width + pad)
        return te.if_then_else(inside, A[i, y - pad, x - pad, z], tirx.const(0, dtype))

    P = te.compute((n, h + 2 * pad, width + 2 * pad, c), padded, name="pad") if pad else A
    axes = [
        te.reduce_axis((0, e), name=x) for e, x in zip((r, s, c), ("rr", "rs", "rc"), strict=True)
    ]

    def term(i: Any, y: Any, x: Any, f: Any) -> Any:
        rr, rs, rc = axes
        left = P[i, y * stride + rr * dilation, x * stride + rs * dilation, rc]
        right = B[rr, rs, rc, f] if turned else B[f, rr, rs, rc]
        return te.sum(left.astype("float32") * right.astype("float32"), axis=axes)

    sums = te.compute((n, *size, k), term, name="conv")
    out = te.compute((n, *size, k), lambda *i: sums[i].astype(dtype), name="C")
    return s_tir.Schedule(te.create_prim_func([A, B, out]).with_attr("global_symbol", "main"))


def expected(a: Any, b: Any, stride: int, pad: int, dilation: int) -> Any:
    wide = np.pad(a.astype("float64"), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    _, r, s, _ = b.shape
    h, width = (n - dilation * (v - 1) for n, v in zip(wide.shape[1:3], (r, s), strict=True))
    found: Any = 0
    for y in range(r):
        for x in range(s):
            part = wide[:, y * dilation :, x * dilation :][:, :h:stride, :width:stride]
            found = found + part @ b[:, y, x].T.astype("float64")
    return found


def compared(
    sch: s_tir.Schedule,
    image: Shape,
    weight: Shape,
    *steps: int,
    dtype: str = "float16",
    turned: bool = False,
    target: Any = w.SM90A,
) -> None:
    """Fail unless a schedule gives the convolution, by its stride, pad and dilation."""
    kind, rng = w.TYPES[dtype], np.random.default_rng(0)
    a, b = (rng.standard_normal(s, np.float32).astype(kind) for s in (image, weight))
    given = b.transpose(1, 2, 3, 0).copy() if turned else b
    report = tlx.simulate(sch, a, given, target=target, progress=False)
    assert report.hazards == []
    want, found = expected(a, b, *steps), next(iter(report.outputs.values()))
    eps = 2.0**-8 if dtype == "bfloat16" else 2.0**-11
    assert (np.abs(found.astype("float64") - want) <= eps * np.abs(want) + 1e-3).all()


@pytest.mark.parametrize(
    ("image", "weight", "tile", "slices", "more"),
    [
        ((2, 8, 8, 64), (64, 3, 3, 64), (128, 64), 1, {"pad": 1}),
        ((1, 8, 8, 128), (64, 3, 3, 128), (64, 64), 1, {"pad": 1}),
        ((3, 7, 9, 64), (72, 3, 3, 64), (256, 64), 1, {"pad": 1}),
        ((2, 9, 7, 64), (64, 3, 3, 64), (128, 64), 1, {"pad": 1, "stride": 2}),
        ((2, 10, 11, 64), (64, 1, 1, 64), (128, 64), 1, {"stride": 3}),
        ((2, 9, 9, 64), (64, 3, 3, 64), (128, 64), 1, {"pad": 2, "dilation": 2}),
        ((2, 9, 9, 40), (40, 3, 5, 40), (128, 64), 1, {"pad": 3, "stride": 2, "dilation": 2}),
        ((5, 5, 6, 72), (136, 2, 3, 72), (128, 128), 1, {"dtype": "bfloat16"}),
        ((2, 8, 6, 64), (72, 3, 3, 64), (128, 64), 1, {"pad": 1, "turned": True}),
        # Steps of two runs of 32 channels: nine and fifteen runs, and of 96 channels three a place.
        ((2, 8, 8, 32), (64, 3, 3, 32), (128, 64), 1, {"pad": 1}),
        ((3, 7, 9, 16), (72, 3, 5, 16), (256, 64), 1, {"pad": 1, "dtype": "bfloat16"}),
        ((2, 9, 7, 96), (64, 2, 3, 96), (128, 64), 1, {"pad": 1, "stride": 2}),
        ((1, 9, 9, 96), (40, 2, 3, 96), (64, 64), 3, {"pad": 2, "dilation": 2}),
        ((2, 8, 6, 32), (72, 3, 3, 32), (128, 64), 1, {"pad": 1, "turned": True}),
        ((1, 8, 8, 32), (24, 3, 3, 32), (64, 24), 1, {"pad": 1}),
        # Blocks of a cluster share the steps of a window.
        ((2, 8, 8, 128), (64, 3, 3, 128), (64, 64), 3, {"pad": 1}),
        ((2, 8, 8, 128), (64, 3, 3, 128), (128, 64), 2, {"pad": 1}),
        ((3, 9, 7, 72), (136, 3, 3, 72), (128, 128), 3, {"pad": 1, "stride": 2}),
        ((1, 9, 7, 256), (64, 1, 1, 256), (64, 64), 4, {"stride": 2}),
        ((2, 8, 6, 64), (72, 3, 3, 64), (128, 64), 3, {"pad": 1, "turned": True}),
    ],
)
def test_windows_of_every_kind(
    image: Shape, weight: Shape, tile: tuple[int, int], slices: int, more: dict[str, Any]
) -> None:
    sch = convolution(image, weight, **more)
    sch = w.schedule(sch, tile, consumers=min(2, tile[0] // 64), block="conv", slices=slices)
    steps = [more.get(name, least) for name, least in (("stride", 1), ("pad", 0), ("dilation", 1))]
    kind = {name: more[name] for name in ("dtype", "turned") if name in more}
    with decisions.collect() as told:
        compared(sch, image, weight, *steps, **kind)
    shared = any(f"clusters of {slices} that share the steps" in str(one) for one in told)
    assert shared == (slices > 1)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_one_schedule_for_all_targets(arch: str) -> None:
    target = tlx.cuda_target(arch)
    sch = convolution((2, 9, 7, 64), (64, 3, 3, 64), 2, 1)
    with target:
        tc = sch.use_tensor_core("conv", tile=(64, 64, 64))
    sch.rasterize(tc.m, tc.n, 8)
    for operand in (tc.a, tc.b):
        sch.compute_at(operand, tc.k)
    sch.pipeline(tc.k, 3)
    sch.reverse_compute_at(tc.result, tc.n)
    sch.specialize_warps(tc.warpgroup)
    assert tc.instruction.startswith("wgmma" if arch == "sm_90a" else "mma.m16n8k16")
    compared(sch, (2, 9, 7, 64), (64, 3, 3, 64), 2, 1, 1, target=target)


def test_an_image_whose_columns_are_windows_goes_by_mma_sync() -> None:
    A, B = (
        te.placeholder(s, "float16", name=x)
        for s, x in (((64, 18, 66), "A"), ((64, 64, 3, 3), "B"))
    )
    c, r, s = (te.reduce_axis((0, e), name=x) for e, x in ((64, "c"), (3, "r"), (3, "s")))

    def term(f: Any, y: Any, x: Any) -> Any:
        left, right = B[f, c, r, s].astype("float32"), A[c, y + r, x + s].astype("float32")
        return te.sum(left * right, axis=[c, r, s])

    sch = s_tir.Schedule(te.create_prim_func([A, B, te.compute((64, 16, 64), term, name="conv")]))
    with w.SM90A:
        tc = sch.use_tensor_core("conv", tile=(64, 64, 64))
    assert tc.instruction.startswith("mma")
    note = sch.get(tc.product).annotations["layout_ext.not_warpgroups"]
    assert str(note).startswith("A is read by windows along the columns of the product")


def test_weights_by_more_numbers_than_their_places_are_refused() -> None:
    # Of the image both numbers of a place are one, so that no place of the weights follows from it.
    A, B = (
        te.placeholder(s, "float16", name=x)
        for s, x in (((2, 16, 24, 32), "A"), ((32, 3, 3, 32), "B"))
    )
    r, s, c = (te.reduce_axis((0, e), name=x) for e, x in ((3, "r"), (3, "s"), (32, "c")))

    def term(n: Any, y: Any, x: Any, f: Any) -> Any:
        pixel = A[n, y, x + r * 3 + s, c].astype("float32")
        return te.sum(pixel * B[f, r, s, c].astype("float32"), axis=[r, s, c])

    made = te.compute((2, 16, 16, 32), term, name="conv")
    sch = s_tir.Schedule(te.create_prim_func([A, B, made]))
    with pytest.raises(ScheduleError, match="Buffer B is read by other terms"):
        tlx.lower(w.schedule(sch, (128, 32), block="conv"), target=w.SM90A)


def test_infinite_weights_meet_no_zeros_of_another_place() -> None:
    # 40 channels are filled up to 64; what lies behind them in memory are the next place's weights.
    sch = w.schedule(
        convolution((1, 8, 8, 40), (64, 1, 2, 40)), (64, 64), consumers=1, block="conv"
    )
    a, b = np.zeros((1, 8, 8, 40), np.float16), np.zeros((64, 1, 2, 40), np.float16)
    a[..., 0, :], b[:, :, 1] = np.nan, 0
    report = tlx.simulate(sch, a, b, target=w.SM90A, progress=False)
    found = next(iter(report.outputs.values()))
    assert np.isnan(found[0, :, 0]).all()
    assert (found[0, :, 1:] == 0).all()


@pytest.mark.parametrize(
    ("extents", "steps", "box"),
    [
        ((64, 56, 56), (1, 1, 1), (1, 8, 8)),
        ((64, 28, 28), (1, 1, 1), (4, 4, 4)),
        ((64, 14, 14), (1, 2, 2), (16, 2, 2)),
        ((64, 7, 7), (1, 1, 1), (64, 1, 1)),
        ((1, 7, 7), (1, 1, 1), (1, 8, 8)),
        ((64, 64), (1, 8), (2, 32)),
        ((100,), (1,), (64,)),
    ],
)
def test_the_box_covers_pixels_with_the_least_waste(
    extents: Shape, steps: Shape, box: Shape
) -> None:
    assert best_box(extents, steps) == box


def test_results_leave_by_boxes_too() -> None:
    sch = w.schedule(convolution((2, 8, 8, 64), (64, 3, 3, 64), pad=1), (128, 64), block="conv")
    text = cuda_text(sch, w.SM90A)
    assert "cp.async.bulk.tensor.4d.global" in text
    assert "cp.async.bulk.tensor.4d.shared" in text
    assert "pad" not in {str(f.attrs["global_symbol"]) for f in w.program(sch).kernels.values()}
    with decisions.collect() as told:
        tlx.lower(sch, target=w.SM90A)
    assert any("boxes of 1x8x8 pixels" in str(one) for one in told)


@pytest.mark.costly
@pytest.mark.nvcc
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
@pytest.mark.parametrize(
    ("tile", "slices"),
    [((128, 256), 1), ((256, 128), 1), ((256, 64), 1), ((256, 128), 3), ((128, 160), 3)],
)
def test_no_register_is_spilled(tile: tuple[int, int], slices: int, tmp_path: Path) -> None:
    sch = convolution((64, 14, 14, 256), (256, 3, 3, 256), 2, 1)
    # Sums of others lie where stages were, of which three of 128x160 are too few.
    stages = 5 if tile[1] == 160 else 3
    sch = w.schedule(sch, tile, stages, block="conv", persistent=slices == 1, slices=slices)
    assert "C75" not in require_no_spills(cuda_text(sch, w.SM90A), tmp_path)


@pytest.mark.costly
@pytest.mark.nvcc
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
@pytest.mark.parametrize(("count", "channels", "out"), [(64, 64, 64), (16, 128, 32)])
def test_the_warpgroup_that_copies_keeps_its_few_registers(
    count: int, channels: int, out: int, tmp_path: Path
) -> None:
    operator = find_operator("conv2d")
    shape = (count, 56, 56, channels, out, 3, 3)
    config = operator.default_config() | {"wgmma": "128x64"}
    with w.SM90A:
        sch = operator.schedule(operator.compute(shape, "float16"), config)
    require_no_spills(cuda_text(sch, w.SM90A), tmp_path)


@pytest.mark.parametrize(
    ("image", "weight", "more", "text"),
    [
        ((2, 8, 8, 12), (64, 3, 3, 12), {}, "Rows of A are 24 bytes apart"),
        ((2, 30, 30, 64), (64, 1, 1, 64), {"stride": 9}, "TMA has no boxes"),
    ],
)
def test_what_tma_cannot_copy_is_refused(
    image: Shape, weight: Shape, more: dict[str, int], text: str
) -> None:
    sch = w.schedule(convolution(image, weight, **more), (64, 64), consumers=1, block="conv")
    with pytest.raises(ScheduleError, match=text):
        tlx.lower(sch, target=w.SM90A)


def test_images_of_one_column_are_legal() -> None:
    operator, shape = find_operator("conv2d"), (1, 7, 1, 48, 8, 3, 1)
    config = operator.default_config()
    config |= operator.fit(shape, "float16", config, architecture("sm_90a"))
    assert config["wgmma"] != "none"
    with w.SM90A:
        sch = operator.schedule(operator.compute(shape, "float16"), config)
    rng = np.random.default_rng(0)
    given = operator.inputs(shape, "float16", rng)
    report = tlx.simulate(sch, *given, target=w.SM90A, progress=False)
    want = operator.reference(*given).astype("float64")
    np.testing.assert_allclose(next(iter(report.outputs.values())), want, rtol=2e-3, atol=2e-2)


@pytest.mark.costly
@pytest.mark.parametrize("name", ["conv2d", "conv2d_strided"])
def test_the_operator_cuts_long_sums_into_slices(name: str) -> None:
    operator, shape = find_operator(name), (1, 7, 6, 256, 72, 3, 3)
    config = Space(operator, shape, "float16", architecture("sm_90a")).default()
    assert config["split_k"] == 4
    with w.SM90A:
        sch = operator.schedule(operator.compute(shape, "float16"), config)
    a, b = operator.inputs(shape, "float16", np.random.default_rng(0))
    report = tlx.simulate(sch, a, b, target=w.SM90A, progress=False)
    assert report.hazards == []
    want = operator.reference(a, b)
    off = np.abs(report.outputs["C"].astype("float64") - want)
    assert (off <= 2.0**-10 * np.abs(want) + 1e-3).all()


@pytest.mark.parametrize(
    ("shape", "knobs", "text"),
    [
        ((1, 7, 6, 256, 72, 3, 3), {"wgmma": "none", "split_k": 2}, "added up by wgmma only"),
        (
            (1, 7, 6, 256, 72, 3, 3),
            {"split_k": 8},
            "36 steps of a window give no 8 equal slices",
        ),
        ((2, 9, 8, 64, 72, 3, 3), {"split_k": 3}, "give no 3 equal slices of 4 or more"),
    ],
)
def test_slices_that_windows_do_not_have_are_refused(
    shape: Shape, knobs: dict[str, Any], text: str
) -> None:
    operator = find_operator("conv2d")
    config = operator.default_config() | {"wgmma": "64x64"} | knobs
    refusal = operator.check(shape, "float16", config, architecture("sm_90a"))
    assert refusal is not None
    assert text in refusal.text


def test_slices_of_a_window_have_as_many_steps_each() -> None:
    sch = convolution((2, 8, 8, 128), (64, 3, 3, 128), pad=1)
    sch = w.schedule(sch, (128, 64), block="conv", slices=4)
    with pytest.raises(ScheduleError, match=r"4 adds up.*, but 18 steps of a window leave 2 over"):
        tlx.lower(sch, target=w.SM90A)


def test_the_simulated_map_takes_every_second_element_and_refuses_what_the_driver_does() -> None:
    def encode(span: int, step: int, fill: int = 0) -> TensorMap:
        memory = Memory("A", np.zeros(64 * 32 * 2, np.uint8), 1, "global", 0)
        numbers = [64, 32, 128, 64, span, 1, step, 0, 3, 2, fill]
        return TensorMap.encode(memory, 2, 2, numbers)

    one = encode(16, 2)
    source, inside, _ = one.places([0, -3], 0)
    rows = (source.reshape(8, 64, 2)[:, 0, 0] // 128).tolist()
    assert one.box_bytes == 8 * 128
    assert rows == [-3, -1, 1, 3, 5, 7, 9, 11]
    assert inside.reshape(8, -1).all(1).tolist() == [row >= 0 for row in rows]
    with pytest.raises(SimulationError, match="every 9th element"):
        encode(18, 9)
    with pytest.raises(SimulationError, match="256 elements a dim"):
        encode(264, 2)
    with pytest.raises(NotModelled):
        encode(8, 1, fill=1)
