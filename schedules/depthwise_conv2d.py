"""Convolution of each channel by a window of its own, of images stored NHWC and weights RSC.

Images are padded by ``R // 2`` rows and ``S // 2`` columns on each side. Sums are ``float32``, and
threads multiply and add: :func:`._windows.slide` is the schedule. Other strides, paddings and
dilations, and pools, go the same way by :class:`.DefaultSchedule`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import s_tir, tirx

from tvm_layout_ext import te
from tvm_layout_ext.gpu.hardware import Architecture
from tvm_layout_ext.schedules._windows import KNOBS, cut_of, slide
from tvm_layout_ext.tune.space.knobs import Config, Refusal
from tvm_layout_ext.tune.space.operator import Operator, Tolerance


def pixels(shape: Sequence[int], stride: int) -> tuple[int, int]:
    """Rows and columns of the result."""
    _, h, w, _, r, s = shape
    rows, columns = (
        (extent + 2 * (size // 2) - size) // stride + 1 for extent, size in ((h, r), (w, s))
    )
    return rows, columns


def compute(shape: Sequence[int], dtype: str, stride: int = 1) -> list[Any]:
    """What is computed; ``stride`` takes every so many pixels along rows and columns."""
    n, h, w, c, r, s = shape
    top, left = r // 2, s // 2
    A = te.placeholder((n, h, w, c), dtype, name="A")
    B = te.placeholder((r, s, c), dtype, name="B")

    def padded(i: Any, y: Any, x: Any, z: Any) -> Any:
        inside = tirx.all(top <= y, y < h + top, left <= x, x < w + left)
        return te.if_then_else(inside, A[i, y - top, x - left, z], tirx.const(0, dtype))

    zeros = te.compute((n, h + 2 * top, w + 2 * left, c), padded, name="zeros")
    rr, rs = (te.reduce_axis((0, e), name=i) for e, i in ((r, "rr"), (s, "rs")))

    def window(i: Any, y: Any, x: Any, z: Any) -> Any:
        at = zeros[i, y * stride + rr, x * stride + rs, z].astype("float32")
        return te.sum(at * B[rr, rs, z].astype("float32"), [rr, rs])

    out = (n, *pixels(shape, stride), c)
    sums = te.compute(out, window, name="sums")
    return [A, B, te.compute(out, lambda *i: sums[i].astype(dtype), name="C")]


def schedule(tensors: Sequence[Any], config: Config) -> s_tir.Schedule:
    """How: :func:`._windows.slide`."""
    sch = s_tir.Schedule(te.create_prim_func(list(tensors)).with_attr("global_symbol", "main"))
    slide(sch, "sums", config)
    return sch


def check(
    shape: tuple[int, ...], dtype: str, config: Config, architecture: Architecture
) -> Refusal | None:
    """Why a configuration is not legal, or None."""
    _, h, w, *_, s = shape
    if min(pixels(shape, 1)) < 1:
        return Refusal("no pixels", f"The window is larger than a padded image of {h}x{w}.")
    if s < 2 or cut_of(pixels(shape, 1)[1], config) < 2:
        return Refusal("no neighbours", f"Threads share no pixels of rows of {w}, windows of {s}.")
    return None


def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Add up a product for each place in the window, in ``float64``."""
    n, h, w, c = a.shape
    r, s, _ = b.shape
    wide = np.pad(a.astype(np.float64), ((0, 0), (r // 2, r // 2), (s // 2, s // 2), (0, 0)))
    p, q = pixels((n, h, w, c, r, s), 1)
    found = sum(
        wide[:, y : y + p, x : x + q] * b[y, x].astype(np.float64)
        for y in range(r)
        for x in range(s)
    )
    return np.asarray(found).astype(a.dtype)


def tolerance(shape: tuple[int, ...], dtype: str) -> Tolerance:
    """One rounding to the type of the result, and one of ``float32`` for each place."""
    eps = 2.0**-7 if dtype == "bfloat16" else float(np.finfo(dtype).eps)
    return Tolerance(rtol=eps, atol=2.0**-20 * prod(shape[-2:]))


OPERATOR = Operator(
    name="depthwise_conv2d",
    dims=("N", "H", "W", "C", "R", "S"),
    parallel=("N",),
    dtypes=("float16", "bfloat16", "float32"),
    knobs=KNOBS,
    compute=compute,
    schedule=schedule,
    check=check,
    reference=reference,
    flops=lambda shape: 2 * prod((shape[0], *pixels(shape, 1), *shape[3:])),
    tolerance=tolerance,
)
