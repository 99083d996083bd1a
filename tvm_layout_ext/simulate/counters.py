"""What a warp's memory request costs: 32-byte sectors, shared-memory wavefronts, and their least.

Pure functions of addresses. A request is one instruction of one warp: a row of 32 byte addresses,
one a thread, of which only the active ones count. Every thread moves ``width`` bytes, at most 16;
a wider access is several instructions (:func:`instructions`).

The rules, for the 32 banks of 4 bytes:

* sectors: how many distinct 32-byte sectors the active threads touch;
* ideal sectors: ``ceil(distinct bytes touched / 32)``, what the same bytes would need if they lay
  together on a sector boundary;
* phases: up to 4 bytes a thread, the 32 threads go in one phase; 8 bytes, two phases of 16
  threads; 16 bytes, four phases of 8 threads. A phase with no active thread takes no time;
* wavefronts of a phase: the largest number of distinct 4-byte words that one bank must give. The
  same word for several threads is one word (broadcast);
* two neighbouring phases of a read (all 32 threads at 8 bytes, 16 at 16 bytes) join into one
  wavefront where every thread reads the same address as the thread at its number XOR 1, or every
  one as that at XOR 2, and the joined phase has no bank conflict;
* least wavefronts: what the same equalities between threads' addresses would cost without bank
  conflicts: one a phase, or one for two phases that may join. Bank conflicts are wavefronts minus
  this.

Measured on an H200 (``benchmarks/wavefronts.py``), the rules are exact for all writes, for reads of
1, 2, 4 and 8 bytes, and for reads of 16 bytes by whole warps. Reads of 16 bytes by part of a warp,
of addresses that several threads share, are joined by the hardware by a rule that is not known;
what is counted there can be off by one or two wavefronts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import hardware
from ..layout.requests import NOTHING, distinct, pieces, request_wavefronts

__all__ = ["Count", "count_global", "count_shared", "instructions"]

_WARP = hardware.WARP_SIZE


@dataclass(frozen=True)
class Count:
    """Sums over requests.

    Attributes
    ----------
    requests : int
        Warp instructions with at least one active thread.
    bytes : int
        What all active threads together ask for; shared addresses count each time.
    sectors, ideal_sectors : int
        32-byte sectors touched, and the least possible; 0 for shared memory.
    wavefronts, least_wavefronts : int
        Passes of the shared memory, and the least possible; 0 for global memory.
    """

    requests: int = 0
    bytes: int = 0
    sectors: int = 0
    ideal_sectors: int = 0
    wavefronts: int = 0
    least_wavefronts: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(
            self.requests + other.requests,
            self.bytes + other.bytes,
            self.sectors + other.sectors,
            self.ideal_sectors + other.ideal_sectors,
            self.wavefronts + other.wavefronts,
            self.least_wavefronts + other.least_wavefronts,
        )


def instructions(width: int) -> list[tuple[int, int]]:
    """Split a thread's access into instructions, as ``(offset, bytes)``: 32 gives two of 16."""
    widest = hardware.MAX_ACCESS_BYTES
    return [(start, min(widest, width - start)) for start in range(0, width, widest)]


def _patterns(addresses: Any, active: Any, modulo: int) -> tuple[Any, Any, Any]:
    """Rows that differ by more than a shift, and how many requests each stands for.

    A shift by a multiple of ``modulo`` bytes changes no count, and most kernels' warps all walk
    memory in one pattern, so that counting one row is enough.
    """
    lowest = np.where(active, addresses, np.iinfo(np.int64).max).min(axis=1)
    origin = lowest // modulo * modulo
    shifted = np.where(active, addresses - origin[:, None], NOTHING)
    if len(shifted) == 1 or (shifted == shifted[0]).all():
        return shifted[:1], active[:1], np.array([len(shifted)])
    packed = np.ascontiguousarray(shifted).view(np.dtype((np.void, shifted.dtype.itemsize * _WARP)))
    _, index, repeats = np.unique(packed.ravel(), return_index=True, return_counts=True)
    return shifted[index], active[index], repeats


def _live(addresses: Any, active: Any) -> tuple[Any, Any]:
    keep = active.any(axis=1)
    return (addresses, active) if keep.all() else (addresses[keep], active[keep])


def count_global(addresses: Any, active: Any, width: int) -> Count:
    """Count the sectors of global-memory requests.

    Parameters
    ----------
    addresses : array of int, [requests, 32]
        Byte address of each thread.
    active : array of bool, [requests, 32]
        Threads that take part.
    width : int
        Bytes a thread moves, at most 16.

    Examples
    --------
    >>> import numpy as np
    >>> every = np.ones((1, 32), bool)
    >>> count_global(np.arange(32)[None] * 4, every, 4).sectors
    4
    >>> count_global(np.arange(32)[None] * 128, every, 4)
    Count(requests=1, bytes=128, sectors=32, ideal_sectors=4, wavefronts=0, least_wavefronts=0)
    """
    addresses, active = _live(addresses, active)
    if not len(addresses):
        return Count()
    requests = len(addresses)
    rows, live, repeats = _patterns(addresses, active, hardware.SECTOR_BYTES)
    sectors = distinct(pieces(rows, live, width, hardware.SECTOR_BYTES))
    # Threads move aligned units of `width` bytes, so distinct units times width is distinct bytes.
    touched = distinct(np.where(live, rows, NOTHING)) * width
    ideal = -(-touched // hardware.SECTOR_BYTES)
    moved = int(active.sum()) * width
    return Count(requests, moved, int(sectors @ repeats), int(ideal @ repeats))


def count_shared(addresses: Any, active: Any, width: int, *, store: bool = False) -> Count:
    """Count the wavefronts of shared-memory requests; parameters as of :func:`count_global`.

    Parameters
    ----------
    store : bool
        Whether the request writes; only reads join phases.

    Examples
    --------
    >>> import numpy as np
    >>> every = np.ones((1, 32), bool)
    >>> count_shared(np.arange(32)[None] * 128, every, 4).wavefronts
    32
    >>> count_shared(np.arange(32)[None] * 132, every, 4).wavefronts
    1
    >>> count_shared(np.arange(32)[None] // 2 * 16, every, 16).wavefronts
    2
    """
    addresses, active = _live(addresses, active)
    if not len(addresses):
        return Count()
    requests = len(addresses)
    rows, live, repeats = _patterns(addresses, active, hardware.NUM_BANKS * hardware.BANK_BYTES)
    waves, least = request_wavefronts(rows, live, width, joins=not store)
    moved = int(active.sum()) * width
    wavefronts, least_wavefronts = int(waves @ repeats), int(least @ repeats)
    return Count(requests, moved, wavefronts=wavefronts, least_wavefronts=least_wavefronts)
