"""Sectors of global memory that requests move."""

from __future__ import annotations

from typing import Any

import numpy as np

from .hardware import SECTOR_BYTES
from .requests import NOTHING, distinct, pieces


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
