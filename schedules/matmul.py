"""Matrix product ``C = A @ B`` on the ordinary (SIMT) units, with sums in float32.

A block computes a tile of C. It goes through K in steps: all threads together copy a tile of A and
one of B into shared memory in vectors, then each thread reads vectors of both into registers and
multiplies them into its own part of C. A thread's rows lie ``tile_m / rows`` apart and its columns
in vectors, so that neighbouring threads read neighbouring vectors of B (no bank conflicts) and
neighbouring rows of A (conflicts unless ``storage_align`` skews the rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tvm_layout_ext import te
from tvm_layout_ext.gpu.hardware import (
    MAX_ACCESS_BYTES,
    STATIC_SHARED_BYTES,
    WARP_SIZE,
    Architecture,
)
from tvm_layout_ext.tune.space.knobs import Config, Refusal, knob
from tvm_layout_ext.tune.space.operator import Operator, Tolerance

#: Registers of a thread for sums and operands; the rest of its 255 holds addresses.
OPERAND_REGISTERS = 160

KNOBS = (
    knob("tile_m", (16, 32, 64, 128), default=64),
    knob("tile_n", (16, 32, 64, 128), default=64),
    knob("tile_k", (8, 16, 32), default=16),
    knob("rows", (1, 2, 4, 8), default=4),
    knob("columns", (1, 2, 4, 8), default=4),
    knob("vector", (1, 2, 4, 8), default=4),
    knob("align_factor", (8, 32), default=8),
    knob("a_offset", range(10), default=0),
    knob("b_offset", range(10), default=0),
)


def compute(shape: tuple[int, ...], dtype: str) -> list[Any]:
    """What is computed; both operands are widened to float32 before they are multiplied."""
    M, N, K = shape
    A = te.placeholder((M, K), dtype, name="A")
    B = te.placeholder((K, N), dtype, name="B")
    k = te.reduce_axis((0, K), name="k")
    product = te.compute(
        (M, N),
        lambda i, j: te.sum(A[i, k].astype("float32") * B[k, j].astype("float32"), axis=k),
        name="product",
    )
    C = te.compute((M, N), lambda i, j: product[i, j].astype(dtype), name="C")
    return [A, B, C]


def schedule(tensors: Sequence[Any], config: Config) -> te.Schedule:
    """How: a tile of C a block, tiles of A and B through shared memory into registers."""
    A, B, C = tensors
    (product,) = C.op.input_tensors
    s = te.create_schedule(C.op)
    s[product].set_scope("local")
    tile_y, tile_x = int(config["tile_m"]), int(config["tile_n"])
    vector = int(config["vector"])
    threads = (tile_y // int(config["rows"]), tile_x // int(config["columns"]))

    i, j = C.op.axis
    io, ii = s[C].split(i, factor=tile_y)
    row, ty = s[C].split(ii, factor=threads[0])
    jo, ji = s[C].split(j, factor=tile_x)
    column, jt = s[C].split(ji, factor=threads[1] * vector)
    tx, jv = s[C].split(jt, factor=vector)
    s[C].reorder(io, jo, row, column, ty, tx, jv)
    s[C].bind(io, te.thread_axis("blockIdx.y"))
    s[C].bind(jo, te.thread_axis("blockIdx.x"))
    s[C].bind(row, te.thread_axis("vthread.y"))
    s[C].bind(column, te.thread_axis("vthread.x"))
    s[C].bind(ty, te.thread_axis("threadIdx.y"))
    s[C].bind(tx, te.thread_axis("threadIdx.x"))
    s[C].vectorize(jv)

    s[product].compute_at(s[C], tx)
    y, x = product.op.axis
    (k,) = product.op.reduce_axis
    ko, ki = s[product].split(k, factor=config["tile_k"])
    kv, kk = s[product].split(ki, factor=vector)
    s[product].reorder(ko, kv, kk, y, x)
    for loop in (kv, kk, y, x):
        s[product].unroll(loop)

    for operand, offset in ((A, config["a_offset"]), (B, config["b_offset"])):
        registers = s.cache_read(operand, "local", [product])
        tile = s.cache_read(operand, "shared", [registers])
        s[registers].compute_at(s[product], kv)
        s[registers].unroll(registers.op.axis[0])
        s[registers].vectorize(registers.op.axis[1])
        s[tile].compute_at(s[product], ko)
        s[tile].storage_align(tile.op.axis[0], config["align_factor"], offset)
        fetch_together(s[tile], tile.op.axis, threads, vector)
    return s


def fetch_together(
    stage: te.Stage, axes: Sequence[Any], threads: tuple[int, int], vector: int
) -> None:
    """Share the copy of a tile out to all threads, a vector each."""
    y, x = axes
    x_thread, x_vector = stage.split(x, factor=vector)
    rest, tx = stage.split(stage.fuse(y, x_thread), factor=threads[1])
    step, ty = stage.split(rest, factor=threads[0])
    stage.unroll(step)
    stage.bind(ty, te.thread_axis("threadIdx.y"))
    stage.bind(tx, te.thread_axis("threadIdx.x"))
    stage.vectorize(x_vector)


def check(
    shape: tuple[int, ...], dtype: str, config: Config, architecture: Architecture
) -> Refusal | None:
    """Why a configuration is not legal, or None."""
    v: Any = config
    tile = v["tile_m"], v["tile_n"], v["tile_k"], v["rows"], v["columns"], v["vector"]
    return _check_tile(shape, dtype, architecture.threads_per_block, *tile) or _check_align(
        np.dtype(dtype).itemsize, v
    )


@lru_cache(maxsize=4096)
def _check_tile(
    shape: tuple[int, ...], dtype: str, threads_per_block: int, *tile: int
) -> Refusal | None:
    """The rules that padding has no part in: asked 200 times each, once for every padding."""
    values = dict(
        zip(("tile_m", "tile_n", "tile_k", "rows", "columns", "vector"), tile, strict=True)
    )
    return _check_vector(shape, dtype, values) or _check_threads(shape, values, threads_per_block)


def _check_vector(shape: tuple[int, ...], dtype: str, v: dict[str, int]) -> Refusal | None:
    _, N, K = shape
    vector = v["vector"]
    if vector * np.dtype(dtype).itemsize > MAX_ACCESS_BYTES:
        return Refusal("vector too wide", f"{vector} {dtype} are more than 16 bytes.")
    if v["columns"] % vector:
        return Refusal("vector too wide", f"A thread's {v['columns']} columns hold no {vector}.")
    if N % vector or K % vector:
        return Refusal("vector misaligned", f"Rows of {K} and {N} are no multiples of {vector}.")
    return None


def _check_threads(
    shape: tuple[int, ...], v: dict[str, int], threads_per_block: int
) -> Refusal | None:
    M, N, K = shape
    for name, length in (("tile_m", M), ("tile_n", N), ("tile_k", K)):
        if v[name] > max(16, 2 * length):
            return Refusal(
                "tile too large", f"{name} {v[name]} is over twice the {length} there are."
            )
    threads = v["tile_m"] // v["rows"] * (v["tile_n"] // v["columns"])
    if not WARP_SIZE <= threads <= threads_per_block or threads % WARP_SIZE:
        return Refusal(
            "threads",
            f"A block of {threads} threads; a multiple of 32 up to {threads_per_block} is legal.",
        )
    for tile in ("tile_m", "tile_n"):
        if v[tile] * v["tile_k"] % (threads * v["vector"]):
            return Refusal("threads idle", f"{threads} threads do not share out {tile} x tile_k.")
    used = v["rows"] * v["columns"] + (v["rows"] + v["columns"]) * v["vector"]
    if used > OPERAND_REGISTERS:
        return Refusal("registers", f"A thread would hold {used} numbers; {OPERAND_REGISTERS} fit.")
    return None


def _check_align(itemsize: int, v: dict[str, int]) -> Refusal | None:
    factor, offsets = v["align_factor"], (v["a_offset"], v["b_offset"])
    if max(offsets) >= factor or (factor > 8 and max(offsets) < 8):
        return Refusal("same row stride", f"Factor {factor} with {offsets} gives no new stride.")
    strides = [
        width + (offset - width) % factor
        for width, offset in zip((v["tile_k"], v["tile_n"]), offsets, strict=True)
    ]
    if any(stride % v["vector"] for stride in strides):
        return Refusal(
            "vector misaligned", f"Shared rows of {strides} are no multiples of {v['vector']}."
        )
    elements = v["tile_m"] * strides[0] + v["tile_k"] * strides[1]
    size = elements * itemsize
    if size > STATIC_SHARED_BYTES:
        return Refusal("shared memory", f"The tiles need {size:,} bytes of 49,152.")
    return None


def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Multiply in float32, as the kernel does."""
    return (a.astype(np.float32) @ b.astype(np.float32)).astype(a.dtype)


def tolerance(shape: tuple[int, ...], dtype: str) -> Tolerance:
    """Allow for float32 sums of K terms in another order, and for one rounding to the output type.

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
    dtypes=("float16", "float32"),
    knobs=KNOBS,
    compute=compute,
    schedule=schedule,
    check=check,
    reference=reference,
    flops=lambda shape: 2 * shape[0] * shape[1] * shape[2],
    tolerance=tolerance,
)
