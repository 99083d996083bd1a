"""Transpose of a matrix, ``B[j, i] = A[i, j]``, through a padded tile in shared memory.

A block copies a tile of A into shared memory row by row and writes it out column by column, so
that both its loads and its stores touch whole 32-byte sectors. Threads walk over the tile in strips
of 128 bytes: with float32 and vectors of 4, a warp covers 4 rows by 8 vectors. In shared memory it
touches single elements, and a row stride of an odd number of 4-byte words (65 for a tile of 64)
puts the 32 elements of each access into 32 different banks, in both directions.

It is written out so that the tuner has tiles, vectors and paddings to choose. A transpose in a few
lines on ``auto_coalesce``, as any other permutation, is ``permute.permuted(shape, dtype, (1, 0))``;
on an H200 either runs at 0.97 of a copy with 16384x16384 floats.
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
from tvm_layout_ext.layout.banks import wavefronts
from tvm_layout_ext.schedules._coalesced import DTYPES
from tvm_layout_ext.tune.space.knobs import Config, Refusal, knob
from tvm_layout_ext.tune.space.operator import Operator

KNOBS = (
    knob("tile_i", (16, 32, 64, 128), default=64),
    knob("tile_j", (16, 32, 64, 128), default=64),
    knob("threads", (64, 128, 256, 512), default=256),
    knob("read_vector", (1, 2, 4, 8, 16), default=4),
    knob("write_vector", (1, 2, 4, 8, 16), default=4),
    knob("align_factor", (8, 32), default=8),
    knob("align_offset", range(10), default=1),
)
#: Bytes of a row that neighbouring threads cover before they go on to the next row.
STRIP_BYTES = 128
#: Elements of a thread: more are more code and registers, fewer leave it waiting for each alone.
MOST_ELEMENTS, LEAST_BYTES = 64, 16
LEAST_THREADS, MOST_THREADS = 64, 512


def compute(shape: tuple[int, ...], dtype: str) -> list[Any]:
    """What is computed."""
    M, N = shape
    A = te.placeholder((M, N), dtype, name="A")
    B = te.compute((N, M), lambda j, i: A[i, j], name="B")
    return [A, B]


def schedule(tensors: Sequence[Any], config: Config) -> te.Schedule:
    """How: a tile a block, through shared memory, in vectors on both sides."""
    A, B = tensors
    s = te.create_schedule(B.op)
    out = s.cache_write(B, "local")
    tile = s.cache_read(A, "shared", [out])
    row = s.cache_read(A, "local", [tile])

    j, i = B.op.axis
    jo, io, ji, ii = s[B].tile(j, i, config["tile_j"], config["tile_i"])
    s[B].bind(jo, te.thread_axis("blockIdx.y"))
    s[B].bind(io, te.thread_axis("blockIdx.x"))
    strip = STRIP_BYTES // np.dtype(str(A.dtype)).itemsize

    strip_i = min(strip, config["tile_i"])
    thread, vector = share_out(s[B], ji, ii, strip_i, config["threads"], config["write_vector"])
    s[B].vectorize(vector)
    s[out].compute_at(s[B], thread)
    s[out].unroll(out.op.axis[1])

    s[tile].compute_at(s[B], io)
    s[tile].storage_align(tile.op.axis[0], config["align_factor"], config["align_offset"])
    y, x = tile.op.axis
    strip_j = min(strip, config["tile_j"])
    thread, vector = share_out(s[tile], y, x, strip_j, config["threads"], config["read_vector"])
    s[tile].unroll(vector)
    s[row].compute_at(s[tile], thread)
    s[row].vectorize(row.op.axis[1])
    return s


def share_out(
    stage: te.Stage, y: Any, x: Any, strip: int, threads: Any, vector: Any
) -> tuple[Any, Any]:
    """Walk over a tile in strips, vector by vector; return the thread's axis and the vector's."""
    x_strip, x_inner = stage.split(x, factor=strip)
    x_thread, x_vector = stage.split(x_inner, factor=vector)
    stage.reorder(x_strip, y, x_thread, x_vector)
    step, thread = stage.split(stage.fuse(x_strip, y, x_thread), factor=threads)
    stage.unroll(step)
    stage.bind(thread, te.thread_axis("threadIdx.x"))
    return thread, x_vector


def check(
    shape: tuple[int, ...], dtype: str, config: Config, architecture: Architecture
) -> Refusal | None:
    """Why a configuration is not legal, or None."""
    (M, N), size = shape, np.dtype(dtype).itemsize
    tile_i, tile_j, threads, read, write, factor, offset = (int(config[k.name]) for k in KNOBS)
    for vector, length, rows in ((read, N, "A"), (write, M, "B")):
        if vector * size > MAX_ACCESS_BYTES:
            return Refusal("vector too wide", f"{vector} {dtype} are more than 16 bytes.")
        if length % vector:
            return Refusal(
                "vector misaligned",
                f"Rows of {rows} have {length} elements, no multiple of {vector}.",
            )
        if tile_i * tile_j % (threads * vector):
            return Refusal(
                "threads idle",
                f"{threads} threads with vectors of {vector} do not share out {tile_i}x{tile_j}.",
            )
    for extent, length in ((tile_j, N), (tile_i, M)):
        if extent > max(16, 2 * length):
            return Refusal("tile too large", f"Tile {extent} is over twice the {length} it cuts.")
    if offset >= factor or (factor > 8 and offset < 8):
        return Refusal("same row stride", f"Factor {factor} with {offset} gives no new stride.")
    stride = row_stride(tile_j, factor, offset)
    if tile_i * stride * size > STATIC_SHARED_BYTES:
        return Refusal(
            "shared memory", f"The tile needs {tile_i * stride * size:,} bytes of 49,152."
        )
    return None


def row_stride(width: int, factor: int, offset: int) -> int:
    """Least stride from ``width`` on that is ``offset`` modulo ``factor``: (64, 8, 1) gives 65."""
    return width + (offset - width) % factor


@lru_cache(maxsize=1 << 14)
def shared_wavefronts(
    rows: int, columns: int, vector: int, size: int, down: int, right: int
) -> int:
    """Wavefronts in which a warp moves its first elements, as it walks over a tile in strips.

    ``size`` is the bytes of an element; neighbouring rows and columns lie ``down`` and ``right``
    elements apart in shared memory, where each element of a vector is an access of its own.
    """
    strip = min(STRIP_BYTES // size, columns)
    across = max(1, strip // vector)
    turn, x = np.divmod(np.arange(WARP_SIZE), across)
    strips, y = np.divmod(turn, rows)
    addresses = y * down + (strips * strip + x * vector) * right
    return wavefronts(addresses * size, size)


def _conflicts(v: Config, size: int, stride: int) -> tuple[int, int]:
    i, j = v["tile_i"], v["tile_j"]
    return (
        shared_wavefronts(i, j, v["read_vector"], size, stride, 1),
        shared_wavefronts(j, i, v["write_vector"], size, 1, stride),
    )


def prune(
    shape: tuple[int, ...], dtype: str, config: Config, architecture: Architecture
) -> Refusal | None:
    """Why a configuration is not worth trying, or None."""
    size = np.dtype(dtype).itemsize
    work = config["tile_i"] * config["tile_j"] // config["threads"]
    if work > MOST_ELEMENTS and config["threads"] < MOST_THREADS:
        return Refusal("work of a thread", f"A thread would move {work} elements, all unrolled.")
    if work * size < LEAST_BYTES and config["threads"] > LEAST_THREADS:
        return Refusal("idle threads", f"A thread would move only {work * size} bytes.")
    stride = row_stride(config["tile_j"], config["align_factor"], config["align_offset"])
    here = _conflicts(config, size, stride)
    for shorter in range(config["tile_j"], stride):
        there = _conflicts(config, size, shorter)
        if there[0] <= here[0] and there[1] <= here[1]:
            return Refusal(
                "padding without effect",
                f"Rows of {stride} have conflicts as those of {shorter}, which take less memory.",
            )
    return None


OPERATOR = Operator(
    name="transpose",
    dims=("M", "N"),
    parallel=("M", "N"),
    dtypes=DTYPES,
    knobs=KNOBS,
    compute=compute,
    schedule=schedule,
    check=check,
    reference=lambda a: np.ascontiguousarray(a.T),
    prune=prune,
)
