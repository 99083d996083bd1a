"""Build processes that begin warm: forked from one that has imported all that they need.

To import TVM and this package takes a core two seconds or more. The process that forks knows of no
GPU, so that nothing of CUDA is passed on. It serves all builders of this process, to its end.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ....errors import LayoutExtError
from ..worker import WITHOUT_TORCH

_PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    f"{WITHOUT_TORCH}import tvm_layout_ext.tune.search.tune, tvm_layout_ext.schedules\n"
    "from tvm_layout_ext.tune.measure.builder.forks import serve; serve()"
)
#: Of a message, mostly the environment.
_MOST = 1 << 18
#: Nothing that builds may use a GPU: each of 64 processes would hold half a gigabyte of it.
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


class ForkRefusedError(LayoutExtError):
    """Why no process can be forked; another way to start one is needed."""


class Forked:
    """A forked process, as :class:`subprocess.Popen` shows one.

    Its number is no other's until somebody waits for it, as only then its parent does.
    """

    def __init__(self, parent: ForkServer, pid: int) -> None:
        self._parent, self.pid = parent, pid

    def kill(self) -> None:
        """End it."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, _timeout: float | None = None) -> None:
        """Wait for its end, after :meth:`kill`."""
        with suppress(ForkRefusedError):
            self._parent.ask({"wait": self.pid})


class ForkServer:
    """Starts the process that forks, at once, and has it fork when it is ready.

    It belongs to the process that made it: copies of that have another one.
    """

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._pipe, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **NO_GPU},
            )

    def fork(self, reader: int, writer: int) -> Forked:
        """Fork a process that answers calls as TVM's workers do, from and to two pipes.

        It has the environment and the folder that this process has now. ForkRefusedError if there
        is none.
        """
        facts = {"environment": {**os.environ, **NO_GPU}, "folder": os.getcwd()}
        return Forked(self, self.ask(facts, reader, writer))

    def ask(self, message: dict[str, Any], *handles: int) -> int:
        """Send a message and wait for the number that answers it."""
        try:
            with self._lock:
                socket.send_fds(self._pipe, [json.dumps(message).encode()], list(handles))
                answer = json.loads(self._pipe.recv(_MOST) or b'["it has ended"]')
        except OSError as error:
            raise ForkRefusedError(f"It cannot be asked: {error}.") from None
        if not isinstance(answer, int):
            raise ForkRefusedError(f"It refuses: {answer[0]}.")
        return answer

    def close(self) -> None:
        """End the process; those that it forked end with their pipes."""
        if self.owner == os.getpid():
            self._pipe.close()
            self._process.kill()
            self._process.wait()


class _Shared:
    server: ForkServer | None = None
    lock = threading.Lock()


def fork_server() -> ForkServer:
    """The one of this process, which starts when it is first asked for."""
    with _Shared.lock:
        if _Shared.server is None or _Shared.server.owner != os.getpid():
            _Shared.server = ForkServer()
            atexit.register(_Shared.server.close)
        return _Shared.server


def uses_cuda() -> bool:
    """Whether CUDA's driver is in use here, which no process that is forked then can undo."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        devices = ctypes.c_int(0)
        return driver.cuDeviceGetCount(ctypes.byref(devices)) == 0 and devices.value > 0
    except (OSError, AttributeError):
        return False


def serve() -> None:
    """Fork processes for the other end of a socket, whose number is the first argument."""
    from tvm.exec.popen_worker import main

    pipe = socket.socket(fileno=int(sys.argv[1]))
    with suppress(OSError):
        while True:
            message, handles, _, _ = socket.recv_fds(pipe, _MOST, 2)
            if not message:
                break
            answer = _answer(json.loads(message), pipe, handles, main)
            for handle in handles:
                os.close(handle)
            pipe.send(json.dumps(answer).encode())
    os._exit(0)


def _answer(
    message: dict[str, Any], pipe: socket.socket, handles: list[int], main: Callable[[], None]
) -> int | list[str]:
    if number := message.get("wait"):
        with suppress(ChildProcessError):
            os.waitpid(number, 0)
        return 0
    if uses_cuda():
        return ["CUDA is in use in the process that would fork"]
    if pid := os.fork():
        return pid
    with suppress(BaseException):
        pipe.close()
        os.environ.clear()
        os.environ.update(message["environment"])
        os.chdir(message["folder"])
        sys.argv[1:] = map(str, handles)
        main()
    os._exit(0)
