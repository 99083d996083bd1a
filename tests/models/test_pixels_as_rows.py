"""Convolutions whose window is the whole image are products, whose rows are the images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax
from tvm.relax import op

from tests.models.cpu import require_same
from tests.models.running import check, scheduled
from tests.models.test_convolutions import convolution
from tests.programs.relaxed import relax_module
from tvm_layout_ext.models.convolutions.pixels_as_rows import PixelsAsRows
from tvm_layout_ext.models.relax_values import operators_of

RNG = np.random.default_rng(0)
LAST = {"data_layout": "NHWC", "kernel_layout": "OHWI"}


def drawn(*shape: int, dtype: str = "float16") -> Any:
    """A constant."""
    return relax.const(RNG.uniform(-0.25, 0.25, shape), dtype)


def excitation(images: Any, channels: int, squeezed: int, dtype: str) -> tvm.IRModule:
    """A squeeze-and-excitation, as torch has it."""

    def make(x: Any) -> Any:
        out = op.mean(x, [2, 3], keepdims=True)
        for ends, rows, terms in (
            (op.nn.silu, squeezed, channels),
            (op.sigmoid, channels, squeezed),
        ):
            out = op.nn.conv2d(out, drawn(rows, terms, 1, 1, dtype=dtype))
            out = ends(op.add(out, op.reshape(drawn(rows, dtype=dtype), (1, rows, 1, 1))))
        return op.multiply(x, out)

    return relax_module(make, (images, channels, 4, 6), dtype=dtype)


def test_what_follows_is_computed_of_rows() -> None:
    mod = convolution((3, 8, 1, 1), (16, 8, 1, 1), "float16", strides=2)

    def rows(x: Any, w: Any, b: Any) -> Any:
        x = op.reshape(x, (3, 8))
        out = op.matmul(x, op.permute_dims(op.reshape(w, (16, 8)), [1, 0]))
        out = op.nn.relu(op.add(out, op.reshape(b, (1, 16))))
        return op.reshape(out, (3, 16, 1, 1))

    want = relax_module(rows, (3, 8, 1, 1), (16, 8, 1, 1), (1, 16, 1, 1))
    tvm.ir.assert_structural_equal(PixelsAsRows()(mod), want, map_free_vars=True)


@given(
    st.integers(1, 3),
    st.tuples(st.integers(1, 6), st.integers(1, 5)),
    st.sampled_from([(1, 1), (1, 3), (2, 1), (3, 2)]),
    st.sampled_from(["NCHW", "NHWC"]),
    st.sampled_from(["OIHW", "OHWI"]),
    st.sampled_from([(1, 1, 1, 1), (1, 1), (1,), ()]),
)
def test_any_window_and_layout_gives_the_same(
    images: int, channels: Any, window: Any, data: str, kernel: str, factor: Any
) -> None:
    terms, columns = channels
    sizes = {"N": images, "C": terms, "O": columns, "I": terms}
    sizes |= dict(zip("HW", window, strict=True))

    def make(x: Any, w: Any, bias: Any, y: Any) -> Any:
        value = op.add(op.nn.conv2d(x, w, data_layout=data, kernel_layout=kernel), bias)
        return op.subtract(y, op.clip(op.multiply(value, drawn(*factor, dtype="float32")), -1, 1))

    results = {"N": images, "C": columns}
    shape = [results.get(axis, 1) for axis in data]
    bias = [1, *shape[1:]] if data == "NCHW" else shape[-1:]
    given = ([sizes[axis] for axis in layout] for layout in (data, kernel))
    mod = relax_module(make, *given, bias, shape, dtype="float32")
    after = PixelsAsRows()(mod)
    wide = [
        [axis for axis in layout[1:].replace("C", "I") if sizes[axis] > 1]
        for layout in (data, kernel)
    ]
    assert ("nn.conv2d" in operators_of(after)) == (wide[0] != wide[1])
    require_same(after, mod, 1e-6)


@pytest.mark.parametrize(
    ("image", "weight", "attrs", "dtype"),
    [
        ((1, 8, 1, 1), (16, 8, 3, 3), {"padding": 1}, "float16"),
        ((1, 8, 1, 1), (16, 4, 1, 1), {"groups": 2}, "float16"),
        ((1, 8, 2, 1), (16, 8, 1, 1), {}, "float16"),
        ((1, 8, "n", 1), (16, 8, 1, 1), {}, "float16"),
        ((1, 2, 3, 8), (16, 8, 2, 3), LAST | {"kernel_layout": "OIHW"}, "float16"),
        ((1, 8, 1, 1), (16, 8, 1, 1), {}, "int32"),
    ],
)
def test_others_stay_as_they_are(image: Any, weight: Any, attrs: Any, dtype: str) -> None:
    mod = relax_module(lambda *given: op.nn.conv2d(*given, **attrs), image, weight, dtype=dtype)
    tvm.ir.assert_structural_equal(PixelsAsRows()(mod), mod)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("channels", "squeezed"), [(64, 16), (40, 10)])
def test_products_of_an_excitation_of_one_image_end_with_what_follows_them(
    channels: int, squeezed: int, dtype: str
) -> None:
    found = scheduled(excitation(1, channels, squeezed, dtype))
    products = [one for one in found if "NT_matmul" in one.name]
    assert [one.choice.rule for one in products] == ["rows"] * 2
    # The mean, two products with all that is computed of them, and the product by the image.
    assert len([one for one in found if "transpose" not in one.name]) == 4
    for one in products:
        check(one)


@pytest.mark.costly
@pytest.mark.parametrize(("images", "dtype"), [(16, "bfloat16"), ("n", "bfloat16"), (5, "float32")])
def test_products_of_several_images_go_to_the_rules_of_convolutions(
    images: Any, dtype: str
) -> None:
    found = scheduled(excitation(images, 64, 16, dtype))
    products = [one for one in found if "NT_matmul" in one.name]
    rule = "threads" if dtype == "float32" else "warpgroups"
    assert [one.choice.rule for one in products] == [rule] * 2
    for one in products:
        check(one)


def test_a_window_of_the_whole_image_is_added_up_by_one_kernel() -> None:
    mod = relax_module(lambda x: op.nn.conv2d(x, drawn(16, 3, 4, 8), **LAST), (1, 3, 4, 8))
    # What the function gives is a view, which is copied.
    one, _ = sorted(scheduled(mod), key=lambda one: "matmul" not in one.name)
    check(one, "rows")


def test_numbers_of_an_excitation_stay() -> None:
    mod = excitation(2, 24, 6, "float32")
    after = PixelsAsRows()(mod)
    assert "nn.conv2d" not in operators_of(after)
    require_same(after, mod, 1e-6)
