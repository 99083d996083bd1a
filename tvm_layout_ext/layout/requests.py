"""Wavefronts of whole shared-memory requests, by the rules that were measured on an H200.

:func:`.banks.wavefronts` counts phases one by one. The hardware does a little better: two
neighbouring phases of a read join where their threads ask for the same addresses in pairs. The
rules are written down in :mod:`tvm_layout_ext.simulate.counters`, which counts by them what a
kernel does; :mod:`tvm_layout_ext.analysis.bank_conflict` counts what its index expressions say.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..hardware import BANK_BYTES, NUM_BANKS, WARP_SIZE

__all__ = ["NOTHING", "distinct", "distinct_rows", "pieces", "request_wavefronts"]

#: Marks an inactive thread among sector or word numbers: below every real one.
NOTHING = -1


def distinct(values: Any) -> Any:
    """Count the distinct non-negative entries of each row."""
    ordered = np.sort(values, axis=1)
    steps = np.count_nonzero(ordered[:, 1:] != ordered[:, :-1], axis=1)
    return steps + (ordered[:, 0] != NOTHING)


def distinct_rows(rows: Any) -> tuple[Any, Any, Any]:
    """Distinct rows, where each stands first, and which of them each row is."""
    rows = np.ascontiguousarray(rows)
    packed = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
    _, index, inverse = np.unique(packed, return_index=True, return_inverse=True)
    return rows[index], index, inverse.reshape(-1)


def pieces(addresses: Any, active: Any, width: int, piece: int) -> Any:
    """Numbers of all ``piece``-byte units each row touches, with -1 for inactive threads."""
    first = addresses // piece
    aligned = piece % width == 0 or width % piece == 0
    if aligned and not (addresses % min(width, piece)).any():
        units = first[:, :, None] + np.arange(max(1, width // piece))
        return np.where(active[:, :, None], units, NOTHING).reshape(len(addresses), -1)
    last = (addresses + width - 1) // piece
    span = int((last - first)[active].max(initial=0)) + 1
    units = first[:, :, None] + np.arange(span)
    wanted = active[:, :, None] & (units <= last[:, :, None])
    return np.where(wanted, units, NOTHING).reshape(len(addresses), -1)


def request_wavefronts(
    addresses: Any, active: Any, width: int, *, joins: bool = True
) -> tuple[Any, Any]:
    """Count the wavefronts of each request, and the least that its broadcasts allow.

    Parameters
    ----------
    addresses : array of int, [requests, 32]
        Byte address of each lane.
    active : array of bool, [requests, 32]
        Lanes that take part; every request has one.
    width : int
        Bytes that a lane moves, at most 16.
    joins : bool
        Whether phases may join: of reads by plain instructions they do.

    Returns
    -------
    tuple of array of int, [requests]
        Wavefronts, and the least possible.

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
        joinable = _paired(rows, live, 1) | _paired(rows, live, 2)
        waves = np.where(joinable & (joined <= 1), joined, waves)
        fits = distinct(words) <= NUM_BANKS
        least = np.where(joinable & fits, np.minimum(least, 1), least)
    a_request = (-1, WARP_SIZE // group)
    return waves.reshape(a_request).sum(axis=1), least.reshape(a_request).sum(axis=1)


def _paired(rows: Any, live: Any, distance: int) -> Any:
    """Whether every thread of a row reads what the thread at ``number ^ distance`` reads."""
    partner = np.arange(rows.shape[1]) ^ distance
    same = (rows == rows[:, partner]) | ~live | ~live[:, partner]
    return same.all(axis=1)
