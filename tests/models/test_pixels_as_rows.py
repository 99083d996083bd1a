"""Convolutions whose window is the whole image are products, whose rows are the images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax, tirx
from tvm.relax import op

from benchmarks.relax_numbers import error_of
from tests.models.cpu import by_cpu
from tests.models.running import array_of, check, scheduled
from tests.models.test_convolutions import convolution
from tvm_layout_ext.models.convolutions.pixels_as_rows import PixelsAsRows
from tvm_layout_ext.models.relax_values import calls_operator

RNG = np.random.default_rng(0)
LAST = {"data_layout": "NHWC", "kernel_layout": "OHWI"}


def module(make: Callable[..., Any], *shapes: Any, dtype: str = "float16") -> tvm.IRModule:
    """A function of tensors of these shapes."""
    params = [
        relax.Var(f"p{at}", relax.TensorType(shape, dtype)) for at, shape in enumerate(shapes)
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            out = builder.emit_output(make(builder.emit, *params))
        builder.emit_func_output(out)
    return builder.get()


def drawn(*shape: int, dtype: str = "float16") -> Any:
    """A constant."""
    return relax.const(RNG.uniform(-0.25, 0.25, shape), dtype)


def excitation(images: Any, channels: int, squeezed: int, dtype: str) -> tvm.IRModule:
    """A squeeze-and-excitation, as torch has it."""

    def make(emit: Any, x: Any) -> Any:
        out = emit(op.mean(x, [2, 3], keepdims=True))
        for ends, rows, terms in (
            (op.nn.silu, squeezed, channels),
            (op.sigmoid, channels, squeezed),
        ):
            out = emit(op.nn.conv2d(out, drawn(rows, terms, 1, 1, dtype=dtype)))
            bias = emit(op.reshape(drawn(rows, dtype=dtype), (1, rows, 1, 1)))
            out = emit(ends(emit(op.add(out, bias))))
        return op.multiply(x, out)

    return module(make, (images, channels, 4, 6), dtype=dtype)


def arrays_of(mod: tvm.IRModule) -> list[Any]:
    return [array_of(one.ty, np.random.default_rng(0)) for one in mod["main"].params]


def test_what_follows_is_computed_of_rows() -> None:
    mod = convolution((3, 8, 1, 1), (16, 8, 1, 1), "float16", strides=2)

    def rows(emit: Any, x: Any, w: Any, b: Any) -> Any:
        x = emit(op.reshape(x, (3, 8)))
        turned = emit(op.permute_dims(emit(op.reshape(w, (16, 8))), [1, 0]))
        out = emit(op.matmul(x, turned))
        out = emit(op.add(out, emit(op.reshape(b, (1, 16)))))
        return op.reshape(emit(op.nn.relu(out)), (3, 16, 1, 1))

    want = module(rows, (3, 8, 1, 1), (16, 8, 1, 1), (1, 16, 1, 1))
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

    def make(emit: Any, x: Any, w: Any, bias: Any, y: Any) -> Any:
        value = op.nn.conv2d(x, w, data_layout=data, kernel_layout=kernel)
        value = emit(op.add(emit(value), bias))
        value = emit(op.clip(emit(op.multiply(value, drawn(*factor, dtype="float32"))), -1, 1))
        return op.subtract(y, value)

    results = {"N": images, "C": columns}
    shape = [results.get(axis, 1) for axis in data]
    bias = [1, *shape[1:]] if data == "NCHW" else shape[-1:]
    given = ([sizes[axis] for axis in layout] for layout in (data, kernel))
    mod = module(make, *given, bias, shape, dtype="float32")
    after, arrays = PixelsAsRows()(mod), arrays_of(mod)
    wide = [
        [axis for axis in layout[1:].replace("C", "I") if sizes[axis] > 1]
        for layout in (data, kernel)
    ]
    assert calls_operator(after, "nn.conv2d") == (wide[0] != wide[1])
    assert error_of(by_cpu(after, arrays), by_cpu(mod, arrays)) <= 1e-6


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
    image = [tirx.Var(one, "int64") if one == "n" else one for one in image]
    mod = module(lambda _, *given: op.nn.conv2d(*given, **attrs), image, weight, dtype=dtype)
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


@pytest.mark.parametrize(("images", "dtype"), [(16, "bfloat16"), ("n", "bfloat16"), (5, "float32")])
def test_products_of_several_images_go_to_the_rules_of_convolutions(
    images: Any, dtype: str
) -> None:
    images = tirx.Var(images, "int64") if images == "n" else images
    found = scheduled(excitation(images, 64, 16, dtype))
    products = [one for one in found if "NT_matmul" in one.name]
    rule = "threads" if dtype == "float32" else "warpgroups"
    assert [one.choice.rule for one in products] == [rule] * 2
    for one in products:
        check(one)


def test_a_window_of_the_whole_image_is_added_up_by_one_kernel() -> None:
    mod = module(
        lambda _, x: op.nn.conv2d(x, drawn(16, 3, 4, 8), **LAST), (1, 3, 4, 8), dtype="float16"
    )
    # What the function gives is a view, which is copied.
    one, _ = sorted(scheduled(mod), key=lambda one: "matmul" not in one.name)
    assert one.choice.rule == "rows", one.choice.text
    check(one)


def test_numbers_of_an_excitation_stay() -> None:
    mod = excitation(2, 24, 6, "float32")
    after, arrays = PixelsAsRows()(mod), arrays_of(mod)
    assert not calls_operator(after, "nn.conv2d")
    assert error_of(by_cpu(after, arrays), by_cpu(mod, arrays)) <= 1e-6
