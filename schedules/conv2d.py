"""Convolution of images stored NHWC with weights stored KRSC, as a product on tensor cores.

Rows of the product are pixels of the result, and its terms channels of the places in a window. On
``sm_90a`` warpgroups multiply, and TMA copies boxes of pixels for each place, which it fills up
with zeros outside of the image; elsewhere ``mma.sync`` multiplies what ``cp.async`` copied.
:func:`.gemm.multiply` is the schedule of either.

Few pixels of many channels have few tiles; knob ``split_k`` lets the blocks of a cluster share the
steps of each.

Images are padded by ``R // 2`` rows and ``S // 2`` columns on each side, as in ResNets. Functions
with other paddings, strides and dilations go the same way, by ``sch.use_tensor_core`` or
:class:`.DefaultSchedule`; :mod:`.conv2d_strided` takes every second pixel. Sums are ``float32``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import ceil, prod
from typing import Any

import numpy as np
from tvm import s_tir, tirx

from tvm_layout_ext import te
from tvm_layout_ext.gpu.halos import best_halo
from tvm_layout_ext.gpu.hardware import Architecture
from tvm_layout_ext.gpu.warpgroups import MAP_PITCH_BYTES
from tvm_layout_ext.schedules import _gemm_hopper, gemm
from tvm_layout_ext.schedules._gemm_hopper import NONE
from tvm_layout_ext.schedules._gemm_types import tolerance
from tvm_layout_ext.schedules._generic import unbound
from tvm_layout_ext.tune.space.knobs import Config, Refusal, knob
from tvm_layout_ext.tune.space.operator import Operator

#: Tiles of two warps by two, which copy windows without spills.
KNOBS = (
    knob("tile_m", (64, 128), default=128),
    knob("tile_n", (64, 128), default=64),
    knob("tile_k", (32, 64), default=64),
    knob("stages", (2, 3, 4), default=3),
    knob("group", (1, 8), default=8),
    knob("wgmma", (NONE, *_gemm_hopper.TILES_OF_WINDOWS)),
    # By wgmma alone; the blocks of a cluster add them up.
    knob("split_k", _gemm_hopper.OF_WINDOWS, before=1, apart=True),
)
_OTHERS = gemm.OPERATOR.default_config()


def pixels(shape: Sequence[int], stride: int) -> tuple[int, int]:
    """Rows and columns of the result."""
    _, h, w, _, _, r, s = shape
    rows, columns = (
        (extent + 2 * (size // 2) - size) // stride + 1 for extent, size in ((h, r), (w, s))
    )
    return rows, columns


def sizes(shape: Sequence[int], stride: int) -> tuple[int, int, int]:
    """Rows, columns and terms of the product."""
    n, _, _, c, k, r, s = shape
    p, q = pixels(shape, stride)
    return n * p * q, k, r * s * c


def compute(shape: Sequence[int], dtype: str, stride: int) -> list[Any]:
    """What is computed; images are not padded for windows of one pixel."""
    n, h, w, c, k, r, s = shape
    top, left = r // 2, s // 2
    A = te.placeholder((n, h, w, c), dtype, name="A")
    B = te.placeholder((k, r, s, c), dtype, name="B")

    def padded(i: Any, y: Any, x: Any, z: Any) -> Any:
        inside = tirx.all(top <= y, y < h + top, left <= x, x < w + left)
        return te.if_then_else(inside, A[i, y - top, x - left, z], tirx.const(0, dtype))

    zeros = A
    if top or left:
        zeros = te.compute((n, h + 2 * top, w + 2 * left, c), padded, name="zeros")
    rr, rs, rc = (te.reduce_axis((0, e), name=i) for e, i in ((r, "rr"), (s, "rs"), (c, "rc")))

    def product(i: Any, y: Any, x: Any, f: Any) -> Any:
        at = zeros[i, y * stride + rr, x * stride + rs, rc]
        return te.sum(at.astype("float32") * B[f, rr, rs, rc].astype("float32"), [rr, rs, rc])

    out = (n, *pixels(shape, stride), k)
    sums = te.compute(out, product, name="product")
    return [A, B, te.compute(out, lambda *i: sums[i].astype(dtype), name="C")]


def _full(config: Config) -> dict[str, Any]:
    """A configuration of the product, whose slices of K are a cluster."""
    return {**_OTHERS, **config, "cluster": config.get("split_k", 1)}


def schedule(tensors: Sequence[Any], config: Config) -> s_tir.Schedule:
    """How: :func:`.gemm.multiply`."""
    sch = s_tir.Schedule(te.create_prim_func(list(tensors)).with_attr("global_symbol", "main"))
    gemm.multiply(sch, "product", _full(config))
    for block in sorted(unbound(sch)):
        sch.auto_coalesce(block)
    return sch


def check(
    shape: tuple[int, ...], dtype: str, config: Config, architecture: Architecture, stride: int
) -> Refusal | None:
    """Why a configuration is not legal, or None."""
    _, h, w, c, *_ = shape
    if min(pixels(shape, stride)) < 1:
        return Refusal("no pixels", f"The window is larger than a padded image of {h}x{w}.")
    size = np.dtype(dtype).itemsize
    if config["wgmma"] != NONE and c * size % MAP_PITCH_BYTES:
        return Refusal(
            "row pitch",
            f"Pixels are {c * size} bytes apart; TMA needs a multiple of {MAP_PITCH_BYTES}.",
        )
    found, full = sizes(shape, stride), _full(config)
    if config["wgmma"] == NONE and full["split_k"] > 1:
        return Refusal(
            "slices", f"{full['split_k']} slices of a window are added up by wgmma only."
        )
    if refused := _gemm_hopper.check_windows(found, c, dtype, int(full["split_k"])):
        return refused
    return gemm.check(found, dtype, full, architecture, b_transposed=True)


def prune(
    shape: tuple[int, ...],
    dtype: str,
    config: Config,
    _: Architecture,
    usual: Config,
    stride: int,
) -> Refusal | None:
    """Why a configuration is not worth trying, or None."""
    if config["wgmma"] == NONE:
        return None
    if any(config[name] != value for name, value in usual.items()):
        return Refusal("wgmma once a group", "Tiles of wgmma are tried once for each group.")
    tile, slices = str(config["wgmma"]), int(config.get("split_k", 1))
    found = sizes(shape, stride)
    if slices > 1 and not _gemm_hopper.is_worth_a_window(found, shape[3], dtype, tile, slices):
        return Refusal("slices", f"{slices} slices of K are modelled to take longer than one.")
    return None


def fit(
    shape: tuple[int, ...], dtype: str, config: Config, architecture: Architecture, stride: int
) -> dict[str, Any]:
    """The tile of warpgroups where they are legal, and else one that few pixels fill."""
    rows, *_ = found = sizes(shape, stride)
    halo = best_halo((shape[0], *pixels(shape, stride)), shape[5:], ((1, 1), (2, 1)))
    around = halo[1] if halo and stride == 1 else None
    tile = _gemm_hopper.fit_windows(found, shape[3], dtype, True, halo=around)
    wished = {"wgmma": tile.get("wgmma", NONE), "split_k": tile.get("split_k", 1)}
    refused = check(shape, dtype, {**config, **wished}, architecture, stride)
    return {"tile_m": min(int(config["tile_m"]), 64 * ceil(rows / 64))} if refused else wished


def inputs(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> list[np.ndarray]:
    """Normally distributed images and weights."""
    n, h, w, c, k, r, s = shape
    drawn = (rng.standard_normal(one, np.float32) for one in ((n, h, w, c), (k, r, s, c)))
    return [one.astype(dtype) for one in drawn]


def reference(a: np.ndarray, b: np.ndarray, stride: int) -> np.ndarray:
    """Add up a product for each place in the window, in ``float64``."""
    _, r, s, _ = b.shape
    p, q = pixels((*a.shape, *b.shape[:3]), stride)
    top, left = r // 2, s // 2
    wide = np.pad(a.astype(np.float64), ((0, 0), (top, top), (left, left), (0, 0)))
    rows, columns = (stride * (n - 1) + 1 for n in (p, q))
    found = sum(
        wide[:, y : y + rows : stride, x : x + columns : stride] @ b[:, y, x].T.astype(np.float64)
        for y in range(r)
        for x in range(s)
    )
    return np.asarray(found).astype(a.dtype)


def traffic(shape: tuple[int, ...], dtype: str, stride: int) -> int:
    """Bytes of the image, the weights and the result."""
    n, h, w, c, k, *_ = shape
    m, _, terms = sizes(shape, stride)
    return (n * h * w * c + k * terms + m * k) * np.dtype(dtype).itemsize


def operator(name: str, stride: int) -> Operator:
    """Make the operator of a stride."""
    apart = ("wgmma", "group", "split_k")
    usual = {one.name: one.default for one in KNOBS if one.name not in apart}
    return Operator(
        name=name,
        dims=("N", "H", "W", "C", "K", "R", "S"),
        parallel=("N",),
        dtypes=("float16", "bfloat16"),
        knobs=KNOBS,
        compute=partial(compute, stride=stride),
        schedule=schedule,
        check=partial(check, stride=stride),
        inputs=inputs,
        reference=partial(reference, stride=stride),
        flops=lambda shape: 2 * prod(sizes(shape, stride)),
        traffic=partial(traffic, stride=stride),
        tolerance=lambda shape, dtype: tolerance(sizes(shape, stride), dtype),
        prune=partial(prune, usual=usual, stride=stride),
        fit=partial(fit, stride=stride),
    )


OPERATOR = operator("conv2d", stride=1)
