"""The matrix product by warpgroups: TMA, mbarriers and ``wgmma``, on ``sm_90a``.

A value of knob ``wgmma`` is a tile of a block; all else follows from it. One or two warpgroups
multiply, another copies as many stages ahead as shared memory holds, and as many blocks as there
are multiprocessors take tile after tile. Tiles of any width fit the waves of a size: of 4096 x
11008, 128x256 fill 0.95 of eleven waves, and 128x168 0.99 of sixteen.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np
from tvm import s_tir

from tvm_layout_ext.gpu.hardware import MULTIPROCESSORS, SECTOR_BYTES, Architecture
from tvm_layout_ext.gpu.warpgroups import MAP_PITCH_BYTES, PANEL_BYTES, WARPGROUP_ROWS
from tvm_layout_ext.schedules import _split_k
from tvm_layout_ext.tune.space.knobs import Config, Refusal

__all__ = ["NONE", "TILES", "check", "cycles", "fit", "multiply", "prune"]

NONE = "none"
#: Rows and columns of a tile.
_TILES = (
    *((128, columns) for columns in (256, *range(240, 95, -16), 64)),
    *((256, columns) for columns in (128, 96, 64)),
    *((64, columns) for columns in (256, 128, 64)),
)
TILES = tuple(f"{rows}x{columns}" for rows, columns in _TILES)
_SIZES = dict(zip(TILES, _TILES, strict=True))
DTYPES = ("float16", "bfloat16")
#: Elements along K of a step: 128 bytes.
_DEPTH = 64
#: Bytes of shared memory for stages, beside two chunks of results a warpgroup and the barriers;
#: more than eight stages hide nothing more.
_SHARED, _CHUNKS, _MOST_STAGES = 231_000, 2 * 8192, 8
#: Products of a multiprocessor in a cycle, bytes that come to it out of L2 in one, and what a byte
#: costs even so: tiles of 128x128 did 691 TFLOPS where those of 128x256 did 750 (float16, 4096^3,
#: H200).
_PRODUCTS, _BYTES, _BYTE = 2048, 60, 0.003
#: Cycles until a kernel's first product, and sums that a cycle stores.
_START, _STORED = 4000, 16
#: How much longer than the best tile another may take to be worth trying.
_WORTH = 1.3


def multiply(sch: s_tir.Schedule, block: Any, config: Config) -> None:
    """Schedule a product, and what is computed from it element by element, for warpgroups."""
    rows, columns = _SIZES[str(config["wgmma"])]
    tc = sch.use_tensor_core(block, "wgmma", multiples=(rows, columns, _DEPTH))
    warpgroups = _consumers(rows)
    m, warpgroup, piece = sch.split(tc.m, [None, warpgroups, rows // WARPGROUP_ROWS // warpgroups])
    sch.reorder(m, tc.n, warpgroup, tc.k, piece)
    sch.rasterize(m, tc.n, int(config["group"]))
    sch.persistent(m)
    for operand in (tc.a, tc.b):
        sch.compute_at(operand, tc.k)
    sch.pipeline(tc.k, _stages(rows, columns, tc.b_k_major), async_copy="tma")
    sch.specialize_warps(warpgroup)
    sch.reverse_compute_at(tc.result, tc.n)


def _consumers(rows: int) -> int:
    return min(2, rows // WARPGROUP_ROWS)


def _stages(rows: int, columns: int, k_major: bool) -> int:
    """As many stages as shared memory holds."""
    wide = columns if k_major else ceil(columns / _DEPTH) * _DEPTH
    left = _SHARED - _CHUNKS * _consumers(rows)
    return min(_MOST_STAGES, left // ((rows + wide) * PANEL_BYTES))


def cycles(shape: tuple[int, ...], tile: str, b_transposed: bool) -> float:
    """Modelled cycles of a product by tiles: waves of blocks, each of steps and a store.

    A step takes its products at the tensor cores' rate, and no less than its bytes take out of L2;
    rows that begin inside a sector take a sector more for each 128 bytes. A model, not measured.

    Examples
    --------
    >>> [cycles((4096, 4096, 4096), tile, True) for tile in ("128x256", "128x128")]
    [312084.8, 340366.3]
    """
    m, n, k = shape
    rows, columns = _SIZES[tile]
    turns = ceil(ceil(m / rows) * ceil(n / columns) / MULTIPROCESSORS)
    pitches = (2 * k, 2 * (k if b_transposed else n))
    torn = sum(pitch % SECTOR_BYTES > 0 for pitch in pitches) / 2
    wide = columns if b_transposed else ceil(columns / _DEPTH) * _DEPTH
    loaded = (rows + wide) * PANEL_BYTES * (1 + torn * SECTOR_BYTES / PANEL_BYTES)
    step = max(rows * columns * _DEPTH / _PRODUCTS, loaded / _BYTES) + loaded * _BYTE
    return _START + turns * (ceil(k / _DEPTH) * step + rows * columns / _STORED)


def fit(
    shape: tuple[int, ...],
    dtype: str,
    config: Config,
    architecture: Architecture,
    b_transposed: bool,
    a_transposed: bool,
) -> dict[str, Any]:
    """Take the tile of the fewest modelled cycles, where that is fewer than ``mma.sync`` takes."""
    if check(shape, dtype, architecture, b_transposed, a_transposed) is not None:
        return {}
    best, least = _best(shape, b_transposed)
    if least > _split_k.cycles(shape, config, int(config.get("split_k", 1)), dtype):
        return {}
    return {"wgmma": best, "split_k": 1}


@lru_cache(maxsize=64)
def _best(shape: tuple[int, ...], b_transposed: bool) -> tuple[str, float]:
    """The tile of the fewest modelled cycles, and these."""
    best = min(TILES, key=lambda tile: cycles(shape, tile, b_transposed))
    return best, cycles(shape, best, b_transposed)


def prune(shape: tuple[int, ...], config: Config, b_transposed: bool) -> Refusal | None:
    """Why a tile is not worth trying with the other knobs, or None."""
    tile = config.get("wgmma", NONE)
    if any(config.get(name, value) != value for name, value in _others(shape)):
        return Refusal("wgmma once a group", "Tiles of wgmma are tried once for each group.")
    if cycles(shape, tile, b_transposed) > _WORTH * _best(shape, b_transposed)[1]:
        return Refusal("waves", f"Tiles of {tile} are modelled to take {_WORTH} times the best.")
    return None


@lru_cache(maxsize=64)
def _others(shape: tuple[int, ...]) -> tuple[tuple[str, Any], ...]:
    """The other knobs' values with which tiles are tried: the nearest to the defaults."""
    m, n = (128 if extent >= 64 else 64 for extent in shape[:2])
    stages = min(4, max(2, ceil(shape[2] / 32)))
    moved = {"split_k": 1, "cluster": 1, "swizzle": "auto", "prefetch": 1, "tile_k": 32}
    tile = {"tile_m": m, "tile_n": n, "warps_m": 2, "warps_n": 2, "stages": stages}
    return tuple((moved | tile).items())


def check(
    shape: tuple[int, ...],
    dtype: str,
    architecture: Architecture,
    b_transposed: bool,
    a_transposed: bool,
) -> Refusal | None:
    """Why a product cannot be computed by warpgroups, or None."""
    if architecture.name != "sm_90a":
        return Refusal("no wgmma", f"{architecture.name} has no wgmma; sm_90a has.")
    if dtype not in DTYPES:
        return Refusal("no wgmma", f"Warpgroups multiply {' and '.join(DTYPES)} here, not {dtype}.")
    m, n, k = shape
    size = np.dtype(dtype).itemsize
    for name, row in (("A", m if a_transposed else k), ("B", k if b_transposed else n)):
        if row * size % MAP_PITCH_BYTES:
            return Refusal(
                "row pitch",
                f"Rows of {name} are {row * size} bytes apart; TMA needs a multiple of "
                f"{MAP_PITCH_BYTES}.",
            )
    return None
