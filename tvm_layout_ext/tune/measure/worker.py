"""A process of its own for what may crash or hang: TVM's popen worker, with a second watchdog."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from tvm.support.popen_pool import PopenWorker

#: TVM's worker ends a call that is late by itself, unless it cannot: then this much later we do.
GRACE = 5.0
#: A process that ends before it is ready, as where memory is short, is started anew so often.
STARTS = 3


#: What a process runs. TVM imports PyTorch where it is installed, which takes longer than all else
#: that a process imports, and initialises CUDA.
_PROGRAM = "import sys; sys.modules['torch'] = None; from tvm.exec.popen_worker import main; main()"


class LeanWorker(PopenWorker):
    """TVM's worker without PyTorch; what needs it there fails as if it were not installed."""

    #: Variables that its process has besides those of this one.
    environment: ClassVar[Mapping[str, str]] = {}
    _proc: Any

    def _start(self) -> None:
        if self._proc is not None:
            return
        main_read, worker_write = os.pipe()
        worker_read, main_write = os.pipe()
        self._proc = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(worker_read), str(worker_write)],
            pass_fds=(worker_read, worker_write),
            stdout=self._stdout,
            stderr=self._stderr,
            env={**os.environ, **self.environment},
        )
        os.close(worker_read)
        os.close(worker_write)
        self._reader, self._writer = os.fdopen(main_read, "rb"), os.fdopen(main_write, "wb")


class TrialTimeoutError(TimeoutError):
    """A call that took too long; its process was ended."""


class TrialCrashError(ChildProcessError):
    """A call during which its process ended."""


class Worker:
    """Runs functions in a process, which is started when first needed, and anew after it ended.

    Once one had to be replaced, the next is kept ready: to import TVM takes seconds.
    """

    def __init__(self, log: Path) -> None:
        self._log, self._launched, self._replaced = log, 0, False
        self._closed = False
        self._worker: LeanWorker | None = None
        self._spare: tuple[LeanWorker, Path] | None = None
        self._words = log
        self._process = 0

    def begin(self) -> None:
        """Start the first process, without waiting until it is ready."""
        if self._worker is None and self._spare is None:
            self._spare = self._launch()

    def call(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
        """Run a function there and return its result.

        TrialTimeoutError if it took longer than ``timeout`` seconds, TrialCrashError if the process
        ended or none could be started; else what the function raised.
        """
        worker = self.start()
        late = threading.Event()
        watchdog = threading.Timer((timeout or 0) + GRACE, self._kill_hard, [late])
        if timeout is not None:
            watchdog.start()
        try:
            worker.send(_caught, (function, args), timeout=timeout)
            result, raised = worker.recv()
        except (TimeoutError, ChildProcessError) as error:
            self.replace()
            if late.is_set() or isinstance(error, TimeoutError):
                raise TrialTimeoutError(f"It was ended after {timeout:g} seconds.") from None
            raise TrialCrashError(f"Its process ended: {self._last_words()}.") from None
        finally:
            watchdog.cancel()
        if raised is not None:
            kind, text = raised
            raise kind(text)
        return result

    def start(self) -> LeanWorker:
        """Wait until there is a process; TVM's handle of it, or TrialCrashError."""
        starts = 0
        while self._worker is None:
            if self._closed:
                raise TrialCrashError("Its process was closed.")
            worker, self._words = self._spare or self._launch()
            self._spare = self._launch() if self._replaced else None
            try:
                self._process = worker.recv()
                self._worker = worker
            except ChildProcessError:
                starts += 1
                self._replaced = True
                if starts == STARTS:
                    raise TrialCrashError(
                        f"A process to measure in did not start, {STARTS} times: "
                        f"{self._last_words()}."
                    ) from None
        return self._worker

    def _launch(self) -> tuple[LeanWorker, Path]:
        """Start a process without waiting until it is ready."""
        self._launched += 1
        words = self._log.with_suffix(f".{self._launched}{self._log.suffix}")
        with words.open("wb") as log:
            worker = LeanWorker(stdout=log, stderr=log)
            worker.send(_start)
        return worker, words

    def _kill_hard(self, late: threading.Event) -> None:
        late.set()
        with suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGKILL)

    def _last_words(self) -> str:
        """What Python or TVM said when the process ended, e.g. ``Fatal Python error: Aborted``."""
        lines = self._words.read_text(errors="replace").splitlines()
        fatal = [line for line in lines if "Fatal Python error" in line]
        said = [line for line in lines if line.strip()]
        return (fatal or said[-1:] or ["it said nothing"])[0].strip().rstrip(".")

    def replace(self) -> None:
        """End the process; the next call gets a fresh one."""
        worker, self._worker = self._worker, None
        if worker is not None:
            self._replaced = True
            # TVM's kill waits for a thread that reads the answer of a call, and that for the end.
            with suppress(ProcessLookupError):
                os.kill(self._process, signal.SIGKILL)
            # A thread that was reading cleans up as well; TVM may find that done halfway.
            with suppress(AttributeError):
                worker.kill()

    def close(self) -> None:
        """End all processes; there will be no others."""
        self._closed = True
        self.replace()
        if self._spare is not None:
            self._spare[0].kill()
            self._spare = None


def _caught(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, Any]:
    """A function's result, or its error's class and text, for which TVM gives a traceback."""
    try:
        return function(*args), None
    except Exception as error:
        return None, (type(error), str(error))


def ignore_ctrl_c() -> None:
    """Leave Ctrl-C, which a terminal sends to all processes, to the one that started this."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _start() -> int:
    ignore_ctrl_c()
    faulthandler.enable()
    return os.getpid()
