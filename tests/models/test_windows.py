"""Depthwise convolutions and pools, whose windows slide in registers, beside TVM's CPU code."""

from __future__ import annotations

import re
from typing import Any

import pytest
import tvm
from tvm import s_tir, te, tirx
from tvm.relax import op

import tvm_layout_ext as tlx
from tests.models.running import TARGET, Scheduled, check, scheduled
from tests.programs.relaxed import relax_module
from tvm_layout_ext.ir.queries import nodes_in, thread_tag
from tvm_layout_ext.schedules import depthwise_conv2d
from tvm_layout_ext.schedules._windows import KNOBS, slide

HALF = "float16"


def depthwise(
    image: Any, channels: int, window: int | tuple[int, int], dtype: str = HALF, **attrs: Any
) -> tvm.IRModule:
    """A depthwise convolution of images NCHW, with a bias and SiLU, which reads its input twice."""

    def build(x: Any, w: Any, b: Any) -> Any:
        return op.nn.silu(op.add(op.nn.conv2d(x, w, groups=channels, **attrs), b))

    kernel = (window, window) if isinstance(window, int) else window
    weight, bias = (channels, 1, *kernel), (1, channels, 1, 1)
    return relax_module(build, x=image, w=weight, b=bias, dtype=dtype)


def pool(image: Any, how: Any, dtype: str = HALF, **attrs: Any) -> tvm.IRModule:
    """A pool of images NHWC."""
    return relax_module(lambda x: how(x, layout="NHWC", **attrs), image, dtype=dtype)


def windows_of(mod: tvm.IRModule) -> Scheduled:
    (one,) = (f for f in scheduled(mod) if f.choice.rule == "windows")
    return one


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("image", "window", "attrs"),
    [
        ((1, 16, 8, 8), 3, {"padding": 1}),
        ((2, 24, 14, 14), 7, {"padding": 3}),
        ((2, 24, 15, 16), 5, {"padding": 2, "strides": 2}),
        ((1, 16, 9, 10), 3, {}),
        ((3, 8, 7, 9), (1, 3), {"padding": [0, 1, 0, 1]}),
        ((1, 40, 6, 12), (5, 3), {"padding": [1, 0, 2, 2], "strides": [2, 1]}),
        ((2, 16, 10, 12), 3, {"padding": 2, "dilation": 2}),
        ((1, 8, 1, 16), (1, 4), {"padding": [0, 3, 0, 0]}),
        ((1, 8, 17, 17), 3, {"padding": 1}),
        ((1, 24, 5, 11), 5, {"padding": 2}),
    ],
)
@pytest.mark.parametrize("dtype", [HALF, "bfloat16", "float32"])
def test_a_depthwise_convolution_is_right(image: Any, window: Any, attrs: Any, dtype: str) -> None:
    check(windows_of(depthwise(image, image[1], window, dtype, **attrs)))


@pytest.mark.parametrize(
    ("how", "attrs"),
    [
        (op.nn.max_pool2d, {"pool_size": (3, 3), "strides": (2, 2), "padding": 1}),
        (op.nn.avg_pool2d, {"pool_size": (3, 3), "strides": (1, 1), "padding": 1}),
    ],
)
@pytest.mark.parametrize("dtype", [HALF, "bfloat16", "float32"])
def test_a_pool_is_right(how: Any, attrs: Any, dtype: str) -> None:
    check(windows_of(pool((2, 12, 16, 10), how, dtype, **attrs)))


def test_a_pool_of_16_bits_is_cut_by_what_memory_holds() -> None:
    """Means are of float32, and what is read of 2 bytes: a run of 64 is 16 threads of 2."""
    one = windows_of(pool((1, 16, 16, 64), op.nn.avg_pool2d, pool_size=(3, 3), padding=1))
    text = str(one.after)
    assert "% T.int64(16) * T.int64(2)" in text


def test_a_symbolic_batch_is_taken() -> None:
    check(windows_of(depthwise(("n", 8, 9, 8), 8, 3, padding=1)))


ANY = ("n", 16, "h", "w")


@pytest.mark.parametrize(
    "mod",
    [
        depthwise(ANY, 16, 3, padding=1),
        depthwise(ANY, 16, 5, padding=2, strides=2),
        depthwise(ANY, 16, 3, "float32"),
        depthwise(ANY, 16, 7, padding=[1, 2, 3, 4]),
        depthwise((2, 8, 12, "w"), 8, 3, padding=1, dilation=2),
        depthwise((2, 24, "h", 14), 24, 3, padding=1, strides=[2, 1]),
        depthwise((1, 8, "h", "h"), 8, 3, padding=1),
        pool(("n", "h", "w", 16), op.nn.max_pool2d, pool_size=(3, 3), strides=(2, 2), padding=1),
        pool(("n", "h", "w", 16), op.nn.avg_pool2d, pool_size=(3, 3), padding=1),
        pool((1, "h", "w", 4), op.nn.max_pool2d, "float32", pool_size=(5, 5), padding=2),
    ],
)
def test_any_height_and_width(mod: tvm.IRModule) -> None:
    one = windows_of(mod)
    check(one)
    assert one.choice.text.endswith("a thread.")


def test_blocks_of_any_image_are_full() -> None:
    """Rows are whole strips of 8, too, so that 16 threads of 2 channels make a block of 128."""
    one = windows_of(depthwise(("n", 64, "h", "w"), 64, 3, padding=1))
    (threads,) = {
        int(node.extent)
        for node in nodes_in(one.after.body, tirx.For)
        if thread_tag(node) == "threadIdx.x"
    }
    assert threads == 128


@pytest.mark.parametrize(
    "mod",
    [
        # Neighbours share no pixel, or there are none.
        pool((1, 8, 8, 8), op.nn.avg_pool2d, pool_size=(2, 2), strides=(2, 2)),
        depthwise((1, 8, 11, 3), 8, 3),
    ],
)
def test_others_have_other_rules(mod: tvm.IRModule) -> None:
    found = scheduled(mod)
    assert "windows" not in {one.choice.rule for one in found}
    check(found[-1])


@pytest.mark.parametrize(
    ("window", "columns", "text"), [(1, 8, "adds up no windows"), (3, 1, "shares no pixel")]
)
def test_what_cannot_slide_is_refused(window: int, columns: int, text: str) -> None:
    shape = (1, 4, 4, 8, 3, window)
    sch = s_tir.Schedule(te.create_prim_func(depthwise_conv2d.compute(shape, HALF)))
    with pytest.raises(tlx.ScheduleError, match=text):
        slide(sch, "sums", {one.name: one.default for one in KNOBS} | {"columns": columns})


def test_pixels_and_weights_are_loaded_once_a_row_of_the_window() -> None:
    # 8 results of two channels read 14 pixels, and 7 weights, each in one load of 4 bytes.
    one = windows_of(depthwise((1, 64, 16, 16), 64, 7, padding=3))
    with TARGET:
        func = one.after.with_attr("global_symbol", "main")
        source = tlx.cuda_source(tvm.IRModule({"main": func}))
    row = source[source.index("for (int ry") :]
    assert len(re.findall(r"= \*\(half2\*\)\(lv_ptr", row)) == 14
    assert len(re.findall(r"= \*\(half2\*\)\(lv1_ptr", row)) == 7
