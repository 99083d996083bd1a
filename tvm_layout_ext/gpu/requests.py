"""Rows of a request: the units that its threads touch, and the sectors of global memory.

A request is a row of 32 byte addresses, one a thread, of which only the active ones count.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .hardware import SECTOR_BYTES

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
        wanted = active[:, :, None]
    else:
        last = (addresses + width - 1) // piece
        span = int((last - first)[active].max(initial=0)) + 1
        units = first[:, :, None] + np.arange(span)
        wanted = active[:, :, None] & (units <= last[:, :, None])
    rows, threads, span = units.shape
    return np.where(wanted, units, NOTHING).reshape(rows, threads * span)


def request_sectors(addresses: Any, active: Any, width: int) -> tuple[Any, Any]:
    """Count the sectors that each request touches, and those that its bytes would fill.

    ``addresses`` and ``active`` threads are ``[requests, threads]``; a thread moves ``width``
    bytes, and those of two threads are the same or apart.

    Examples
    --------
    >>> every = np.ones((1, 32), bool)
    >>> request_sectors(np.arange(32)[None] * 128, every, 4)
    (array([32]), array([4]))
    """
    touched = distinct(pieces(addresses, active, width, SECTOR_BYTES))
    moved = distinct(np.where(active, addresses, NOTHING)) * width
    return touched, -(-moved // SECTOR_BYTES)


def sectors_per_request(sectors: int, requests: int) -> float:
    """Sectors of an average request; 0 without any."""
    return sectors / requests if requests else 0.0
