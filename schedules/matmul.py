"""Matrix product ``C = A @ B`` of ``float32`` in full, without tensor cores.

A block computes a tile of C, in steps along K: its threads copy a tile of A and one of B into
shared memory, ``stages - 1`` steps ahead, and each multiplies its rows and columns, which stay in
registers. :mod:`.thread_tiles` says how they lie so that no load meets a bank twice. Knob
``split_k`` cuts K into slices, blocks of their own each, which a second kernel adds up in order
(:mod:`._split_k`).

:func:`multiply` takes any layout of the operands, batches, ragged sizes and whatever is computed
from the product element by element; :func:`fitting` chooses tile and slices by a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import Any

import numpy as np
from tvm import s_tir

from tvm_layout_ext import te
from tvm_layout_ext.gpu.hardware import MULTIPROCESSORS, WARP_SIZE, Architecture
from tvm_layout_ext.schedule.thread_tiles import LANES
from tvm_layout_ext.schedules._split_k import add_up, second_kernel
from tvm_layout_ext.tune.space.knobs import Config, Refusal, knob
from tvm_layout_ext.tune.space.operator import Operator, Tolerance

#: Elements between rows of a tile, where neighbours lie along K.
_PAD = 4
#: Products that a multiprocessor does in a cycle, and bytes that memory gives all of them.
_PRODUCTS, _MEMORY = 128, 2_300
#: Warps that wait for copies and barriers while others multiply, and the share of products where a
#: multiprocessor has no second block to go on with. Both, and the shares of tiles, were fitted to
#: 14 shapes, each by several tiles (``benchmarks/results/h200_float32.json``).
_WAITING, _ALONE = 3, 0.85
#: Warps that fit a multiprocessor, by the registers of a thread with so many sums.
_RESIDENT = {64: 16, 32: 28}
#: Cycles until the first tiles of a block are there.
_FIRST = 5_000
#: Tiles by rows and columns of a block, those of a thread, terms of a step and copies of the tile,
#: with the share of all products that many warps reach.
TILES = (
    ((128, 128, 8, 8, 16, 3), 0.95),
    ((64, 64, 8, 8, 16, 3), 0.9),
    ((32, 64, 4, 8, 16, 3), 0.67),
    ((16, 64, 4, 8, 16, 3), 0.54),
)
#: Slices of K, for fuller waves also others than powers of two.
SLICES = (1, 2, 3, 4, 5, 6, 8, 12, 16)
#: Shares of the time that slices take beside what is modelled, and each of them.
_SLICED, _SLICE = 0.1, 0.02
#: Terms of a slice that pay for its start.
_LEAST_TERMS = 256
#: Of the numbers of a tile, and of its slices.
NAMES = ("tile_m", "tile_n", "rows", "columns", "tile_k", "stages", "split_k")

KNOBS = (
    knob("tile_m", (16, 32, 64, 128), default=64),
    knob("tile_n", (32, 64, 128, 256), default=64),
    knob("tile_k", (8, 16, 32), default=16),
    knob("rows", (4, 8), default=8),
    knob("columns", (4, 8), default=8),
    knob("stages", (1, 2, 3, 4), default=3),
    knob("split_k", SLICES, default=1),
)


def fitting(sizes: tuple[int, int, int], batch: int = 1, b_k_major: bool = False) -> dict[str, int]:
    """Choose the tile and the slices of K of the fewest modelled cycles.

    Tiles of 128x128 are for B stored K x N: of both operands along K, whose elements are copied one
    by one, 4096x4096x4096 takes 3.49 ms by them and 3.26 by 64x64 (H200).
    """
    tiles = TILES[1:] if b_k_major else TILES
    most = 1 if batch > 1 else max(1, sizes[2] // _LEAST_TERMS)
    ways = [(*tile, n) for tile in tiles for n in SLICES if n <= most]
    tile, _, slices = min(ways, key=lambda way: cycles(sizes, batch, *way))
    return narrowed(dict(zip(NAMES, (*tile, slices), strict=True)), sizes[1])


def narrowed(config: dict[str, int], columns: Any) -> dict[str, int]:
    """Halve the columns of a tile that has twice those of the product.

    Half of the lanes would store nothing, by a condition on the thread alone. TVM then simplifies
    the places that they store, takes these for others than those that they have computed, and
    keeps the sums of all lanes in each: of symbolic rows it knows no size for them.
    """
    if columns != config["tile_n"] // 2:
        return config
    halves = {name: config[name] // 2 for name in ("tile_n", "columns")}
    return config | halves


def cycles(
    sizes: tuple[int, int, int], batch: int, tile: tuple[int, ...], share: float, slices: int
) -> float:
    """Modelled cycles of the multiprocessor with the most blocks, or of memory."""
    (m, n, k), (rows, columns, *each, _, _) = sizes, tile
    warps = rows * columns // prod(each) // WARP_SIZE
    blocks = ceil(batch * ceil(m / rows) * ceil(n / columns) * slices / MULTIPROCESSORS)
    together = min(blocks, _RESIDENT[prod(each)] // warps)
    share *= together * warps / (together * warps + _WAITING) * (_ALONE if together == 1 else 1)
    products = blocks * rows * columns * ceil(k / slices) / (_PRODUCTS * share)
    moved = 4 * batch * (m * k + k * n + m * n)
    multiplied = products + ceil(blocks / together) * _FIRST
    found = max(multiplied, moved / _MEMORY) + second_kernel(sizes, slices)
    return found * (1 + (_SLICED + _SLICE * slices if slices > 1 else 0))


def multiply(sch: s_tir.Schedule, name: str, config: Config) -> None:
    """Schedule a product, and what is computed from it element by element."""
    block, slices = sch.get_sblock(name), int(config["split_k"])
    rows, columns, depth = (int(config[f"tile_{dim}"]) for dim in "mnk")
    cut = sch.split_k(block, slices, multiple=depth) if slices > 1 else None
    product = cut.partial if cut else block
    tile, stages = (rows, columns, depth), int(config["stages"])
    sch.gemm(product, tile, _warps(config), stages, instruction="fma")
    if cut:
        for copy in cut.copies:
            sch.compute_inline(copy)
        add_up(sch, cut.sum)


def _warps(config: Config) -> tuple[int, int]:
    """Warps along rows and columns."""
    m = int(config["tile_m"]) // int(config["rows"]) // LANES[0]
    n = int(config["tile_n"]) // int(config["columns"]) // LANES[1]
    return m, n


def compute(shape: tuple[int, ...], dtype: str) -> list[Any]:
    """What is computed."""
    M, N, K = shape
    A = te.placeholder((M, K), dtype, name="A")
    B = te.placeholder((K, N), dtype, name="B")
    k = te.reduce_axis((0, K), name="k")
    C = te.compute((M, N), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    return [A, B, C]


def schedule(tensors: Sequence[Any], config: Config) -> s_tir.Schedule:
    """How: :func:`multiply`."""
    sch = s_tir.Schedule(te.create_prim_func(list(tensors)).with_attr("global_symbol", "main"))
    multiply(sch, "C", config)
    return sch


def fit(
    shape: tuple[int, ...], dtype: str, config: Config, architecture: Architecture
) -> dict[str, int]:
    """Take tile and slices by :func:`fitting`."""
    del dtype, config, architecture
    m, n, k = shape
    return fitting((m, n, k))


def check(
    shape: tuple[int, ...], dtype: str, config: Config, architecture: Architecture
) -> Refusal | None:
    """Why a configuration is not legal, or None."""
    del dtype
    v = {name: int(value) for name, value in config.items()}
    threads = WARP_SIZE * prod(_warps(config))
    if not WARP_SIZE <= threads <= architecture.threads_per_block:
        return Refusal(
            "threads",
            f"A block of {threads} threads; 32 to {architecture.threads_per_block} are legal.",
        )
    size = 4 * v["stages"] * v["tile_k"] * (v["tile_m"] + v["tile_n"] + 2 * _PAD)
    most = architecture.shared_per_block
    if size > most:
        return Refusal("shared memory", f"The tiles need {size:,} bytes of {most:,}.")
    steps = ceil(shape[2] / v["tile_k"])
    if v["split_k"] > steps:
        return Refusal("more slices than steps", f"{v['split_k']} slices of {steps} steps along K.")
    return None


def prune(
    shape: tuple[int, ...], dtype: str, config: Config, architecture: Architecture
) -> Refusal | None:
    """Why a configuration is not worth trying, or None."""
    del dtype, architecture
    for name, length in zip(("tile_m", "tile_n"), shape, strict=False):
        if int(config[name]) > max(32, 2 * length):
            return Refusal(
                "tile too large", f"{name} {config[name]} is over twice the {length} there are."
            )
    return None


def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Multiply in float32, as the kernel does."""
    return a @ b


def tolerance(shape: tuple[int, ...], dtype: str) -> Tolerance:
    """Allow for float32 sums of K terms in another order.

    A sum of K products of unit variance has size about sqrt(K), and each of its K additions
    rounds by half a unit of 2**-23. The few sums that are much larger were large on the way, too:
    their errors, which add up as sqrt(K), are relative to the result (one of the 2**24 elements of
    4096x4096x4096 was 0.0010 off at -175.5, which the absolute term alone refused).
    """
    K = shape[2]
    rtol = max(2 * float(np.finfo(dtype).eps), K**0.5 * 2.0**-23)
    return Tolerance(rtol, atol=float(K * 2.0**-22 + 1e-6))


OPERATOR = Operator(
    name="matmul",
    dims=("M", "N", "K"),
    parallel=("M", "N"),
    dtypes=("float32",),
    knobs=KNOBS,
    compute=compute,
    schedule=schedule,
    check=check,
    prune=prune,
    fit=fit,
    reference=reference,
    flops=lambda shape: 2 * shape[0] * shape[1] * shape[2],
    tolerance=tolerance,
)
