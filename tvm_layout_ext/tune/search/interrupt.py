"""Ctrl-C that is not lost, wherever in a trial it comes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupt:
    """While entered, remembers that Ctrl-C was pressed, beside raising KeyboardInterrupt.

    Raised inside a callback from C++ the exception may come out as another one or not at all. TVM's
    search, whose callbacks run in threads, ends the process by it: see :meth:`held`.
    """

    def __init__(self) -> None:
        self.asked = False
        self._holders = 0
        self._previous: Any = None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True
        if not self._holders:
            raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let Ctrl-C wait for the end of a block, of nested ones the outermost."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
        if not self._holders:
            self.check()

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed since the block was entered."""
        if self.asked:
            raise KeyboardInterrupt
