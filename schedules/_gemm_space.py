"""Which tilings of the GEMM are legal as grids, worth trying, and taken by default."""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np

from tvm_layout_ext.gpu.hardware import (
    CLUSTERS_SINCE,
    LINE_BYTES,
    MULTIPROCESSORS,
    WARP_SIZE,
    Architecture,
)
from tvm_layout_ext.schedules import _gemm_hopper, _split_k
from tvm_layout_ext.tune.space.knobs import Config, Refusal

__all__ = ["check_grid", "fit", "prune"]

#: One warp leaves three of a multiprocessor's four schedulers to other blocks.
LEAST_WARPS = 2
#: Sums of a thread below which fragments' loads outweigh products, unless the grid is small.
LEAST_SUMS = 64
#: Bytes on their way to a multiprocessor that hide all latency: 4.8 TB/s / 132 for a microsecond
#: are 36 KB, and tiles come out of L2 twice as fast.
ENOUGH_IN_FLIGHT = 98_304
#: Least K of a tile, in bytes: shorter rows than 64 bytes tear 128-byte lines into four.
LEAST_ROW_BYTES = 64
#: How much more than the least a group of blocks may read from memory.
READS = 1.25
#: Half of an H200's L2 cache: it has two parts, and each may hold the same line.
L2_BYTES = 25_000_000
#: Share of the rounds of the whole sums that those of slices may take, and their least steps.
SHORTER = 0.95
LEAST_STEPS = 4
#: Share of the multiprocessors that tiles of 256x128 must fill to be the default: at 1024^3, 32 of
#: them do 99 TFLOPS of float16 and 64 of 128x128 172; at 2048^3, 128 do 418 and 256 do 407
#: (``benchmarks/results/h200_gemm.json``).
FULL = 0.9


def prune(
    shape: tuple[int, ...],
    dtype: str,
    config: Config,
    architecture: Architecture,
    b_transposed: bool = False,
    may_swap: bool = True,
) -> Refusal | None:
    """Why a configuration is not worth trying, or None.

    ``may_swap`` is as of :func:`._gemm_hopper.fit`.
    """
    if config.get("wgmma", _gemm_hopper.NONE) != _gemm_hopper.NONE:
        return _gemm_hopper.prune(shape, dtype, config, b_transposed, may_swap)
    size = np.dtype(dtype).itemsize
    tile_m, tile_n, tile_k = config["tile_m"], config["tile_n"], config["tile_k"]
    slices = config.get("split_k", 1)
    return (
        _placed(shape, config)
        or _modes(size, tile_k, config["swizzle"])
        or _warps(shape, tile_m, tile_n, config["warps_m"], config["warps_n"], slices)
        or _depth(shape, size, tile_m, tile_n, tile_k, config["stages"], slices)
        or _group(shape, size, tile_m, tile_n, config["group"])
    )


def _placed(shape: tuple[int, ...], v: Config) -> Refusal | None:
    """Slices and clusters only move work; they are tried where they can tell, and once a tiling."""
    slices, cluster = v.get("split_k", 1), v.get("cluster", 1)
    if slices == cluster == 1:
        return None
    if v["swizzle"] != "auto" or v["prefetch"] != 1:
        return Refusal(
            "moved once a tiling",
            f"{slices} slices in clusters of {cluster} are tried with swizzle auto and prefetch 1.",
        )
    if slices == 1:
        return None
    if cluster > 1:
        return Refusal("slices in clusters", f"{slices} slices are tried without clusters.")
    tiles = ceil(shape[0] / v["tile_m"]) * ceil(shape[1] / v["tile_n"])
    alone, apart = ceil(tiles / MULTIPROCESSORS), ceil(tiles * slices / MULTIPROCESSORS)
    if apart > SHORTER * slices * alone:
        return Refusal(
            "slices of a full grid",
            f"{tiles} tiles make {alone} rounds of {MULTIPROCESSORS} multiprocessors, and {slices} "
            f"slices of them {apart} of 1/{slices}.",
        )
    return _slices(ceil(shape[2] / v["tile_k"]), slices)


def _slices(steps: int, slices: int) -> Refusal | None:
    each = ceil(steps / slices)
    if each < LEAST_STEPS:
        return Refusal("short slices", f"{slices} slices of {steps} steps have {each} steps each.")
    if (slices - 1) * each >= steps:
        full = ceil(steps / each)
        return Refusal("empty slices", f"{full} of {slices} slices hold all {steps} steps.")
    return None


