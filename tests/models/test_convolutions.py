"""Convolutions of every kind through the pipeline, beside TVM's CPU code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.relax import op

import tvm_layout_ext as tlx
from tests.models.cpu import require_same
from tests.models.running import array_of, check, fused, only, scheduled
from tests.programs.relaxed import relax_module
from tvm_layout_ext.models.convolutions.channels_last import ChannelsLast
from tvm_layout_ext.models.convolutions.space_to_depth import SpaceToDepth
from tvm_layout_ext.schedules import _gemm_hopper

Shape = tuple[Any, ...]
HALF = "float16"


def convolution(image: Shape, weight: Shape, dtype: str = HALF, **attrs: Any) -> tvm.IRModule:
    """A convolution of images, or of volumes, a bias and a ReLU."""
    channels = weight[-1 if attrs.get("kernel_layout") == "HWIO" else 0]
    spatial = len(weight) - 2
    bias = (1, channels, *[1] * spatial) if "data_layout" not in attrs else (channels,)
    convolve = {2: op.nn.conv2d, 3: op.nn.conv3d}[spatial]

    def build(x: Any, w: Any, b: Any) -> Any:
        return op.nn.relu(op.add(convolve(x, w, **attrs), b))

    return relax_module(build, x=image, w=weight, b=bias, dtype=dtype)


@pytest.mark.costly
@pytest.mark.matrix
@pytest.mark.parametrize(
    ("rule", "image", "weight", "attrs"),
    [
        ("warpgroups", (1, 16, 5, 7), (24, 16, 3, 3), {"padding": 1}),
        ("tensor cores", (2, 8, 9, 6), (8, 8, 3, 3), {"padding": [1, 0, 2, 1], "strides": 2}),
        ("tensor cores", (1, 16, 9, 9), (8, 16, 3, 3), {"padding": 2, "dilation": 2}),
        ("warpgroups", (1, 3, 9, 9), (16, 3, 7, 7), {"padding": 3, "strides": 2}),
        ("tensor cores", (1, 12, 5, 5), (20, 12, 3, 3), {}),
        ("warpgroups", (2, 64, 7, 9), (72, 64, 1, 1), {}),
        ("warpgroups", (2, 64, 7, 9), (72, 64, 1, 1), {"strides": 2}),
        ("warpgroups", (2, 64, 8, 8), (72, 64, 3, 3), {"padding": 1}),
        ("warpgroups", (3, 72, 7, 9), (72, 72, 3, 3), {"padding": [1, 0, 2, 1], "strides": 2}),
        ("warpgroups", (1, 64, 9, 10), (64, 64, 3, 3), {"padding": 2, "dilation": 2}),
        ("warpgroups", (2, 72, 1, 90), (72, 72, 1, 3), {"padding": [0, 1], "strides": [1, 2]}),
        ("warpgroups", (2, 72, 90, 1), (72, 72, 3, 1), {"padding": [1, 0]}),
        (
            "warpgroups",
            (2, 7, 9, 64),
            (3, 3, 64, 72),
            {"padding": 1, "data_layout": "NHWC", "kernel_layout": "HWIO"},
        ),
        (
            "tensor cores",
            (1, 6, 7, 16),
            (3, 3, 16, 8),
            {"padding": 1, "data_layout": "NHWC", "kernel_layout": "HWIO"},
        ),
        ("warpgroups", (2, 64, 4, 6, 6), (72, 64, 3, 3, 3), {"padding": 1}),
        # With a halo: of groups, few channels, rows, a volume.
        ("warpgroups", (2, 96, 16, 15), (64, 48, 3, 3), {"padding": 1, "groups": 2}),
        ("warpgroups", (2, 16, 24, 8), (24, 16, 3, 5), {"padding": [1, 2]}),
        ("warpgroups", (2, 24, 1, 130), (32, 24, 1, 5), {"padding": [0, 2]}),
        ("warpgroups", (1, 8, 3, 16, 16), (32, 8, 3, 3, 3), {"padding": 1}),
        ("warpgroups", (1, 64, 5, 7, 9), (64, 64, 3, 1, 1), {"padding": [1, 0, 0], "strides": 2}),
        ("tensor cores", (1, 16, 5, 6, 4), (24, 16, 3, 3, 3), {"padding": [0, 1, 2, 1, 0, 0]}),
        ("tensor cores", (1, 3, 4, 9, 9), (16, 3, 3, 7, 7), {"padding": 3, "strides": [1, 2, 2]}),
        ("windows", (1, 16, 4, 6, 6), (16, 1, 3, 3, 3), {"padding": 1, "groups": 16}),
        ("windows", (1, 16, 9, 9), (16, 1, 3, 3), {"padding": 1, "groups": 16}),
        ("tensor cores", (1, 16, 9, 9), (16, 4, 3, 3), {"padding": 1, "groups": 4}),
    ],
)
def test_a_convolution_is_right(rule: str, image: Shape, weight: Shape, attrs: Any) -> None:
    found = scheduled(convolution(image, weight, **attrs))
    *rest, one = sorted(found, key=lambda f: "conv" in f.name)
    check(one, rule)
    assert {other.choice.rule for other in rest} <= {"blocks"}


@pytest.mark.costly
@pytest.mark.matrix
@pytest.mark.parametrize(
    ("rule", "image", "weight", "attrs"),
    [
        ("warpgroups", (64, 8, 8), (72, 64, 3, 3), {"padding": 1}),
        ("warpgroups", (64, 8, 8), (72, 64, 1, 1), {}),
        ("warpgroups", (72, 7, 9), (72, 72, 3, 3), {"padding": [1, 0, 2, 1], "strides": 2}),
        ("warpgroups", (64, 3, 4, 5), (72, 64, 3, 1, 3), {"padding": [1, 0, 1]}),
        ("warpgroups", (64, 1, 1), (16, 64, 1, 1), {}),
        ("tensor cores", (10, 1, 1), (40, 10, 1, 1), {}),
        ("warpgroups", (16, 5, 7), (24, 16, 3, 3), {"padding": 1}),
        ("warpgroups", (3, 16, 16), (16, 3, 7, 7), {"padding": 3, "strides": 2}),
        ("warpgroups", (3, 16, 16), (64, 3, 3, 3), {"padding": 1}),
        ("tensor cores", (3, 12, 9), (64, 3, 3, 3), {"padding": 1}),
        ("warpgroups", (4, 18, 16), (24, 4, 3, 3), {"padding": 1, "dilation": 2}),
        ("tensor cores", (4, 9, 7), (24, 4, 3, 3), {"padding": 1, "dilation": 2}),
    ],
)
def test_a_batch_may_have_any_size(rule: str, image: Shape, weight: Shape, attrs: Any) -> None:
    found = scheduled(convolution(("n", *image), weight, **attrs))
    (one,) = (f for f in found if "conv" in f.name or "matmul" in f.name)
    assert {f.choice.rule for f in found} <= {rule, "blocks"}
    check(one, rule)


@pytest.mark.parametrize("outer", [12, 16])
def test_groups_of_images_of_any_size_have_their_own_results(outer: int) -> None:
    """Of a symbolic number of rows each product of a batch was the first one."""
    for one in scheduled(convolution((3, 48, "h", "w"), (outer, 24, 1, 1), groups=2)):
        check(one)


@pytest.mark.parametrize(
    ("image", "weight", "attrs"),
    [
        ((1, 64, "h", 7), (16, 64, 1, 1), {}),
        ((1, 128, "h", 7), (128, 64, 1, 1), {"groups": 2}),
        ((1, 3, "h", 12), (16, 3, 4, 4), {"strides": 4}),
    ],
)
def test_rows_of_pixels_of_a_known_width_are_all_computed(
    image: Shape, weight: Shape, attrs: Any
) -> None:
    """Of one image as many pixels were computed as it has rows."""
    for one in scheduled(convolution(image, weight, **attrs)):
        check(one)


@pytest.mark.parametrize("window", [7, 3])
def test_first_layers_of_images_of_any_size(window: int) -> None:
    attrs = {"padding": window // 2, "strides": 2}
    mod = convolution((2, 3, "h", "w"), (16, 3, window, window), **attrs)
    found = SpaceToDepth()(mod)
    assert "space_to_depth" in {gv.name_hint for gv in found.functions}
    require_same(found, mod, 1e-2)
    (one,) = (f for f in scheduled(mod) if "conv2d" in f.name)
    check(one, "warpgroups")


@pytest.mark.costly
@pytest.mark.matrix
@pytest.mark.parametrize(
    ("image", "weight", "attrs"),
    [
        ((1, 256, 6, 7), (72, 256, 3, 3), {"padding": 1}),
        ((2, 200, 9, 9), (64, 200, 3, 3), {"padding": 1, "strides": 2}),
        ((1, 512, 7, 6), (128, 256, 3, 3), {"padding": 1, "groups": 2}),
        (("n", 256, 4, 4), (64, 256, 3, 3), {"padding": 1}),
        (
            (2, 6, 7, 256),
            (3, 3, 256, 128),
            {"padding": 1, "data_layout": "NHWC", "kernel_layout": "HWIO"},
        ),
    ],
)
def test_long_sums_of_few_pixels_are_cut_into_slices(
    image: Shape, weight: Shape, attrs: Any
) -> None:
    one = only(convolution(image, weight, **attrs), "conv2d")
    assert "4 slices of K" in one.choice.text
    assert len(one.program.kernels) == 1
    check(one, "warpgroups")


@pytest.mark.costly
@pytest.mark.matrix
@pytest.mark.parametrize(("tile", "slices"), [("128x128", 3), ("64x64", 3), ("256x64", 2)])
def test_what_follows_is_computed_once_slices_are_added_up(tile: str, slices: int) -> None:
    """A bias, a shortcut and SiLU, also where fewer blocks finish a tile than add it up."""

    def build(x: Any, w: Any, bias: Any, residual: Any) -> Any:
        out = op.add(op.add(op.nn.conv2d(x, w, padding=1), bias), residual)
        return op.nn.silu(out)

    shapes = (2, 128, 9, 8), (72, 128, 3, 3), (1, 72, 1, 1), (2, 72, 9, 8)
    found = {"wgmma": tile, "split_k": slices, "cluster": slices}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_gemm_hopper, "fit_windows", lambda *_, **__: found)
        one = only(relax_module(build, *shapes), "conv2d")
    assert f"tiles of {tile}, {slices} slices of K" in one.choice.text
    check(one)


@pytest.mark.costly
@pytest.mark.matrix
@pytest.mark.parametrize(
    ("image", "channels", "tile", "slices"),
    [
        ((2, 1280, 8, 8), 1280, "128x64", 4),
        ((2, 1280, 16, 16), 1280, "128x64", 1),
        ((2, 640, 32, 32), 640, "128x160", 2),
        ((2, 320, 64, 64), 320, "128x160", 1),
    ],
)
def test_slices_are_for_multiprocessors_that_tiles_leave_idle(
    image: Shape, channels: int, tile: str, slices: int
) -> None:
    """As in the U-Net of Stable Diffusion 1.5."""
    one = only(convolution(image, (channels, image[1], 3, 3), padding=1), "conv2d")
    assert f"tiles of {tile}, {slices} slices of K" in one.choice.text
    with tlx.decisions.collect() as told:
        tlx.lower(one.after.with_attr("global_symbol", "main"), target=tlx.cuda_target("sm_90a"))
    (text,) = (str(d) for d in told if d.maker == "LowerWarpgroups")
    assert (f"in clusters of {slices} that share the steps" in text) == (slices > 1)


@pytest.mark.parametrize(
    ("image", "weight"), [((8, 64, 1, 1), (16, 64, 1, 1)), ((2, 64, 7, 1), (72, 64, 1, 1))]
)
def test_pixels_in_a_single_row_or_column_are_a_product(image: Shape, weight: Shape) -> None:
    # As of squeeze and excite: TVM drops no iterator of a window where all have extent 1.
    *rest, one = sorted(scheduled(convolution(image, weight)), key=lambda f: len(f.name))
    check(one, "warpgroups")
    assert {other.choice.rule for other in rest} == {"blocks"}


def test_bfloat16_is_taken_and_float32_keeps_its_bits() -> None:
    sizes = (1, 16, 5, 5), (16, 16, 3, 3)
    *_, narrow = scheduled(convolution(*sizes, "bfloat16", padding=1))
    check(narrow)
    *_, wide = scheduled(convolution(*sizes, "float32", padding=1))
    check(wide, "threads")


def test_a_chain_is_permuted_at_its_ends_only() -> None:
    first = convolution((1, 16, 6, 6), (16, 16, 3, 3), padding=1)

    def build(x: Any, w: Any) -> Any:
        out = x
        for _ in range(3):
            out = op.nn.relu(op.nn.conv2d(out, w, padding=1))
        return op.add(out, x)

    chain = relax_module(build, (1, 16, 6, 6), (16, 16, 3, 3))
    calls = str(fused(chain)["main"]).count("R.call_tir(")
    # Image and weight in, three convolutions, the result out.
    assert calls == 6
    assert "reshape" not in {gv.name_hint for gv in fused(first).functions}


def test_windows_of_many_channels_are_copied_asynchronously() -> None:
    # A step of 64 terms lies inside the 128 channels of a pixel, which index arithmetic hides.
    older = tlx.cuda_target("sm_80")
    mod = fused(convolution((1, 128, 6, 6), (16, 128, 3, 3), padding=1, strides=2))
    with older, tlx.decisions.collect() as told:
        after = tlx.DefaultSchedule()(mod)
        (one,) = (f for gv, f in after.functions.items() if "conv2d" in gv.name_hint)
        tlx.lower(one.with_attr("global_symbol", "main"), target=older)
    copies = [d for d in told if d.maker == "LowerAsyncCopy"]
    assert copies
    assert not [str(d) for d in copies if d.refused]


def test_a_symbolic_size_beside_a_convolution_is_computed_with() -> None:
    """TVM's pass of layouts ends the process at a number among operands."""

    def build(x: Any, w: Any) -> Any:
        return op.divide(op.nn.conv2d(x, w, padding=1), tirx.Cast(HALF, x.ty.shape.values[0]))

    mod = relax_module(build, ("n", 16, 5, 7), (24, 16, 3, 3))
    check(only(mod, "conv2d"), "warpgroups")


