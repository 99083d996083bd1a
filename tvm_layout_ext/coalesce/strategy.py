"""A proposal for a block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .isolate import Isolated


@dataclass(frozen=True)
class Strategy:
    """One way to map a block: what it is called, and what applies it."""

    path: str  #: ``direct``, ``shifted``, ``staged``, ``copy`` or ``reduction``
    apply: Callable[[Any, Any], str]  #: Maps the block of a schedule; tells how
    isolated: Isolated | None = None  #: The program that it is for, where that is the block's own