# Each rule reads few of the knobs, and tens of thousands of combinations repeat their values.
@lru_cache(maxsize=4096)
def _warps(
    shape: tuple[int, ...], tile_m: int, tile_n: int, warps_m: int, warps_n: int, slices: int
) -> Refusal | None:
    warps = warps_m * warps_n
    if warps < LEAST_WARPS:
        return Refusal("one warp", "A block of one warp has none to compute while another waits.")
    tile = tile_m // warps_m, tile_n // warps_n
    ways = ((m, warps // m) for m in (1, 2, 4) if warps // m in (1, 2, 4))
    least = min(
        tile_m // m + tile_n // n for m, n in ways if tile_m // m % 16 == tile_n // n % 16 == 0
    )
    if sum(tile) > least:
        return Refusal(
            "lopsided warps",
            f"Warps of {tile[0]}x{tile[1]} load {sum(tile)} rows a step; {least} are possible.",
        )
    sums = tile[0] * tile[1] // WARP_SIZE
    blocks = ceil(shape[0] / tile_m) * ceil(shape[1] / tile_n) * slices
    if sums < LEAST_SUMS and blocks > 2 * MULTIPROCESSORS:
        return Refusal(
            "small warp tile", f"{sums} sums a thread in {blocks} blocks; larger tiles load less."
        )
    return None


@lru_cache(maxsize=4096)
def _depth(
    shape: tuple[int, ...],
    size: int,
    tile_m: int,
    tile_n: int,
    tile_k: int,
    stages: int,
    slices: int,
) -> Refusal | None:
    if tile_k * size < LEAST_ROW_BYTES:
        return Refusal("short rows", f"Rows of {tile_k * size} bytes tear lines of 128.")
    steps = ceil(ceil(shape[2] / tile_k) / slices)
    if stages == 1 and steps > 1:
        return Refusal("no pipeline", "One stage hides no latency; two do, and nearly always fit.")
    if stages > max(2, steps):
        return Refusal("deeper than K", f"{stages} stages for {steps} steps along K.")
    step = (tile_m + tile_n) * tile_k * size
    if stages > 2 and (stages - 2) * step >= ENOUGH_IN_FLIGHT:
        return Refusal(
            "deeper than needed",
            f"{(stages - 2) * step:,} bytes are on their way with a stage less.",
        )
    return None


@lru_cache(maxsize=4096)
def _group(
    shape: tuple[int, ...], size: int, tile_m: int, tile_n: int, group: int
) -> Refusal | None:
    rows, columns = ceil(shape[0] / tile_m), ceil(shape[1] / tile_n)
    if rows * columns <= MULTIPROCESSORS or shape[2] * (shape[0] + shape[1]) * size <= L2_BYTES:
        if group != 1:
            return Refusal("group without effect", "All operands stay in the L2 cache anyway.")
        return None
    reads = {g: _read(g, rows, tile_m, tile_n) for g in (1, 4, 8, 16)}
    if reads[group] > READS * min(reads.values()):
        return Refusal(
            "group reads more",
            f"Groups of {group} read {reads[group]:,} rows a wave; "
            f"{min(reads.values()):,} are possible.",
        )
    if any(reads[g] <= reads[group] for g in reads if g < group):
        return Refusal("group too high", f"Groups of fewer rows than {group} read as little.")
    return None


def _read(group: int, rows: int, tile_m: int, tile_n: int) -> int:
    """Rows of A and columns of B that the blocks of a wave read."""
    high = min(group, rows)
    return high * tile_m + ceil(MULTIPROCESSORS / high) * tile_n


@lru_cache(maxsize=256)
def _modes(size: int, tile_k: int, mode: str) -> Refusal | None:
    if mode == "xor":
        return Refusal("same as auto", "Auto takes the XOR swizzle wherever that is no worse.")
    if mode == "pad" and tile_k * size < LINE_BYTES:
        return Refusal(
            "padding tears lines",
            f"Padded rows of {tile_k * size} bytes take more wavefronts as they are copied.",
        )
    return None


def check_grid(
    shape: tuple[int, ...], v: dict[str, int], architecture: Architecture
) -> Refusal | None:
    """Why a grid cannot be launched so, or None."""
    slices, cluster = v.get("split_k", 1), v.get("cluster", 1)
    if slices > (steps := ceil(shape[2] / v["tile_k"])):
        return Refusal("more slices than steps", f"{slices} slices of {steps} steps along K.")
    if cluster > 1 and architecture.capability < CLUSTERS_SINCE:
        return Refusal("no clusters", f"{architecture.name} launches no clusters of blocks.")
    if (columns := ceil(shape[1] / v["tile_n"])) % cluster:
        return Refusal(
            "grid of no whole clusters",
            f"{columns} columns of tiles are no multiple of a cluster of {cluster}.",
        )
    return None


def fit(
    shape: tuple[int, ...],
    dtype: str,
    config: Config,
    architecture: Architecture,
    b_transposed: bool = False,
    a_transposed: bool = False,
    is_plain: bool = True,
    after: float = 0,
    may_swap: bool = True,
) -> dict[str, Any]:
    """Choose the defaults that depend on type and shape: ``wgmma``, tiles by eight warps, slices.

    ``after`` and ``may_swap`` are as of :func:`._gemm_hopper.fit`.

    Eight warps of 64x32 without prefetch are what did best for fp8 at 8192^3 on an H200 (305
    TFLOPS, ``benchmarks/results/h200_gemm.json``); four would spill. Tiles of 256x128 and 128 bytes
    of K did 923 of int8 at 8192^3 and 237 of tf32 at 4096^3 there, both A @ B^T, those of 128x128
    786 and 186. They are taken for that layout where they fill the machine.
    """
    if is_plain and (
        found := _gemm_hopper.fit(
            shape, dtype, architecture, b_transposed, a_transposed, after, may_swap
        )
    ):
        return found
    taken: dict[str, Any] = {}
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
