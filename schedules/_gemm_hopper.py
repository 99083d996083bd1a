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

from tvm_layout_ext.gpu.hardware import LINE_BYTES, MULTIPROCESSORS, SECTOR_BYTES, Architecture
from tvm_layout_ext.gpu.warpgroups import MAP_PITCH_BYTES, PANEL_BYTES, WARPGROUP_ROWS
from tvm_layout_ext.schedules import _split_k
from tvm_layout_ext.tune.space.knobs import Config, Refusal

__all__ = ["NONE", "TILES", "check", "cycles", "fit", "multiply", "prune"]

NONE = "none"
#: Rows and columns of a tile; of fewer than 64 rows the columns go to the instruction's rows.
_TILES = (
    *((128, columns) for columns in (256, *range(240, 95, -16), 64)),
    *((256, columns) for columns in (128, 96, 64)),
    *((64, columns) for columns in (256, 128, 64)),
    *((rows, columns) for rows in (8, 16, 24, 32, 48) for columns in (128, 64)),
)
TILES = tuple(f"{rows}x{columns}" for rows, columns in _TILES)
_SIZES = dict(zip(TILES, _TILES, strict=True))
DTYPES = ("float16", "bfloat16")
#: Elements along K of a step: 128 bytes.
_DEPTH = 64
#: Bytes of shared memory for stages, beside two chunks of results a warpgroup and the barriers;
#: more than sixteen stages hide nothing more.
_SHARED, _CHUNKS, _MOST_STAGES = 231_000, 2 * 8192, 16
#: Products of a multiprocessor in a cycle, bytes that come to it out of L2 in one, and what a byte
#: costs even so: tiles of 128x128 did 691 TFLOPS where those of 128x256 did 750 (float16, 4096^3,
#: H200).
_PRODUCTS, _BYTES, _BYTE = 2048, 60, 0.003
#: What 128 bytes of a row cost whose place is a multiple of so many: 4000x4104x4056 took 1.3 times
#: as long as its products and whole lines would (547 TFLOPS, float16, H200).
_TORN = ((LINE_BYTES, 1.0), (SECTOR_BYTES, 1.2), (1, 1.6))
#: Bytes of partial sums that a cycle stores, beside those that the second kernel moves: eight
#: slices of 640x640x10240 took 22 us, four 20.
_WORKSPACE = 2600
#: How much longer a step takes whose panels of B are wider than the tile: 128x208 did 666 TFLOPS of
#: 4096x11008x4096 with B stored K x N, 763 with B stored N x K.
_PADDED = 1.1
#: Cycles until a kernel's first product, and sums that a cycle stores.
_START, _STORED = 4000, 16
#: How much longer than the best tile another may take to be worth trying.
_WORTH = 1.3
#: Share of the modelled cycles of one slice that more slices may take, or they are not the default.
_SAVED = 0.96
#: Steps that a slice of K has at least.
_LEAST_STEPS = 4


