"""Matrix product ``C = A @ B`` on tensor cores, by ``mma.sync``.

A block computes a tile of C, in steps along K: its threads copy a tile of A and one of B into
shared memory, each warp loads fragments of both into registers (``ldmatrix``, or plain loads of
operands that it cannot transpose) and multiplies them into its own part of C, which stays in
registers. The results leave through shared memory, in rows of 16 bytes a thread.

Tiles are copied ``stages - 1`` steps ahead, and lie swizzled or padded so that every access is free
of bank conflicts; :class:`Copy` says what padding asks of the copies. Blocks run in groups of rows,
which share tiles in the L2 cache. :func:`multiply` takes any layout of the operands, batches,
ragged sizes and whatever is computed from the product element by element.

Knob ``split_k`` cuts K into slices, blocks of their own each, whose partial sums take ``split_k * M
* N * 4`` bytes of workspace and are added up by a second kernel, which also computes what follows
(:mod:`._split_k`; its :func:`~._split_k.best_slices` makes the default). Knob ``cluster`` launches
so many neighbours of the grid together (``sm_90``); tiles are not shared within a cluster, so it
only moves blocks that read the same tiles near to each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from tvm import s_tir

from tvm_layout_ext import te
from tvm_layout_ext.hardware import BANK_BYTES, NUM_BANKS, WARP_SIZE, Architecture
from tvm_layout_ext.intrin import INSTRUCTIONS
from tvm_layout_ext.schedules._gemm_space import check_grid, prune
from tvm_layout_ext.schedules._split_k import SLICES, add_up, fit
from tvm_layout_ext.schedules.matmul import compute, inputs
from tvm_layout_ext.transform.launch_bounds import MIN_BLOCKS
from tvm_layout_ext.tune.knobs import Config, Refusal, knob
from tvm_layout_ext.tune.operator import Operator, Tolerance

# The defaults do 434 TFLOPS at 4096^3 in float16 on an H200 (benchmarks/results/
# h200_gemm_sweep_best.json), and the best, 256x128x64 and 128x256x64 by eight warps, 449 and 448.
# These take 192 KB a block, more than other GPUs have, and are 128 blocks of a result of 2048x2048,
# fewer than there are multiprocessors. The defaults take 66 KB, so that two blocks share one.
KNOBS = (
    knob("tile_m", (64, 128, 256), default=128),
    knob("tile_n", (64, 128, 256), default=128),
    knob("tile_k", (16, 32, 64, 128), default=32),
    knob("warps_m", (1, 2, 4), default=2),
    knob("warps_n", (1, 2, 4), default=2),
    knob("stages", range(1, 7), default=4),
    knob("group", (1, 4, 8, 16), default=8),
    knob("swizzle", ("auto", "xor", "pad", "none")),
    knob("prefetch", (0, 1), default=1),
    knob("split_k", SLICES, before=1),
    knob("cluster", (1, 2, 4), before=1),
)
#: Registers that a thread can have, and those that addresses and counters take of them: nvcc
#: compiles 192 sums, 40 of fragments and 20 of these into 253 without a spill.
REGISTERS, ADDRESSES = 255, 20
#: Bytes along K of a row of a fragment: two rows of a matrix of ``ldmatrix``, of any type.
STEP_BYTES = 32


@dataclass(frozen=True)
class Copy:
    """How threads copy a tile to shared memory.

    Under a swizzle, and where rows are multiples of 128 bytes, neighbouring lanes copy neighbouring
    vectors. Other padded rows need more: a quarter of a warp (a half, for 8-byte accesses) must
    meet each bank once, whether it writes the tile or reads fragments from it, so it has to write
    as many rows as it reads.

    * ``ldmatrix`` reads 8 rows of 16 bytes: a pad of 16 bytes, and phases of 8 rows.
    * Plain loads of 32-bit elements read 4 rows of 8: a pad of 32 bytes, and phases of 4 rows by
      2 neighbouring vectors.
    * Plain loads of 8-bit elements read every fourth of 16 rows: a pad of 8 bytes, which leaves
      vectors of 8 bytes, and phases of 16 rows.

    An asynchronous copy takes a wavefront for each pair of a global line and a shared row of 128
    bytes, and more where sectors are torn (:mod:`tvm_layout_ext.simulate.counters`). So it moves
    whole rows of a tile, and costs least under a swizzle where these have 128 bytes: no map of the
    lanes spares rows of 64 bytes, or padded ones, their further wavefronts.

    Attributes
    ----------
    vector : int
        Elements of an access.
    pad : int
        Elements that padding adds to a row.
    rows, neighbours : int
        Rows of a phase, and vectors side by side in one.
    """

    vector: int
    pad: int = 0
    rows: int = 1
    neighbours: int = 1


def copy_of(bits: int, k_major: bool, row: int, swizzle: str) -> Copy:
    """Choose the copy of an operand whose rows in global memory have ``row`` elements."""
    width, pad, rows, neighbours = 16, 0, 1, 1
    if swizzle == "pad":
        if k_major or bits == 16:
            pad, rows = 16, 8
        elif bits == 32:
            pad, rows, neighbours = 32, 4, 2
        else:
            width, pad, rows = 8, 8, 16
    vector = width * 8 // bits
    while row % vector:
        vector //= 2
    return Copy(vector, pad * 8 // bits, rows, neighbours)


def multiply(sch: s_tir.Schedule, block: str, config: Config, instruction: str = "auto") -> None:
    """Schedule a product, and what is computed from it element by element, for tensor cores."""
    tile = [int(config[f"tile_{dim}"]) for dim in "mnk"]
    warps = [int(config[f"warps_{dim}"]) for dim in "mn"]
    slices = int(config.get("split_k", 1))
    cut = sch.split_k(block, slices, multiple=tile[2]) if slices > 1 else None
    tc = sch.use_tensor_core(cut.partial if cut else block, instruction, multiples=tile)
    if cut:
        for copy in cut.copies:
            sch.compute_inline(copy)
        add_up(sch, cut.sum)
    m_size, n_size, k_size = INSTRUCTIONS[tc.instruction].shape

    mo, wm, mi = sch.split(tc.m, [None, warps[0], tile[0] // warps[0] // m_size])
    no, wn, ni = sch.split(tc.n, [None, warps[1], tile[1] // warps[1] // n_size])
    ko, ki = sch.split(tc.k, [None, tile[2] // k_size])
    sch.reorder(*tc.batch, mo, no, wm, wn, ko, ki, mi, ni)
    if tc.batch:
        sch.bind(sch.fuse(*tc.batch), "blockIdx.z")
    sch.rasterize(mo, no, int(config["group"]))
    sch.cluster(no, int(config.get("cluster", 1)))
    if int(config["stages"]) == 1:
        # Or ptxas stores part of a tile before it loads the rest: a wait for memory more, which
        # made 212 TFLOPS of 270 (H200, 128x128x64, swizzled and padded).
        sch.annotate(no, MIN_BLOCKS, 1)
    sch.bind(wm, "threadIdx.y")
    sch.bind(wn, "threadIdx.z")
    for loop in (ki, mi, ni):
        sch.unroll(loop)

    for fragment in (tc.a_fragment, tc.b_fragment):
        sch.compute_at(fragment, ki, preserve_unit_loops=True)
        for loop in sch.get_loops(fragment)[-2:]:
            sch.unroll(loop)
        if int(config["prefetch"]):
            sch.prefetch(fragment)
    for operand, k_major in ((tc.a, tc.a_k_major), (tc.b, tc.b_k_major)):
        fetch(sch, operand, k_major, ko, warps, str(config["swizzle"]))
    sch.pipeline(ko, int(config["stages"]))
    store(sch, tc.result, no, wn, warps)


def _warp_tile(config: Config) -> tuple[int, int]:
    m, n = (int(config[f"tile_{dim}"]) // int(config[f"warps_{dim}"]) for dim in "mn")
    return m, n


def registers(config: Config) -> int:
    """Estimate the registers of a thread: sums, fragments of a step, addresses.

    Prefetched fragments are there twice.
    """
    m, n = _warp_tile(config)
    depth = STEP_BYTES // BANK_BYTES
    fragments = (m + n) * depth // WARP_SIZE * (1 + int(config["prefetch"]))
    return m * n // WARP_SIZE + fragments + ADDRESSES


def fetch(
    sch: s_tir.Schedule, block: Any, k_major: bool, loop: Any, warps: Sequence[int], swizzle: str
) -> None:
    """Copy a tile of an operand to shared memory, all warps together."""
    source = sch.get(block).reads[0].source
    copy = copy_of(_bits(source), k_major, int(source.shape[-1]), swizzle)
    sch.compute_at(block, loop, preserve_unit_loops=True)
    sch.swizzle(block, 0, swizzle)
    i, j = sch.get_loops(block)[-2:]
    columns = int(sch.get(j).extent)
    if columns * _bits(source) % (8 * NUM_BANKS * BANK_BYTES) == 0:
        copy = replace(copy, rows=1, neighbours=1)
    vectors = columns // copy.vector
    near = max(1, min(vectors, WARP_SIZE // copy.rows) // copy.neighbours)
    down, rows = sch.split(i, [None, copy.rows])
    right, *across, lanes = sch.split(j, [None, near, copy.neighbours, copy.vector])
    sch.reorder(down, right, across[0], rows, across[1], lanes)
    sch.unroll(spread(sch, sch.fuse(down, right, across[0], rows, across[1]), warps))
    if copy.vector > 1:
        sch.vectorize(lanes)


def spread(sch: s_tir.Schedule, loop: Any, warps: Sequence[int]) -> Any:
    """Share a loop out to all threads, neighbours to neighbouring lanes; return what is left."""
    rest, y, z, x = sch.split(loop, [None, *warps, WARP_SIZE])
    sch.bind(y, "threadIdx.y")
    sch.bind(z, "threadIdx.z")
    sch.bind(x, "threadIdx.x")
    return rest


def _bits(buffer: Any) -> int:
    return np.dtype(str(buffer.dtype)).itemsize * 8


def store(
    sch: s_tir.Schedule, result: Any, block_loop: Any, warp_loop: Any, warps: Sequence[int]
) -> None:
    """Bring results from registers through shared memory to global rows."""
    target = sch.get(result).writes[0].source
    bits = _bits(target)
    out = sch.cache_write(result, 0, "shared.dyn")
    sch.reverse_compute_at(result, warp_loop, preserve_unit_loops=True)
    sch.reverse_compute_at(out, block_loop, preserve_unit_loops=True)
    i, j = sch.get_loops(out)[-2:]
    # Lanes hold two neighbours of a row; an odd multiple of 16 bytes (32 bytes where two take 8)
    # between rows keeps a warp's rows in different banks. Ragged rows are rounded up to all banks.
    line = NUM_BANKS * BANK_BYTES * 8 // bits
    row = -(-int(sch.get(j).extent) // line) * line
    pad = (16 if bits <= 16 else 32) * 8 // bits
    sch.storage_align(result, 0, -2, factor=row + pad, offset=0)
    vector = copy_of(bits, True, int(target.shape[-1]), "none").vector
    across, rows, step = dealt(
        int(sch.get(j).extent) // vector, vector * bits // 8, pad * bits // 8
    )
    far, near, apart = sch.split(i, [None, rows, step])
    right, lanes = sch.split(j, [across, vector])
    sch.reorder(far, apart, near, right, lanes)
    spread(sch, sch.fuse(far, apart, near, right), warps)
    if vector > 1:
        sch.vectorize(lanes)
    for loop in sch.spread_sums(result):
        sch.unroll(loop)


def dealt(vectors: int, size: int, gap: int) -> tuple[int, int, int]:
    """Deal rows to lanes that read them, so that no phase of a request meets a bank twice.

    Phases that lie in one row meet none. Where rows are shorter, as many as fill a phase are taken
    so far apart that they lie side by side in the banks; some lanes of a ragged row stay idle.

    Parameters
    ----------
    vectors, size : int
        Of a row, and bytes of one.
    gap : int
        Bytes by which each row is shifted against the banks; 16 or 32.

    Returns
    -------
    tuple of int
        Lanes for a row, rows of a phase, and how many rows lie from one of these to the next.

    Examples
    --------
    Rows of 16 vectors; of 25 vectors of 4 bytes; of 3 vectors of 16 bytes:

    >>> dealt(16, 16, 16), dealt(25, 4, 16), dealt(3, 16, 32)
    ((16, 1, 1), (32, 1, 1), (4, 2, 2))
    """
    phase = WARP_SIZE * BANK_BYTES // max(size, BANK_BYTES)
    if vectors > phase // 2:
        return -(-vectors // phase) * phase, 1, 1
    across = max(1 << (vectors - 1).bit_length(), gap // max(size, BANK_BYTES))
    return across, phase // across, max(1, across * size // gap)


def schedule(tensors: Sequence[Any], config: Config) -> s_tir.Schedule:
    """How: :func:`multiply`."""
    sch = s_tir.Schedule(te.create_prim_func(list(tensors)).with_attr("global_symbol", "main"))
    multiply(sch, "product", config)
    return sch


def shared_bytes(dtype: str, config: Config) -> int:
    """Bytes of all versions of the tiles of A (M x K) and B (K x N), and of C.

    TVM gives C the place of the larger of the other two, or as much more as it needs; partial sums,
    which have 32 bits and wider padding, that of both.
    """
    m, n, k = (int(config[f"tile_{dim}"]) for dim in "mnk")
    size = np.dtype(dtype).itemsize
    mode = str(config["swizzle"])
    a, b = (copy_of(8 * size, k_major, m * n * k, mode) for k_major in (True, False))
    operands = [int(config["stages"]) * x * size for x in (m * (k + a.pad), k * (n + b.pad))]
    if int(config.get("split_k", 1)) > 1:
        return max(sum(operands), m * (n * 4 + 32))
    return sum(operands) + max(0, m * (n * size + 16) - max(operands))


def check(
    shape: tuple[int, ...], dtype: str, config: Config, architecture: Architecture
) -> Refusal | None:
    """Why a configuration is not legal, or None."""
    v = {name: int(value) for name, value in config.items() if name != "swizzle"}
    if (wanted := registers(config)) > REGISTERS:
        sums = prod(_warp_tile(config)) // WARP_SIZE
        return Refusal(
            "registers",
            f"A thread would need about {wanted} registers, {sums} of them for sums; "
            f"{REGISTERS} are there.",
        )
    for name, length in zip(("tile_m", "tile_n", "tile_k"), shape, strict=True):
        if v[name] > max(64, 2 * length):
            return Refusal(
                "tile too large", f"{name} {v[name]} is over twice the {length} there are."
            )
    size = shared_bytes(dtype, config)
    if size > architecture.shared_per_block:
        return Refusal(
            "shared memory", f"The tiles need {size:,} bytes of {architecture.shared_per_block:,}."
        )
    return check_grid(shape, v, architecture)


def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Multiply in float64."""
    product = a.astype(np.float64) @ b.astype(np.float64)
    return product.astype(a.dtype)


def tolerance(shape: tuple[int, ...], dtype: str) -> Tolerance:
    """Allow for float32 sums of K terms, and for one rounding to the output type.

    Tensor cores cut sums off rather than round them, once for each 16 terms, and sums of products
    of normally distributed numbers are of the size of the root of K.
    """
    depth = shape[2]
    return Tolerance(
        rtol=2 * float(ml_dtypes.finfo(dtype).eps),
        atol=float(math.ceil(depth / 16) * math.sqrt(depth) * 2.0**-23 + depth * 2.0**-24 + 1e-6),
    )


OPERATOR = Operator(
    name="gemm",
    dims=("M", "N", "K"),
    parallel=("M", "N"),
    dtypes=("float16", "bfloat16"),
    knobs=KNOBS,
    compute=compute,
    schedule=schedule,
    check=check,
    inputs=inputs,
    reference=reference,
    flops=lambda shape: 2 * shape[0] * shape[1] * shape[2],
    traffic=lambda shape, dtype: (
        np.dtype(dtype).itemsize * (shape[0] * shape[2] + shape[2] * shape[1] + shape[0] * shape[1])
    ),
    tolerance=tolerance,
    prune=prune,
    fit=fit,
)
