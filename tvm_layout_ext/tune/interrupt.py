"""Ctrl-C that is not lost, wherever in a trial it comes."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Interrupt"]


class Interrupt:
    """While entered, remembers that Ctrl-C was pressed, beside raising KeyboardInterrupt.

    The exception alone is not enough: raised inside a callback from C++ or a finaliser it may come
    out as another exception or not at all, and a trial that failed of it would be taken for a bad
    candidate.
    """

    def __init__(self) -> None:
        self.asked = False
        self._previous: Any = None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed since the block was entered."""
        if self.asked:
            raise KeyboardInterrupt
