"""The errors that users see: one plain sentence each, with the names and the numbers in it."""

from __future__ import annotations

import re

from .text import shortened

__all__ = [
    "LayoutError",
    "NotModelled",
    "RecordError",
    "ScheduleError",
    "SimulationError",
    "TargetError",
]


#: Characters of an error; of a longer one, which quotes a long value, the middle is left out.
_LONGEST = 500


class LayoutExtError(Exception):
    """Base of every error this package raises on purpose; its text is one line."""

    def __init__(self, text: str) -> None:
        super().__init__(shortened(re.sub(r"\s*\n\s*", " ", text.strip()), _LONGEST))


class LayoutError(LayoutExtError, ValueError):
    """A layout, alignment or access that cannot be: bad parameters, or no legal placement."""


class ScheduleError(LayoutExtError, ValueError):
    """A schedule request that is not legal: unknown axis, bad factor, wrong stage, wrong order."""


class TargetError(LayoutExtError, ValueError):
    """A kernel that the target cannot hold: too much shared memory, or no thread at all."""


class RecordError(LayoutExtError, ValueError):
    """A tuning record or log that cannot be read, written or replayed."""


class NotModelled(LayoutExtError, NotImplementedError):  # noqa: N818 (the name users catch)
    """The simulated GPU met something that it does not model; it never guesses."""


class SimulationError(LayoutExtError, RuntimeError):
    """The simulated program did something illegal: an access out of bounds, a poisoned address."""
