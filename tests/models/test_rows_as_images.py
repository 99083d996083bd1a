"""Convolutions of one dim become ones of images of a single row."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm.relax import op

from tests.models.cpu import require_same
from tests.models.running import check, fused, only, scheduled
from tests.programs.relaxed import relax_module
from tvm_layout_ext.models.convolutions.rows_as_images import RowsAsImages
from tvm_layout_ext.models.relax_values import operators_of

Shape = tuple[Any, ...]


def chain(row: Shape, *layers: tuple[Shape, Any], dtype: str = "float16") -> tvm.IRModule:
    """Convolutions, each with a bias and a GELU, and channels last in the end."""
    shapes: list[Shape] = [row]
    for weight, attrs in layers:
        channels = weight[-1 if attrs.get("kernel_layout") == "WIO" else 0]
        shapes += [weight, (1, 1, channels) if "data_layout" in attrs else (1, channels, 1)]

    def build(out: Any, *weights: Any) -> Any:
        for (_, attrs), weight, bias in zip(layers, weights[::2], weights[1::2], strict=True):
            out = op.nn.gelu(op.add(op.nn.conv1d(out, weight, **attrs), bias))
        return op.permute_dims(out, [0, 2, 1])

    return relax_module(build, *shapes, dtype=dtype)


@given(
    st.integers(9, 14),
    st.sampled_from([(8, 6, 1), (6, 1, 6), (4, 3, 2)]),
    st.integers(1, 3),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.integers(1, 3),
    st.integers(1, 2),
)
def test_any_window_step_and_padding_gives_the_same(
    length: int, channels: Any, window: int, padding: Any, step: int, dilation: int
) -> None:
    out, each, groups = channels
    attrs = {"padding": list(padding), "strides": step, "dilation": dilation, "groups": groups}
    mod = chain((2, each * groups, length), ((out, each, window), attrs), dtype="float32")
    after = RowsAsImages()(mod)
    assert "nn.conv1d" not in operators_of(after)
    require_same(after, mod, 1e-6)


def test_what_follows_is_computed_of_the_image() -> None:
    mod = chain((2, 8, 9), ((16, 8, 3), {"padding": [1, 2], "strides": 2}))

    def build(x: Any, w: Any, b: Any) -> Any:
        image, window = (op.expand_dims(one, 2) for one in (x, w))
        out = op.nn.conv2d(image, window, strides=[1, 2], padding=[0, 1, 0, 2])
        out = op.nn.gelu(op.add(out, op.expand_dims(b, 2)))
        return op.permute_dims(op.squeeze(out, [2]), [0, 2, 1])

    want = relax_module(build, (2, 8, 9), (16, 8, 3), (1, 16, 1))
    tvm.ir.assert_structural_equal(RowsAsImages()(mod), want, map_free_vars=True)


def test_other_layouts_stay_as_they_are() -> None:
    attrs = {"data_layout": "NWC", "kernel_layout": "WIO", "out_layout": "NWC"}
    mod = chain((2, 9, 8), ((3, 8, 16), attrs))
    tvm.ir.assert_structural_equal(RowsAsImages()(mod), mod)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("row", "weight", "attrs"),
    [
        ((1, 80, 100), (96, 80, 3), {"padding": 1}),
        ((2, 96, 100), (96, 96, 3), {"padding": 1, "strides": 2}),
        ((1, 64, 129), (64, 64, 3), {"strides": 2}),
        ((2, 64, 70), (64, 64, 3), {"padding": [2, 1], "dilation": 2}),
        (("n", 80, 66), (72, 80, 3), {"padding": 1}),
    ],
)
def test_a_convolution_goes_to_warpgroups(row: Shape, weight: Shape, attrs: Any) -> None:
    found = scheduled(chain(row, (weight, attrs)))
    *rest, one = sorted(found, key=lambda f: "conv2d" in f.name)
    assert one.name.endswith("add_gelu")
    check(one, "warpgroups")
    assert {other.choice.rule for other in rest} <= {"blocks"}


def test_steps_of_five_pixels_have_no_boxes() -> None:
    one = only(chain((1, 64, 131), ((72, 64, 10), {"strides": 5})), "conv2d")
    assert one.choice.rule == "tensor cores"
    assert "TMA has no boxes of 64 such pixels" in one.choice.text


@pytest.mark.parametrize("row", [(1, 1, 100), (2, 1, 101)])
def test_a_first_convolution_of_one_channel_is_right(row: Shape) -> None:
    found = scheduled(chain(row, ((64, 1, 10), {"strides": 5})))
    (one,) = (f for f in found if "conv2d" in f.name)
    assert one.choice.rule == "tensor cores", one.choice.text
    for each in found:
        check(each)


def test_a_chain_is_permuted_at_its_beginning_only() -> None:
    layers = [((96, 80, 3), {"padding": 1}), ((96, 96, 3), {"padding": 1, "strides": 2})]
    mod = fused(chain((1, 80, 100), *layers))
    calls = str(mod["main"]).count("R.call_tir(")
    # The row and two weights in, two convolutions, and a view out that is copied as a result.
    assert calls == 6, mod["main"]
