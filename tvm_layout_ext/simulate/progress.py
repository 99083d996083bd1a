"""Progress on stderr for simulations of more than two seconds: a bar in a terminal, else lines."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

__all__ = ["Progress"]

_QUIET_SECONDS = 2.0
_LINE_SECONDS = 1.0


class Progress:
    """Shows how many blocks of the current launch are done.

    Parameters
    ----------
    wanted : bool or None
        False shows nothing; True and None show a bar in a terminal and otherwise at most one
        line a second, both only after two seconds.
    """

    def __init__(self, wanted: bool | None = None) -> None:
        self._wanted = wanted is not False
        self._start = self._last = time.monotonic()
        self._bar: Any = None
        self._task: Any = None
        self._label = ""
        self._done = self._total = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, label: str, total: int) -> None:
        """Start a launch of ``total`` blocks."""
        self._label, self._total, self._done = label, total, 0
        if self._bar is not None:
            self._bar.reset(self._task, total=total, description=label)

    def advance(self, blocks: int) -> None:
        """Note that more blocks are done."""
        self._done += blocks
        now = time.monotonic()
        if not self._wanted or now - self._start < _QUIET_SECONDS:
            return
        if sys.stderr.isatty():
            self._show_bar()
        elif now - self._last >= _LINE_SECONDS:
            self._last = now
            print(  # noqa: T201
                f"simulate {self._label}: {self._done:,} of {self._total:,} blocks, "
                f"{now - self._start:.0f} s",
                file=sys.stderr,
            )

    def _show_bar(self) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import Progress as Bar

            self._bar = Bar(console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._label, total=self._total)
        self._bar.update(self._task, completed=self._done, description=self._label)
