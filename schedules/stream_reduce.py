"""Weighted sums of the rows of a matrix, ``y[i] = sum_k A[i, k] * x[k]``, as a stream of tiles.

A block owns ``rows`` rows and goes along them in steps. In each step all its threads copy a tile of
A and the weights under it into shared memory, ``stages - 1`` steps ahead, and each warp multiplies
its own rows: lanes read neighbouring vectors of 16 bytes, which meets every bank once. Lanes add up
their sums after the last step. Where sizes are ragged, tiles are filled up with zeros as they are
copied, so that no step asks whether it is the last one.

Nothing here multiplies matrices: a pipeline keeps memory busy just as well under a plain sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import s_tir

from tvm_layout_ext import te
from tvm_layout_ext.gpu.hardware import MAX_ACCESS_BYTES, WARP_SIZE, Architecture
from tvm_layout_ext.tune.space.knobs import Config, Refusal, knob
from tvm_layout_ext.tune.space.operator import Operator, Tolerance

KNOBS = (
    knob("rows", (4, 8, 16, 32), default=8),
    knob("columns", (128, 256, 512, 1024, 2048), default=512),
    knob("warps", (2, 4, 8), default=4),
    knob("stages", range(1, 7), default=4),
    knob("asynchronous", (0, 1), default=1),
)
#: Multiplications of a thread in a step, all of them unrolled.
MOST_UNROLLED = 128


def compute(shape: tuple[int, ...], dtype: str) -> list[Any]:
    """What is computed, in 32 bits."""
    M, K = shape
    A = te.placeholder((M, K), dtype, name="A")
    x = te.placeholder((K,), dtype, name="x")
    k = te.reduce_axis((0, K), name="k")
    y = te.compute(
        (M,),
        lambda i: te.sum(A[i, k].astype("float32") * x[k].astype("float32"), axis=k),
        name="y",
    )
    return [A, x, y]


def vector_of(length: int, size: int) -> int:
    """Elements of ``size`` bytes that an access takes: rows of ``length`` keep them aligned."""
    vector = MAX_ACCESS_BYTES // size
    while length % vector:
        vector //= 2
    return vector


def schedule(tensors: Sequence[Any], config: Config) -> s_tir.Schedule:
    """How: a block streams the tiles of its rows through shared memory, a warp sums its own."""
    A = tensors[0]
    rows, columns, warps = (int(config[name]) for name in ("rows", "columns", "warps"))
    vector = vector_of(int(A.shape[1]), np.dtype(str(A.dtype)).itemsize)
    sch = s_tir.Schedule(te.create_prim_func(list(tensors)).with_attr("global_symbol", "main"))
    total = sch.get_sblock("y")
    tiles, out = stage(sch, total, (rows, columns))

    # Each lane has a sum of its own, which `part` holds; `total` adds the lanes up.
    i, k = sch.get_loops(total)
    block, warp, row = sch.split(i, [None, warps, rows // warps])
    walks = columns // (WARP_SIZE * vector)
    step, walk, lane, element = sch.split(k, [None, walks, WARP_SIZE, vector])
    sch.reorder(block, warp, row, step, walk, lane, element)
    part = sch.rfactor(lane, 1)
    sch.set_scope(part, 0, "local")
    block, warp, row, lane = sch.get_loops(total)
    sch.compute_at(part, warp, preserve_unit_loops=True)
    *_, part_lane, part_row, step, walk, element = sch.get_loops(part)
    sch.reorder(step, walk, part_lane, part_row, element)
    sch.bind(block, "blockIdx.x")
    sch.bind(warp, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    sch.bind(part_lane, "threadIdx.x")
    for loop in (walk, part_row, element):
        sch.unroll(loop)
    for index, loop in ((0, part_row), (1, part_lane)):
        registers = sch.cache_read(part, index, "local")
        sch.compute_at(registers, loop)
        if vector > 1:
            sch.vectorize(sch.get_loops(registers)[-1])

    for tile in tiles:
        fetch(sch, tile, step, warps, vector)
    async_copy = "auto" if config["asynchronous"] else False
    sch.pipeline(step, int(config["stages"]), async_copy=async_copy)
    sch.decompose_reduction(part, step)

    # All lanes know the total; the first one stores it.
    sch.reverse_compute_at(out, row, preserve_unit_loops=True)
    _, first = sch.split(sch.add_unit_loop(out), [None, WARP_SIZE])
    sch.bind(first, "threadIdx.x")
    return sch


def stage(sch: s_tir.Schedule, total: Any, multiples: tuple[int, int]) -> tuple[list[Any], Any]:
    """Fill both operands up to whole tiles in shared memory; take the sums from registers."""
    out = sch.cache_write(total, 0, "local")
    sch.pad_einsum(total, list(multiples))
    tiles = [sch.cache_read(total, index, "shared.dyn") for index in range(2)]
    for padding in [copy for tile in tiles for copy in sch.get_producers(tile)]:
        sch.compute_inline(padding)
    for copy in sch.get_consumers(total):
        if not sch.get(copy).same_as(sch.get(out)):
            sch.compute_inline(copy)
    return tiles, out


def fetch(sch: s_tir.Schedule, tile: Any, step: Any, warps: int, vector: int) -> None:
    """Copy a tile in vectors, all threads together."""
    sch.compute_at(tile, step, preserve_unit_loops=True)
    *down, along = sch.get_loops(tile)[3:]
    along, lanes = sch.split(along, [None, vector])
    rest, y, x = sch.split(sch.fuse(*down, along), [None, warps, WARP_SIZE])
    sch.unroll(rest)
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")
    if vector > 1:
        sch.vectorize(lanes)


def check(
    shape: tuple[int, ...], dtype: str, config: Config, architecture: Architecture
) -> Refusal | None:
    """Why a configuration is not legal, or None."""
    rows, columns, warps, stages, _ = (int(config[k.name]) for k in KNOBS)
    size = np.dtype(dtype).itemsize
    vector = vector_of(shape[1], size)
    if rows % warps:
        return Refusal("threads idle", f"{warps} warps do not share out {rows} rows.")
    if columns % (WARP_SIZE * vector):
        return Refusal(
            "threads idle", f"A warp with vectors of {vector} does not fill {columns} columns."
        )
    for name, value, least, length in (
        ("rows", rows, 4, shape[0]),
        ("columns", columns, 8 * WARP_SIZE, shape[1]),
    ):
        if value > max(least, 2 * length):
            return Refusal(
                "tile too large", f"{name} {value} is over twice the {length} there are."
            )
    work = rows // warps * columns // WARP_SIZE
    if work > MOST_UNROLLED:
        return Refusal(
            "code size", f"A step of a thread has {work} terms; {MOST_UNROLLED} are legal."
        )
    needed = stages * (rows + 1) * columns * size
    if needed > architecture.shared_per_block:
        return Refusal(
            "shared memory",
            f"The tiles need {needed:,} bytes of {architecture.shared_per_block:,}.",
        )
    return None


def reference(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Multiply in float64."""
    return (a.astype(np.float64) @ x.astype(np.float64)).astype(np.float32)


OPERATOR = Operator(
    name="stream_reduce",
    dims=("M", "K"),
    parallel=("M",),
    dtypes=("float16", "float32"),
    knobs=KNOBS,
    compute=compute,
    schedule=schedule,
    check=check,
    reference=reference,
    flops=lambda shape: 2 * shape[0] * shape[1],
    # A float32 sum of K terms of size 1 rounds K times by half a unit of 2**-23 of about sqrt(K).
    tolerance=lambda shape, dtype: Tolerance(rtol=1e-5, atol=float(shape[1] * 2.0**-22 + 1e-6)),
)
