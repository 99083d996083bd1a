"""The GEMM's defaults that depend on type, layout and shape."""

from __future__ import annotations

from math import ceil

import numpy as np

from tvm_layout_ext.gpu.hardware import LINE_BYTES, MULTIPROCESSORS, Architecture
from tvm_layout_ext.schedules import _split_k
from tvm_layout_ext.schedules._gemm_space import prune
from tvm_layout_ext.tune.space.knobs import Config

__all__ = ["fit"]

#: Share of the multiprocessors that tiles of 256x128 must fill to be the default: at 1024^3, 32 of
#: them do 99 TFLOPS of float16 and 64 of 128x128 172; at 2048^3, 128 do 418 and 256 do 407
#: (``benchmarks/results/h200_gemm.json``).
FULL = 0.9


def fit(
    shape: tuple[int, ...],
    dtype: str,
    config: Config,
    architecture: Architecture,
    b_transposed: bool = False,
) -> dict[str, int]:
    """Choose the defaults that depend on type and shape: tiles by eight warps, and slices of K.

    Eight warps of 64x32 without prefetch are what did best for fp8 at 8192^3 on an H200 (305
    TFLOPS, ``benchmarks/results/h200_gemm.json``); four would spill. Tiles of 256x128 and 128 bytes
    of K did 923 of int8 at 8192^3 and 237 of tf32 at 4096^3 there, both A @ B^T, those of 128x128
    786 and 186. They are taken for that layout where they fill the machine.
    """
    taken: dict[str, int] = {}
    if "float8" in dtype and min(shape[:2]) >= 128:
        taken = {"tile_m": 128, "tile_n": 128, "warps_m": 2, "warps_n": 4, "prefetch": 0}
    elif b_transposed and dtype in ("float32", "int8", "uint8"):
        taken = _large(shape, dtype, config, architecture)
    slices = _split_k.fit(shape, dtype, dict(config) | taken, architecture)
    # Slices are tried with prefetch only.
    return slices if slices["split_k"] > 1 else taken | slices


def _large(
    shape: tuple[int, ...], dtype: str, config: Config, architecture: Architecture
) -> dict[str, int]:
    """Tiles of 256x128 in the first groups worth trying; none if they do not fill the machine."""
    if ceil(shape[0] / 256) * ceil(shape[1] / 128) < FULL * MULTIPROCESSORS:
        return {}
    depth = LINE_BYTES // np.dtype(dtype).itemsize
    large = {"tile_m": 256, "tile_n": 128, "tile_k": depth, "warps_m": 4, "warps_n": 2}
    for group in (8, 4, 16, 1):
        found = large | {"stages": 3, "prefetch": 1, "group": group}
        if prune(shape, dtype, {**config, **found}, architecture) is None:
            return found
    return {}
