"""Convolutions of few channels have whole vectors of channels."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st

from tests.models.cpu import require_same
from tests.models.running import check, only, scheduled
from tests.models.test_convolutions import convolution
from tvm_layout_ext.models.convolutions.pad_channels import PadChannels
from tvm_layout_ext.models.tf32 import KINDS


@given(st.data(), st.sampled_from((2, 3)), st.integers(1, 17))
def test_any_window_dilation_and_padding_gives_the_same(
    data: st.DataObject, rank: int, channels: int
) -> None:
    def drawn(least: int, most: int, many: int = rank) -> tuple[int, ...]:
        return data.draw(st.tuples(*[st.integers(least, most)] * many))

    window, apart = drawn(1, 4), drawn(1, 2)
    shapes = (2, channels, *drawn(7, 11)), (8, channels, *window)
    attrs = {"padding": list(drawn(0, 3, 2 * rank)), "dilation": list(apart)}
    mod = convolution(*shapes, "float32", **attrs)
    after = PadChannels(tf32=KINDS)(mod)
    if max(apart) == 1:  # Else a halo is to follow.
        assert ("nn.pad" in str(after)) == (channels % 8 > 0 and max(window) > 1)
    require_same(after, mod, 1e-5)


@pytest.mark.parametrize(
    ("attrs", "weight", "dtype"),
    [
        ({"groups": 3}, (24, 1, 3, 3), "float16"),
        ({}, (9, 3, 3, 3), "float16"),
        ({}, (8, 8, 3, 3), "float16"),
        ({"strides": 2}, (8, 3, 3, 3), "float16"),
        ({"dilation": 6, "padding": 6}, (8, 3, 3, 3), "float16"),
        ({}, (8, 3, 1, 1), "float16"),
        ({}, (8, 3, 3, 3), "float32"),
    ],
)
def test_others_stay_as_they_are(attrs: Any, weight: Any, dtype: str) -> None:
    channels = weight[1] * attrs.get("groups", 1)
    mod = convolution((1, channels, 9, 9), weight, dtype, **attrs)
    tvm.ir.assert_structural_equal(PadChannels()(mod), mod)


@pytest.mark.costly
@pytest.mark.parametrize("batch", [2, "n"])
def test_a_first_convolution_is_right(batch: Any) -> None:
    mod = convolution((batch, 3, 12, 20), (64, 3, 3, 3), padding=1)
    for one in scheduled(mod):
        check(one)


@pytest.mark.parametrize(
    ("image", "weight", "padding"),
    [
        ((4, 3, 64, 64), (64, 3, 3, 3), 1),
        ((4, 3, "h", 64), (64, 3, 3, 3), 1),
        # Of any number of images weights may stay in shared memory.
        (("n", 3, 64, 64), (64, 3, 5, 5), 2),
    ],
)
def test_a_first_convolution_goes_to_warpgroups(image: Any, weight: Any, padding: int) -> None:
    mod = convolution(image, weight, padding=padding)
    assert only(mod, "conv2d").choice.rule == "warpgroups"


def test_zeros_are_written_with_the_permutation() -> None:
    names = [one.name for one in scheduled(convolution((4, 3, 64, 64), (64, 3, 3, 3), padding=1))]
    # Those of the image and of the weights, and the permutation of the result.
    assert sorted(names)[1:] == ["fused_pad1_transpose1", "fused_pad_transpose", "transpose2"]
