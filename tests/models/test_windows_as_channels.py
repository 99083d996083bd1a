"""Convolutions of few channels become products of whole windows."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st

from tests.models.cpu import require_same
from tests.models.running import check, only, scheduled
from tests.models.test_convolutions import convolution
from tvm_layout_ext.models.convolutions import windows_as_channels
from tvm_layout_ext.models.convolutions.windows_as_channels import WindowsAsChannels


@given(st.data(), st.sampled_from((2, 3)), st.integers(1, 9))
def test_any_window_step_dilation_and_padding_gives_the_same(
    data: st.DataObject, rank: int, channels: int
) -> None:
    def drawn(least: int, most: int, many: int = rank) -> tuple[int, ...]:
        return data.draw(st.tuples(*[st.integers(least, most)] * many))

    window, steps, apart = drawn(1, 4), drawn(1, 2), drawn(1, 2)
    padding = drawn(0, 3, 2 * rank)
    shapes = (2, channels, *drawn(7, 11)), (8, channels, *window)
    attrs = {"strides": list(steps), "padding": list(padding), "dilation": list(apart)}
    mod = convolution(*shapes, "float32", **attrs)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(windows_as_channels, "NARROW_FLOATS", ("float32",))
        after = WindowsAsChannels()(mod)
    terms = channels
    for n in window:
        terms *= n
    taken = channels != 8 and channels < terms <= 128
    assert ("windows" in {gv.name_hint for gv in after.functions}) == taken
    require_same(after, mod, 1e-5)


@pytest.mark.parametrize(
    ("attrs", "weight", "dtype"),
    [
        ({"groups": 3}, (24, 1, 3, 3), "float16"),
        ({}, (9, 3, 3, 3), "float16"),
        ({}, (8, 8, 3, 3), "float16"),
        ({}, (8, 12, 4, 4), "float16"),
        ({}, (8, 3, 1, 1), "float16"),
        ({}, (8, 3, 3, 3), "float32"),
    ],
)
def test_others_stay_as_they_are(attrs: Any, weight: Any, dtype: str) -> None:
    channels = weight[1] * attrs.get("groups", 1)
    mod = convolution((1, channels, 9, 9), weight, dtype, **attrs)
    tvm.ir.assert_structural_equal(WindowsAsChannels()(mod), mod)


@pytest.mark.costly
@pytest.mark.parametrize("batch", [2, "n"])
def test_a_first_convolution_is_right(batch: Any) -> None:
    mod = convolution((batch, 3, 12, 20), (64, 3, 3, 3), padding=1)
    for one in scheduled(mod):
        check(one)


def test_images_of_any_height_stay_as_they_are() -> None:
    mod = convolution((2, 3, "h", "w"), (32, 3, 3, 3), padding=1)
    tvm.ir.assert_structural_equal(WindowsAsChannels()(mod), mod)


def test_a_first_convolution_goes_to_warpgroups() -> None:
    mod = convolution((4, 3, 64, 64), (64, 3, 3, 3), padding=1)
    assert only(mod, "conv2d").choice.rule == "warpgroups"
