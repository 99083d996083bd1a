"""Wavefronts of shared-memory requests, by the rules that were measured on an H200.

For the 32 banks of 4 bytes:

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

Measured by ``benchmarks/wavefronts.py``, the rules are exact for all plain writes, for reads of 1,
2, 4 and 8 bytes, and for reads of 16 bytes by whole warps. Reads of 16 bytes by part of a warp, of
addresses that several threads share, are joined by the hardware by a rule that is not known; what
is counted there can be off by one or two wavefronts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .hardware import BANK_BYTES, NUM_BANKS, WARP_SIZE
from .requests import NOTHING, distinct, pieces


def request_wavefronts(
    addresses: Any, active: Any, width: int, *, joins: bool = True
) -> tuple[Any, Any]:
    """Count the wavefronts of each request, and the least that its broadcasts allow.

    ``addresses`` and ``active`` lanes are ``[requests, 32]``, and every request has an active one;
    a lane moves ``width`` bytes, 16 at most. Phases of reads by plain instructions may join.

    Examples
    --------
    >>> every = np.ones((1, 32), bool)
    >>> request_wavefronts(np.arange(32)[None] * 128, every, 4)
    (array([32]), array([1]))
    """
    if width <= BANK_BYTES:
        waves = _phase_wavefronts(pieces(addresses, active, width, BANK_BYTES))
        return waves, np.ones_like(waves)
    return _wide_wavefronts(addresses, active, width, joins)


def _phase_wavefronts(words: Any) -> Any:
    """Most distinct words in one bank, for each row of word numbers."""
    ordered = np.sort(words, axis=1)
    fresh = ordered != NOTHING
    fresh[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    slots = np.arange(len(words))[:, None] * NUM_BANKS + ordered % NUM_BANKS
    loads = np.bincount(slots[fresh], minlength=len(words) * NUM_BANKS)
    return loads.reshape(-1, NUM_BANKS).max(axis=1)


def _wide_wavefronts(rows: Any, live: Any, width: int, joins: bool) -> tuple[Any, Any]:
    """Wavefronts, and the least, of requests of 8 or 16 bytes a thread."""
    threads = WARP_SIZE * BANK_BYTES // width
    group = 2 * threads
    rows, live = rows.reshape(-1, group), live.reshape(-1, group)
    words = pieces(rows, live, width, BANK_BYTES)
    waves = _phase_wavefronts(words.reshape(2 * len(words), -1)).reshape(-1, 2).sum(axis=1)
    least = live.reshape(-1, 2, threads).any(axis=2).sum(axis=1)
    if joins:
        joined = _phase_wavefronts(words)
        joinable = _joinable(rows, live)
        waves = np.where(joinable & (joined <= 1), joined, waves)
        fits = distinct(words) <= NUM_BANKS
        least = np.where(joinable & fits, np.minimum(least, 1), least)
    a_request = (-1, WARP_SIZE // group)
    return waves.reshape(a_request).sum(axis=1), least.reshape(a_request).sum(axis=1)


def phases(addresses: Any, active: Any, width: int, *, joins: bool = True) -> list[range]:
    """List the lanes of one request that the memory serves together; parameters as above."""
    lanes = WARP_SIZE * BANK_BYTES // max(BANK_BYTES, width)
    found = [range(first, first + lanes) for first in range(0, WARP_SIZE, lanes)]
    if not joins or width <= BANK_BYTES:
        return found
    rows, live = addresses.reshape(-1, 2 * lanes), active.reshape(-1, 2 * lanes)
    together = _joinable(rows, live) & (
        _phase_wavefronts(pieces(rows, live, width, BANK_BYTES)) <= 1
    )
    pairs = zip(together, found[::2], found[1::2], strict=True)
    return [
        lanes
        for joined, first, second in pairs
        for lanes in ([range(first.start, second.stop)] if joined else [first, second])
    ]


def _joinable(rows: Any, live: Any) -> Any:
    """Whether two phases may join: the threads of each row ask for the same addresses in pairs."""
    return _paired(rows, live, 1) | _paired(rows, live, 2)


def _paired(rows: Any, live: Any, distance: int) -> Any:
    """Whether every thread of a row reads what the thread at ``number ^ distance`` reads."""
    partner = np.arange(rows.shape[1]) ^ distance
    same = (rows == rows[:, partner]) | ~live | ~live[:, partner]
    return same.all(axis=1)
