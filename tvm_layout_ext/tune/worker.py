"""A process of its own for what may crash or hang: TVM's popen worker, with a second watchdog."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tvm.support.popen_pool import PopenWorker

__all__ = ["TrialCrashError", "TrialTimeoutError", "Worker"]

#: TVM's worker ends a call that is late by itself, unless it cannot: then this much later we do.
GRACE = 5.0


class TrialTimeoutError(TimeoutError):
    """A call that took too long; its process was ended."""


class TrialCrashError(ChildProcessError):
    """A call during which its process ended."""


class Worker:
    """Runs functions in a process, which is started when first needed, and anew after it ended.

    Parameters
    ----------
    log : Path
        File for what the process writes to its standard error.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._worker: PopenWorker | None = None
        self._process = 0

    def call(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
        """Run a function there and return its result.

        Raises
        ------
        TrialTimeoutError
            If it took longer than ``timeout`` seconds.
        TrialCrashError
            If the process ended.
        Exception
            What the function raised.
        """
        worker = self._started()
        late = threading.Event()
        watchdog = threading.Timer((timeout or 0) + GRACE, self._kill_hard, [late])
        if timeout is not None:
            watchdog.start()
        try:
            worker.send(function, args, timeout=timeout)
            return worker.recv()
        except (TimeoutError, ChildProcessError) as error:
            self.replace()
            if late.is_set() or isinstance(error, TimeoutError):
                raise TrialTimeoutError(f"It was ended after {timeout:g} seconds.") from None
            raise TrialCrashError(f"Its process ended: {self._last_words()}.") from None
        finally:
            watchdog.cancel()

    def _started(self) -> PopenWorker:
        if self._worker is None:
            with self._log.open("wb") as log:
                worker = PopenWorker(stdout=log, stderr=log)
                worker.send(_start)
                self._worker, self._process = worker, worker.recv()
        return self._worker

    def _kill_hard(self, late: threading.Event) -> None:
        late.set()
        with suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGKILL)

    def _last_words(self) -> str:
        """What Python or TVM said when the process ended, e.g. ``Fatal Python error: Aborted``."""
        lines = self._log.read_text(errors="replace").splitlines()
        fatal = [line for line in lines if "Fatal Python error" in line]
        said = [line for line in lines if line.strip()]
        return (fatal or said[-1:] or ["it said nothing"])[0].strip().rstrip(".")

    def replace(self) -> None:
        """End the process; the next call starts a fresh one."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()


def _start() -> int:
    faulthandler.enable()
    return os.getpid()
