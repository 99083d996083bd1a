"""Which legal transposes are not worth trying, because another is surely no worse."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tvm_layout_ext.gpu.hardware import WARP_SIZE, Architecture
from tvm_layout_ext.layout.banks import wavefronts
from tvm_layout_ext.tune.space.knobs import Config, Refusal

__all__ = ["STRIP_BYTES", "prune", "row_stride", "shared_wavefronts"]

#: Bytes of a row that neighbouring threads cover before they go on to the next row.
STRIP_BYTES = 128
#: Elements of a thread: more are more code and registers, fewer leave it waiting for each alone.
MOST_ELEMENTS, LEAST_BYTES = 64, 16
LEAST_THREADS, MOST_THREADS = 64, 512


def row_stride(width: int, factor: int, offset: int) -> int:
    """Least stride from ``width`` on that is ``offset`` modulo ``factor``: (64, 8, 1) gives 65."""
    return width + (offset - width) % factor


@lru_cache(maxsize=1 << 14)
def shared_wavefronts(
    rows: int, columns: int, vector: int, size: int, down: int, right: int
) -> int:
    """Wavefronts in which a warp moves its first elements, as it walks over a tile in strips.

    Parameters
    ----------
    rows, columns : int
        Of the tile, as the walk sees them.
    vector : int
        Elements of a thread side by side; each is an access of its own in shared memory.
    size : int
        Bytes of an element.
    down, right : int
        Elements between neighbouring rows and columns in shared memory.
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