@pytest.mark.parametrize(
    "call",
    [
        lambda y: op.squeeze(op.expand_dims(y, [0]), [-5]),
        lambda y: op.permute_dims(y, [0, -1, -3, -2]),
        lambda y: op.stack([y, y], -1),
    ],
    ids=["squeeze", "permute_dims", "stack"],
)
def test_axes_counted_from_the_last_one_keep_no_layout(call: Any) -> None:
    """TVM's pass of layouts ends at them ("bad_alloc"); a MultiheadAttention has one."""

    def build(x: Any, w: Any) -> Any:
        return call(op.nn.relu(op.nn.conv2d(x, w)))

    mod = relax_module(build, (2, 16, 5, 7), (16, 16, 1, 1))
    after = ChannelsLast()(mod)
    assert "NHWC" in after.script()
    kinds = [str(one["main"].ret_ty) for one in (mod, after)]
    assert kinds[0] == kinds[1]


def test_a_module_without_convolutions_is_left_alone() -> None:
    """TVM's ConvertLayout fails by operators that it does not know, as PyTorch's encoders have."""
    mod = relax_module(op.exp, (4, 8))
    assert ChannelsLast()(mod).same_as(mod)


@pytest.mark.parametrize(
    ("dtype", "results", "is_permuted"),
    [(HALF, 3, True), (HALF, 1, False), ("float32", 3, False), ("float32", 8, True)],
)
def test_results_that_fill_no_vector_are_permuted_for_tensor_cores_alone(
    dtype: str, results: int, is_permuted: bool
) -> None:
    mod = convolution((1, 64, 9, 9), (results, 64, 3, 3), dtype)
    assert ("NHWC" in ChannelsLast()(mod).script()) == is_permuted


@pytest.mark.parametrize(("dtype", "is_kept"), [(HALF, True), ("float32", False)])
def test_a_clip_keeps_what_is_not_a_number_in_16_bits(dtype: str, is_kept: bool) -> None:
    def build(*given: Any) -> Any:
        return op.clip(op.nn.conv2d(*given), 0, 6)

    one = only(relax_module(build, (1, 16, 5, 6), (16, 16, 1, 1), dtype=dtype), "conv2d")
    func = one.after.with_attr("global_symbol", "main")
    image, weight, _ = (array_of(param, np.random.default_rng(0)) for param in func.params)
    image[0, 0, 0, 0] = np.nan
    (out,) = tlx.simulate(func, image, weight, None, progress=False).outputs.values()
    first, others = out[0, 0, 0], out[0, 0, 1:]
    assert np.isnan(first).all() if is_kept else (first == 0).all()
    assert np.isfinite(others).all()
