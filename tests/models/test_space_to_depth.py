"""Convolutions of few channels by strides become ones of vectors of channels."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st

from tests.models.cpu import require_same
from tests.models.running import check, fused, only, scheduled
from tests.models.test_convolutions import convolution
from tvm_layout_ext.models.convolutions.space_to_depth import SpaceToDepth
from tvm_layout_ext.models.tf32 import KINDS

SIDES = st.integers(9, 14)


@given(st.data(), st.sampled_from((2, 3)), st.integers(1, 7))
def test_any_window_step_and_padding_gives_the_same(
    data: st.DataObject, rank: int, channels: int
) -> None:
    def drawn(numbers: st.SearchStrategy[int], many: int = rank) -> tuple[int, ...]:
        return data.draw(st.tuples(*[numbers] * many))

    window, steps = drawn(st.integers(1, 8)), drawn(st.integers(1, 4))
    padding = drawn(st.integers(0, 3), 2 * rank)
    shapes = (2, channels, *drawn(SIDES)), (8, channels, *window)
    mod = convolution(*shapes, "float32", strides=list(steps), padding=list(padding))
    after = SpaceToDepth(tf32=KINDS)(mod)
    taken = max(steps) > 1 and all(n >= step for n, step in zip(window, steps, strict=True))
    assert ("permute_dims" in str(after)) == taken
    require_same(after, mod, 1e-5)


@pytest.mark.parametrize(
    ("attrs", "weight", "dtype"),
    [
        ({"strides": 2, "dilation": 2}, (8, 3, 3, 3), "float16"),
        ({"strides": 2, "groups": 3}, (9, 1, 3, 3), "float16"),
        ({"strides": 2}, (8, 16, 3, 3), "float16"),
        ({"strides": 2}, (9, 3, 3, 3), "float16"),
        ({"padding": 1}, (8, 3, 3, 3), "float16"),
        ({"strides": 2}, (8, 3, 3, 3), "float32"),
    ],
)
def test_others_stay_as_they_are(attrs: Any, weight: Any, dtype: str) -> None:
    channels = weight[1] * attrs.get("groups", 1)
    mod = convolution((1, channels, 9, 9), weight, dtype, **attrs)
    tvm.ir.assert_structural_equal(SpaceToDepth()(mod), mod)


@pytest.mark.costly
@pytest.mark.parametrize("batch", [2, "n"])
def test_a_first_convolution_is_right(batch: Any) -> None:
    mod = convolution((batch, 3, 16, 16), (16, 3, 7, 7), strides=2, padding=3)
    found = {one.name: one for one in scheduled(mod)}
    (product,) = (one for name, one in found.items() if "conv2d" in name)
    if isinstance(batch, int):
        # One kernel brings the image into its form, and one the weights, a parameter here.
        assert sum("pad" in name for name in found) == 2, list(found)
        assert product.choice.rule == "warpgroups", product.choice.text
    for one in found.values():
        check(one)


def test_patches_of_an_image_are_rows_of_a_product() -> None:
    mod = convolution((2, 3, 32, 32), (64, 3, 16, 16), strides=16)
    check(only(mod, "conv2d"), "warpgroups")


def test_a_channels_last_chain_begins_with_the_first_convolution() -> None:
    mod = convolution((1, 3, 16, 16), (16, 3, 3, 3), strides=2, padding=1)
    names = [gv.name_hint for gv in fused(mod).functions]
    # The permutation back, which the caller sees, is the only one beside.
    assert sum(name.startswith("transpose") for name in names) == 1, names
