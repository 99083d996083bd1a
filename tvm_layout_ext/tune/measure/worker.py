"""Processes that answer calls: whatever may crash or hang runs in one of its own.

A call is a pickled function with its arguments, an answer JSON: whoever calls a server that others
run takes nothing from it but text.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .backend import ReportedError, failure_text

#: The begin of a process's program: where PyTorch is installed, TVM imports it, which takes longer
#: than all else that a process imports, and initialises CUDA. What needs it there fails.
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None\n"
#: What measures is imported before the first call.
_PROGRAM = (
    f"{WITHOUT_TORCH}import tvm_layout_ext.tune.measure.run_local\n"
    "from tvm_layout_ext.tune.measure.worker import main; main()"
)


class TrialTimeoutError(TimeoutError):
    """A call that took too long; its process was ended."""


class TrialCrashError(ChildProcessError):
    """A call during which its process ended."""


def ask(
    pipe: Connection, function: Callable[..., Any], *args: Any, timeout: float | None = None
) -> Any:
    """Have a function called at the other end; a ReportedError says what it raised.

    TrialTimeoutError without an answer in ``timeout`` seconds; EOFError or OSError if the other end
    goes away.
    """
    pipe.send((function, args))
    if not pipe.poll(timeout):
        raise TrialTimeoutError(f"It was ended after {timeout:g} seconds.")
    result, failure = json.loads(pipe.recv_bytes())
    if failure is not None:
        raise ReportedError(failure)
    return result


def answer(pipe: Connection, idle: float = 0.0) -> None:
    """Answer calls until the other end goes away, or says nothing for ``idle`` seconds."""
    with suppress(EOFError, OSError):
        pipe.send_bytes(b"ready")
        while True:
            signal.setitimer(signal.ITIMER_REAL, idle)
            function, args = pipe.recv()
            try:
                result, failure = function(*args), None
            except Exception as error:
                result, failure = None, failure_text(error)
            pipe.send_bytes(json.dumps([result, failure]).encode())


class Worker:
    """Runs functions in a process of this machine, which is started anew after it ended."""

    def __init__(self, log: Path) -> None:
        self._log, self._closed, self._ready = log, False, False
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None

    @property
    def pid(self) -> int | None:
        """Number of the process, if there is one."""
        return None if self._process is None else self._process.pid

    def begin(self) -> Connection:
        """Start a process if there is none, without waiting until it is ready."""
        if self._pipe is None:
            if self._closed:
                raise TrialCrashError("Its process was closed.")
            ours, theirs = socket.socketpair()
            with theirs, self._log.open("wb") as log:
                command = [sys.executable, "-c", _PROGRAM, str(theirs.fileno())]
                self._process = subprocess.Popen(
                    command, pass_fds=[theirs.fileno()], stdout=log, stderr=log
                )
            self._pipe, self._ready = Connection(ours.detach()), False
        return self._pipe

    def call(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
        """Run a function there; its result as JSON has it.

        TrialTimeoutError if it took longer than ``timeout`` seconds, TrialCrashError if the process
        ended or did not start; a ReportedError says what the function raised.
        """
        pipe = self.begin()
        try:
            if not self._ready:
                pipe.recv_bytes()
                self._ready = True
            return ask(pipe, function, *args, timeout=timeout)
        except TrialTimeoutError:
            self.replace()
            raise
        except (EOFError, OSError):
            ended = "Its process ended" if self._ready else "A process to measure in did not start"
            words = self._last_words()
            self.replace()
            raise TrialCrashError(f"{ended}: {words}.") from None

    def _last_words(self) -> str:
        """What Python or TVM said when the process ended, e.g. ``Fatal Python error: Aborted``."""
        if not self._log.exists():
            return "it said nothing"
        lines = self._log.read_text(errors="replace").splitlines()
        fatal = [line for line in lines if "Fatal Python error" in line]
        said = [line for line in lines if line.strip()]
        return (fatal or said[-1:] or ["it said nothing"])[0].strip().rstrip(".")

    def replace(self) -> None:
        """End the process, and start another: to import TVM takes seconds."""
        self._end()
        if not self._closed:
            self.begin()

    def _end(self) -> None:
        process, pipe = self._process, self._pipe
        self._process = self._pipe = None
        if process is not None and pipe is not None:
            process.kill()
            process.wait()
            pipe.close()

    def close(self) -> None:
        """End the process; there will be no other."""
        self._closed = True
        self._end()


def ignore_ctrl_c() -> None:
    """Leave Ctrl-C, which a terminal sends to all processes, to the one that started this."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def main() -> None:
    """Answer calls at the socket whose number is the first argument."""
    ignore_ctrl_c()
    faulthandler.enable()
    answer(Connection(int(sys.argv[1])))
    # A GPU's driver may have nothing left that can be taken down in order.
    os._exit(0)