def multiply(sch: s_tir.Schedule, block: Any, config: Config) -> None:
    """Schedule a product, and what is computed from it element by element, for warpgroups."""
    rows, columns = tile = _SIZES[str(config["wgmma"])]
    swap = rows < WARPGROUP_ROWS
    if swap:
        rows, columns = columns, rows
    slices = int(config.get("split_k", 1))
    cut = sch.split_k(block, slices, multiple=_DEPTH) if slices > 1 else None
    multiples = (rows, columns, _DEPTH)
    product = cut.partial if cut else block
    tc = sch.use_tensor_core(product, "wgmma", multiples=multiples, swap=swap)
    if cut:
        for copy in cut.copies:
            sch.compute_inline(copy)
        _split_k.add_up(sch, cut.sum)
    warpgroups = _consumers(rows)
    m, warpgroup, piece = sch.split(tc.m, [None, warpgroups, rows // WARPGROUP_ROWS // warpgroups])
    sch.reorder(*tc.batch, m, tc.n, warpgroup, tc.k, piece)
    if tc.batch:
        sch.bind(sch.fuse(*tc.batch), "blockIdx.z")
    sch.rasterize(m, tc.n, int(config["group"]))
    sch.persistent(m)
    for operand in (tc.a, tc.b):
        sch.compute_at(operand, tc.k)
    sch.pipeline(tc.k, _stages(tile, tc.b_k_major), async_copy="tma")
    sch.specialize_warps(warpgroup)
    sch.reverse_compute_at(tc.result, tc.n)


def _consumers(rows: int) -> int:
    return min(2, rows // WARPGROUP_ROWS)


def _stages(tile: tuple[int, int], k_major: bool) -> int:
    """As many stages as shared memory holds; swapped results do not go through it."""
    rows, columns = max(tile), min(tile)
    if tile[0] >= WARPGROUP_ROWS:
        rows, columns = tile
    wide = columns if k_major else ceil(columns / _DEPTH) * _DEPTH
    left = _SHARED - (_CHUNKS * _consumers(rows) if tile[0] >= WARPGROUP_ROWS else 0)
    return min(_MOST_STAGES, left // ((rows + wide) * PANEL_BYTES))


def cycles(shape: tuple[int, ...], tile: str, b_transposed: bool, slices: int = 1) -> float:
    """Modelled cycles of a product by tiles: waves of blocks, each of steps and a store.

    A step takes its products at the tensor cores' rate, and no less than its bytes take out of L2,
    where rows that do not begin with a line cost more. More than one slice of K costs a launch, and
    the workspace. On an H200 it was within 10% of what large products took, and within 30% of small
    ones (``benchmarks/results/h200_hopper_gemm.json``), but for those that memory bounds.

    Examples
    --------
    >>> [round(cycles((4096, 4096, 4096), tile, True)) for tile in ("128x256", "128x128")]
    [312085, 340366]
    """
    m, n, k = shape
    rows, columns = _SIZES[tile]
    turns = ceil(ceil(m / rows) * ceil(n / columns) * slices / MULTIPROCESSORS)
    wide = columns if b_transposed else ceil(columns / _DEPTH) * _DEPTH
    loaded = rows * _row_bytes(k) + wide * _row_bytes(k if b_transposed else n)
    step = max(rows * columns * _DEPTH / _PRODUCTS, loaded / _BYTES) + loaded * _BYTE
    step *= _PADDED if wide > columns else 1
    found = _START + turns * (ceil(ceil(k / _DEPTH) / slices) * step + rows * columns / _STORED)
    workspace = _split_k.workspace_bytes(shape, slices) / _WORKSPACE
    return found + _split_k.second_kernel(shape, slices) + workspace


def _row_bytes(row: int) -> float:
    """What 128 bytes cost of rows of so many elements of 16 bits, one behind the other."""
    torn = next(cost for step, cost in _TORN if 2 * row % step == 0)
    return PANEL_BYTES * torn


def fit(
    shape: tuple[int, ...],
    dtype: str,
    architecture: Architecture,
    b_transposed: bool,
    a_transposed: bool,
) -> dict[str, Any]:
    """Take the tile of the fewest modelled cycles, or nothing where ``wgmma`` is not legal.

    Few rows are no reason for ``mma.sync``: of 24x8192x8192 it did 29 TFLOPS, ``wgmma`` 67, of
    64x4096x4096 46 and 191 (float16, H200, ``benchmarks/results/h200_hopper_gemm.json``).
    """
    if check(shape, dtype, architecture, b_transposed, a_transposed) is not None:
        return {}
    best, slices, _ = _best(shape, b_transposed)
    return {"wgmma": best, "split_k": slices}


@lru_cache(maxsize=64)
def _best(shape: tuple[int, ...], b_transposed: bool) -> tuple[str, int, float]:
    """The tile and the slices of the fewest modelled cycles, and these."""
    alone = min((cycles(shape, tile, b_transposed), 1, tile) for tile in TILES)
    apart = [
        (cycles(shape, tile, b_transposed, slices), slices, tile)
        for tile in TILES
        for slices in _split_k.SLICES[1:]
        if slices <= shape[2] // _DEPTH // _LEAST_STEPS
    ]
    least, slices, best = min(apart, default=alone)
    if least > _SAVED * alone[0]:
        least, slices, best = alone
    return best, slices, least


def prune(shape: tuple[int, ...], config: Config, b_transposed: bool) -> Refusal | None:
    """Why a tile is not worth trying with the other knobs, or None."""
    tile = config.get("wgmma", NONE)
    if any(config.get(name, value) != value for name, value in _others(shape)):
        return Refusal("wgmma once a group", "Tiles of wgmma are tried once for each group.")
    slices = int(config.get("split_k", 1))
    if slices > max(1, shape[2] // _DEPTH // _LEAST_STEPS):
        return Refusal(
            "short slices", f"{slices} slices have fewer than {_LEAST_STEPS} steps each."
        )
    if cycles(shape, tile, b_transposed, slices) > _WORTH * _best(shape, b_transposed)[2]:
        return Refusal("waves", f"Tiles of {tile} are modelled to take {_WORTH} times the best.")
    return None


@lru_cache(maxsize=64)
def _others(shape: tuple[int, ...]) -> tuple[tuple[str, Any], ...]:
    """The other knobs' values with which tiles are tried: the nearest to the defaults."""
    m, n = (128 if extent >= 64 else 64 for extent in shape[:2])
    stages = min(4, max(2, ceil(shape[2] / 32)))
    moved = {"cluster": 1, "swizzle": "auto", "prefetch": 1, "tile_k": 32}
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
