"""Progress on stderr for simulations of more than two seconds: at most a line a second."""

from __future__ import annotations

import sys
import time

_QUIET_SECONDS = 2.0
_LINE_SECONDS = 1.0


class Progress:
    """Says how many blocks of a launch are done; a terminal shows one line that changes."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._start = self._last = time.monotonic()
        self._label = ""
        self._done = self._total = 0
        self._open = False

    def close(self) -> None:
        """End the line that changes."""
        if self._open:
            print(file=sys.stderr)  # noqa: T201

    def begin(self, label: str, total: int) -> None:
        """Start a launch of ``total`` blocks."""
        self._label, self._total, self._done = label, total, 0

    def advance(self, blocks: int) -> None:
        """Note that more blocks are done."""
        self._done += blocks
        now = time.monotonic()
        quiet = now - self._start < _QUIET_SECONDS or now - self._last < _LINE_SECONDS
        if quiet or not self._wanted:
            return
        self._last, self._open = now, sys.stderr.isatty()
        text = (
            f"simulate {self._label}: {self._done:,} of {self._total:,} blocks, "
            f"{now - self._start:.0f} s"
        )
        ends = {"end": "\r", "flush": True} if self._open else {}
        print(text, file=sys.stderr, **ends)  # type: ignore[call-overload]  # noqa: T201
