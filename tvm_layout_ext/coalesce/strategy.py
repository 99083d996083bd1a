"""A proposal for a block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .isolate import Isolated


@dataclass(frozen=True)
class Strategy:
    """One way to map a block: what it is called, and what applies it.

    Attributes
    ----------
    path : str
        ``direct``, ``shifted``, ``staged``, ``copy`` or ``reduction``.
    apply : callable
        Maps the block of a schedule; returns a text for the report, and blocks, which are not
        looked at.
    isolated : Isolated, optional
        The program that it is for, where that is the block's own.
    """

    path: str
    apply: Callable[[Any, Any], tuple[str, list[Any]]]
    isolated: Isolated | None = None
