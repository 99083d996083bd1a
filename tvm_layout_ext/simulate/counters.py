"""What a warp's memory request costs: 32-byte sectors, shared-memory wavefronts, and the least of each.

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
* least wavefronts: one a phase, which some address pattern of that width and those threads
  reaches. Bank conflicts are wavefronts minus this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import hardware

__all__ = ["Count", "count_global", "count_shared", "instructions"]

_WARP = hardware.WARP_SIZE
#: Marks an inactive thread among sector or word numbers: below every real one.
_NOTHING = -1


@dataclass(frozen=True)
class Count:
    """Sums over requests.

    Attributes
    ----------
    requests : int
        Warp instructions with at least one active thread.
    sectors, ideal_sectors : int
        32-byte sectors touched, and the least possible; 0 for shared memory.
    wavefronts, least_wavefronts : int
        Passes of the shared memory, and the least possible; 0 for global memory.
    """

    requests: int = 0
    sectors: int = 0
    ideal_sectors: int = 0
    wavefronts: int = 0
    least_wavefronts: int = 0


def instructions(width: int) -> list[tuple[int, int]]:
    """Split an access of one thread into instructions, as ``(offset, bytes)``: 32 gives two of 16."""
    widest = hardware.MAX_ACCESS_BYTES
    return [(start, min(widest, width - start)) for start in range(0, width, widest)]


def _distinct(values: Any) -> Any:
    """Count the distinct non-negative entries of each row."""
    ordered = np.sort(values, axis=1)
    steps = np.count_nonzero(ordered[:, 1:] != ordered[:, :-1], axis=1)
    return steps + (ordered[:, 0] != _NOTHING)


def _patterns(addresses: Any, active: Any, modulo: int) -> tuple[Any, Any, Any]:
    """Rows that differ by more than a shift, and how many requests each stands for.

    A shift by a multiple of ``modulo`` bytes changes no count, and most kernels' warps all walk
    memory in one pattern, so that counting one row is enough.
    """
    lowest = np.where(active, addresses, np.iinfo(np.int64).max).min(axis=1)
    origin = lowest // modulo * modulo
    shifted = np.where(active, addresses - origin[:, None], _NOTHING)
    if len(shifted) == 1 or (shifted == shifted[0]).all():
        return shifted[:1], active[:1], np.array([len(shifted)])
    packed = np.ascontiguousarray(shifted).view(np.dtype((np.void, shifted.dtype.itemsize * _WARP)))
    _, index, repeats = np.unique(packed.ravel(), return_index=True, return_counts=True)
    return shifted[index], active[index], repeats


def _live(addresses: Any, active: Any) -> tuple[Any, Any]:
    keep = active.any(axis=1)
    return (addresses, active) if keep.all() else (addresses[keep], active[keep])


def _pieces(addresses: Any, active: Any, width: int, piece: int) -> Any:
    """Numbers of all ``piece``-byte units each row touches, with -1 for inactive threads."""
    first = addresses // piece
    last = (addresses + width - 1) // piece
    span = int((last - first)[active].max(initial=0)) + 1
    units = first[:, :, None] + np.arange(span)
    wanted = active[:, :, None] & (units <= last[:, :, None])
    return np.where(wanted, units, _NOTHING).reshape(len(addresses), -1)


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
    Count(requests=1, sectors=32, ideal_sectors=4, wavefronts=0, least_wavefronts=0)
    """
    addresses, active = _live(addresses, active)
    if not len(addresses):
        return Count()
    requests = len(addresses)
    rows, live, repeats = _patterns(addresses, active, hardware.SECTOR_BYTES)
    sectors = _distinct(_pieces(rows, live, width, hardware.SECTOR_BYTES))
    # Threads move aligned units of `width` bytes, so distinct units times width is distinct bytes.
    touched = _distinct(np.where(live, rows, _NOTHING)) * width
    ideal = -(-touched // hardware.SECTOR_BYTES)
    return Count(requests, int(sectors @ repeats), int(ideal @ repeats))


def _phase_wavefronts(words: Any) -> Any:
    """Most distinct words in one bank, for each row of word numbers."""
    ordered = np.sort(words, axis=1)
    fresh = np.ones(ordered.shape, bool)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    fresh &= ordered != _NOTHING
    rows = np.broadcast_to(np.arange(len(words))[:, None], ordered.shape)
    slots = rows[fresh] * hardware.NUM_BANKS + ordered[fresh] % hardware.NUM_BANKS
    loads = np.bincount(slots, minlength=len(words) * hardware.NUM_BANKS)
    return loads.reshape(-1, hardware.NUM_BANKS).max(axis=1)


def count_shared(addresses: Any, active: Any, width: int) -> Count:
    """Count the wavefronts of shared-memory requests; parameters as of :func:`count_global`.

    Examples
    --------
    >>> import numpy as np
    >>> every = np.ones((1, 32), bool)
    >>> count_shared(np.arange(32)[None] * 128, every, 4).wavefronts
    32
    >>> count_shared(np.arange(32)[None] * 132, every, 4).wavefronts
    1
    """
    addresses, active = _live(addresses, active)
    if not len(addresses):
        return Count()
    requests = len(addresses)
    rows, live, repeats = _patterns(
        addresses, active, hardware.NUM_BANKS * hardware.BANK_BYTES
    )
    threads = min(_WARP, _WARP * hardware.BANK_BYTES // width)
    phases = rows.reshape(-1, threads), live.reshape(-1, threads)
    waves = _phase_wavefronts(_pieces(*phases, width, hardware.BANK_BYTES))
    weight = np.repeat(repeats, _WARP // threads)
    busy = phases[1].any(axis=1)
    return Count(
        requests, wavefronts=int(waves @ weight), least_wavefronts=int(busy @ weight)
    )
