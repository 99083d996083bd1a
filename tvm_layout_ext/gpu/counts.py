"""What a warp's memory request costs: 32-byte sectors, shared-memory wavefronts, and their least.

Pure functions of addresses. A request is one instruction of one warp: a row of 32 byte addresses,
one a thread, of which only the active ones count. Every thread moves ``width`` bytes, at most 16;
a wider access, or of 3 or 6 elements, is several instructions (:func:`instructions`).

:mod:`.banks` has the rules of shared memory, :mod:`.requests` those of global memory. Asynchronous
copies (``cp.async``) go by rules of their own, which depend on global addresses, too:
:mod:`.copies`. Nsight Compute calls none of these a bank conflict, so their least is what they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from . import hardware
from .banks import request_wavefronts
from .copies import copy_wavefronts, distinct_requests
from .requests import NOTHING, distinct_rows, request_sectors


@dataclass(frozen=True)
class Count:
    """Sums over requests."""

    requests: int = 0  #: Warp instructions with at least one active thread
    bytes: int = 0  #: Of all active threads; shared addresses count each time
    sectors: int = 0  #: 32-byte sectors touched; 0 for shared memory
    ideal_sectors: int = 0  #: The least possible
    wavefronts: int = 0  #: Passes of the shared memory; 0 for global memory
    least_wavefronts: int = 0  #: The least possible

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
    """Split a thread's access into instructions, as ``(offset, bytes)``.

    TVM writes a vector as one access of a CUDA vector type, which is aligned to the largest power
    of two in its size: ``float3`` to 4 bytes, ``uint3`` of six halves to 4. ``ptxas`` (CUDA 13.0,
    sm_90a) makes it instructions of that width, 16 bytes at most, plain or under a condition. Where
    the condition differs among the elements TVM writes a loop over them.

    Examples
    --------
    >>> instructions(32), instructions(12)
    ([(0, 16), (16, 16)], [(0, 4), (4, 4), (8, 4)])
    """
    widest = min(hardware.MAX_ACCESS_BYTES, width & -width)
    return [(start, widest) for start in range(0, width, widest)]


def _patterns(addresses: Any, active: Any, modulo: int) -> tuple[Any, Any, Any]:
    """Rows that differ by more than a shift by ``modulo`` bytes, and requests of each."""
    lowest = np.where(active, addresses, np.iinfo(np.int64).max).min(axis=1)
    origin = lowest // modulo * modulo
    shifted = np.where(active, addresses - origin[:, None], NOTHING)
    if len(shifted) == 1 or (shifted == shifted[0]).all():
        return shifted[:1], active[:1], np.array([len(shifted)])
    rows, index, like = distinct_rows(shifted)
    return rows, active[index], np.bincount(like)


def _live(addresses: Any, active: Any) -> tuple[Any, Any]:
    keep = active.any(axis=1)
    return (addresses, active) if keep.all() else (addresses[keep], active[keep])


def count_global(addresses: Any, active: Any, width: int) -> Count:
    """Count the sectors of global-memory requests: parameters as of :func:`.request_sectors`.

    Examples
    --------
    >>> import numpy as np
    >>> every = np.ones((1, 32), bool)
    >>> count_global(np.arange(32)[None] * 128, every, 4)
    Count(requests=1, bytes=128, sectors=32, ideal_sectors=4, wavefronts=0, least_wavefronts=0)
    """
    addresses, active = _live(addresses, active)
    if not len(addresses):
        return Count()
    requests = len(addresses)
    rows, live, repeats = _patterns(addresses, active, hardware.SECTOR_BYTES)
    sectors, ideal = request_sectors(rows, live, width)
    moved = int(active.sum()) * width
    return Count(requests, moved, int(sectors @ repeats), int(ideal @ repeats))


def count_shared(addresses: Any, active: Any, width: int, *, store: bool = False) -> Count:
    """Count the wavefronts of shared-memory requests; only reads, not a ``store``, join phases.

    Examples
    --------
    >>> import numpy as np
    >>> every = np.ones((1, 32), bool)
    >>> count_shared(np.arange(32)[None] * 132, every, 4).wavefronts
    1
    """
    addresses, active = _live(addresses, active)
    if not len(addresses):
        return Count()
    requests = len(addresses)
    rows, live, repeats = _patterns(addresses, active, hardware.LINE_BYTES)
    waves, least = request_wavefronts(rows, live, width, joins=not store)
    moved = int(active.sum()) * width
    wavefronts, least_wavefronts = int(waves @ repeats), int(least @ repeats)
    return Count(requests, moved, wavefronts=wavefronts, least_wavefronts=least_wavefronts)


def count_copies(
    sources: Any,
    addresses: Any,
    active: Any,
    width: int = hardware.MAX_ACCESS_BYTES,
    *,
    through_cache: bool = False,
    fills: bool = False,
) -> Count:
    """Count the shared-memory wavefronts of asynchronous copies.

    Parameters are as of :func:`.copies.copy_wavefronts`.

    Examples
    --------
    Rows of 64 bytes that lie 512 bytes apart in global memory:

    >>> import numpy as np
    >>> every, lane = np.ones((1, 32), bool), np.arange(32)[None]
    >>> count_copies(lane // 4 * 512 + lane % 4 * 16, lane * 16, every).wavefronts
    8
    """
    sources, _ = _live(sources, active)
    addresses, active = _live(addresses, active)
    if not len(addresses):
        return Count()
    requests, moved = len(addresses), int(active.sum()) * width
    read, written, index, like = distinct_requests(sources, addresses, active)
    waves = copy_wavefronts(
        read, written, active[index], width, through_cache=through_cache, fills=fills
    )
    total = int(waves[like].sum())
    return Count(requests, moved, wavefronts=total, least_wavefronts=total)
