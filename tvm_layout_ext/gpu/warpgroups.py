"""Facts about warpgroups, TMA and mbarriers of Hopper GPUs; imports nothing of TVM.

Sources: PTX ISA, "wgmma.mma_async", "cp.async.bulk.tensor", "setmaxnreg", "mbarrier"; CUDA driver
API, ``cuTensorMapEncodeTiled``.
"""

from __future__ import annotations

from math import ceil

#: Threads of a warpgroup, and rows of sums that one ``wgmma`` gives it.
WARPGROUP_THREADS, WARPGROUP_ROWS = 128, 64
#: Operations in half precision of a multiprocessor in a cycle: 64 x 256 x 16 products in 128.
WARPGROUP_RATE = 4096
#: Bytes of a row of the 128-byte swizzle; eight rows make its pattern, and its alignment.
PANEL_BYTES = 128
SWIZZLE_BYTES = 8 * PANEL_BYTES
#: Most elements of a box of a tensor map along each dim.
BOX_ELEMENTS = 256
#: Most elements from one of a box to the next along a dim.
MOST_STEP = 8
#: Most dims of a tensor map.
MOST_TMA_DIMS = 5
#: What the distances of a tensor map between rows must be multiples of.
MAP_PITCH_BYTES = 16
#: Registers of a thread of the producer and of the consumers, by the number of consuming
#: warpgroups. A launch of n warpgroups enters with 65,536 / (128 n) registers a thread, rounded
#: down to a multiple of 8; what all have after ``setmaxnreg`` must not be more. One consumer needs
#: no more than it enters with.
REGISTERS: dict[int, tuple[int, int] | None] = {1: None, 2: (40, 232), 3: (32, 160)}
#: Registers of a consumer that addresses, counters and the epilogue take.
_OTHERS = 56


def whole_patterns(size: int) -> int:
    """So many bytes, up to where the next tile of swizzled rows may begin."""
    return ceil(size / SWIZZLE_BYTES) * SWIZZLE_BYTES


def most_sums(consumers: int) -> int:
    """Accumulators that a thread of a consumer can hold.

    Examples
    --------
    >>> [most_sums(n) for n in (1, 2, 3)]
    [199, 176, 104]
    """
    budget = REGISTERS[consumers]
    return (255 if budget is None else budget[1]) - _OTHERS


def window_run(places: int, channels: int, panel: int) -> int:
    """Channels of one place of a window in a box of TMA: a step's, or half where that saves steps.

    Boxes have zeros behind the last channel, and a step has two halves of any places. Halves of
    pixels that begin within sectors of 32 bytes gain nothing: 16x112x112x24 to 24 channels, by
    3x3, took 45.7 us, 31.9 by ``mma.sync`` (H200).

    Examples
    --------
    >>> [window_run(9, channels, 64) for channels in (16, 24, 32, 48, 64, 96)]
    [32, 64, 32, 64, 64, 32]
    """
    half, sector = panel // 2, panel // 4
    fewer = window_steps(places, channels, panel, half) < places * ceil(channels / panel)
    return half if fewer and channels % sector == 0 else panel


def window_steps(places: int, channels: int, panel: int, run: int) -> int:
    """Steps of a window of so many places, by boxes of ``run`` channels.

    Examples
    --------
    >>> window_steps(9, 32, 64, 32), window_steps(9, 32, 64, 64)
    (5, 9)
    """
    return ceil(places * ceil(channels / run) * run / panel)


def shares_of(slices: int, sums: int, chunks: int) -> int:
    """Blocks that finish a part each of a tile whose sums as many slices add up in a cluster.

    All, where they divide a thread's ``sums``; else as many as have whole ``chunks`` of results.

    Examples
    --------
    >>> [shares_of(n, 64, 2) for n in (2, 3, 4)]
    [2, 2, 4]
    """
    if sums % slices == 0:
        return slices
    return max(n for n in range(1, slices) if chunks % n == 0)
