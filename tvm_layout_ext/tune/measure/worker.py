"""Processes that answer calls: whatever may crash or hang runs in one of its own.

A call is a pickled function with its arguments. An answer is pickled, too, but JSON where a server
gives it that others run: nothing is taken from it but text.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO

import cloudpickle
from tvm.support.popen_pool import kill_child_processes

from .backend import ReportedError, failure_text

#: A process's program. Ctrl-C, which a terminal sends to all processes, is for the one that started
#: this. Where PyTorch is installed, TVM imports it, which takes longer than all else that a process
#: imports, and initialises CUDA; what needs it there fails. ``{}`` is imported before any call.
_PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.modules["torch"] = None
import {}
from tvm_layout_ext.tune.measure.worker import main
main()
"""


class TrialTimeoutError(TimeoutError):
    """A call that took too long; its process was ended."""


class TrialCrashError(ChildProcessError):
    """A call during which its process ended."""


def ask(
    pipe: Connection,
    function: Callable[..., Any],
    *args: Any,
    timeout: float | None = None,
    read: Callable[[bytes], Any] = pickle.loads,
) -> Any:
    """Have a function called at the other end; a ReportedError says what it raised.

    TrialTimeoutError without an answer in ``timeout`` seconds; EOFError or OSError if the other end
    goes away. ``read`` takes an answer apart.
    """
    pipe.send_bytes(cloudpickle.dumps((function, args)))
    if not pipe.poll(timeout):
        raise TrialTimeoutError(f"It was ended after {timeout:g} seconds.")
    result, failure = read(pipe.recv_bytes())
    if failure is not None:
        raise ReportedError(failure)
    return result


def answer(
    pipe: Connection, idle: float = 0.0, write: Callable[[Any], bytes] = cloudpickle.dumps
) -> None:
    """Answer calls until the other end goes away, or says nothing for ``idle`` seconds.

    ``write`` makes bytes of an answer, which may refuse to be written.
    """
    with suppress(EOFError, OSError):
        pipe.send_bytes(b"ready")
        while True:
            signal.setitimer(signal.ITIMER_REAL, idle)
            asked = pipe.recv_bytes()
            try:
                function, args = pickle.loads(asked)
                given = write([function(*args), None])
            except Exception as error:
                given = write([None, failure_text(error)])
            pipe.send_bytes(given)


def start(
    program: str, theirs: socket.socket, log: BinaryIO, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process with a socket, whose number its program is told."""
    number = theirs.fileno()
    return subprocess.Popen(
        [sys.executable, "-c", program, str(number)],
        pass_fds=[number],
        stdout=log,
        stderr=log,
        env={**os.environ, **environment},
    )


class Worker:
    """Runs functions in a process of this machine, which is started anew after it ended.

    Parameters
    ----------
    log : Path
        File of what the process says.
    imports : str
        Modules that it imports at once, by commas.
    first : tuple, optional
        A function and its arguments, called in each process before all others.
    environment : mapping, optional
        Variables that differ from those here.
    """

    def __init__(
        self,
        log: Path,
        imports: str = "tvm",
        first: tuple[Any, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._log, self._first = log, first
        self._program, self._environment = _PROGRAM.format(imports), environment or {}
        self._closed = self._ready = False
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        #: Calls that the present process has had.
        self.calls = 0

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
                self._process = start(self._program, theirs, log, self._environment)
            self._pipe, self._ready, self.calls = Connection(ours.detach()), False, 0
        return self._pipe

    def call(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
        """Run a function there.

        TrialTimeoutError if it took longer than ``timeout`` seconds, TrialCrashError if the process
        ended or did not start; a ReportedError says what the function raised.
        """
        pipe = self.begin()
        try:
            if not self._ready:
                pipe.recv_bytes()
                if self._first:
                    ask(pipe, *self._first)
                self._ready = True
            self.calls += 1
            return ask(pipe, function, *args, timeout=timeout)
        except TrialTimeoutError:
            self.replace()
            raise
        except (EOFError, OSError):
            ended = "Its process ended" if self._ready else "A process did not start"
            words = self._last_words()
            self.replace()
            raise TrialCrashError(f"{ended}: {words}.") from None
        except Exception as error:
            if self._ready:
                raise
            # Its first call failed: it must not answer others.
            self._end()
            words = failure_text(error).rstrip(".")
            raise TrialCrashError(f"A process did not start: {words}.") from None

    def _last_words(self) -> str:
        """What Python or TVM said when the process ended, e.g. ``Fatal Python error: Aborted``."""
        if not self._log.exists():
            return "it said nothing"
        lines = self._log.read_text(errors="replace").splitlines()
        fatal = [line for line in lines if "Fatal Python error" in line]
        said = [line for line in lines if line.strip()]
        return (fatal or said[-1:] or ["it said nothing"])[0].strip().rstrip(".")

    def replace(self) -> None:
        """End the process, and start another: to import TVM takes seconds.

        If the system has no room for it now, the next call starts it.
        """
        self._end()
        if not self._closed:
            with suppress(OSError):
                self.begin()

    def _end(self) -> None:
        process, pipe = self._process, self._pipe
        self._process = self._pipe = None
        if process is not None and pipe is not None:
            # Such as a compiler that hangs.
            kill_child_processes(process.pid)
            process.kill()
            process.wait()
            pipe.close()

    def close(self) -> None:
        """End the process; there will be no other."""
        self._closed = True
        self._end()


def main() -> None:
    """Answer calls at the socket whose number is the first argument."""
    faulthandler.enable()
    answer(Connection(int(sys.argv[1])))
    # A GPU's driver may have nothing left that can be taken down in order.
    os._exit(0)
