"""Processes forked from one that has imported everything once, which takes 2 s of a core."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from tvm_layout_ext.tune.measure.rpc import server, session

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.forks", "tests.tune.helpers", "xgboost"])
#: Whether workers, servers and their sessions are forks; set by conftest.
enabled = False


def _run(words: Sequence[str], folder: str, environment: Mapping[str, str]) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, name in ((1, "told"), (2, "complained")):
        os.dup2(os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
    if words[0] == "-m":
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(words)
        sys.path.insert(0, "")
        runpy.run_path(words[0], run_name="__main__")


def ran(
    words: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> tuple[int | None, str, str]:
    """What ``python WORDS`` ends with and writes, in a folder of its own."""
    process = FORKS.Process(target=_run, args=(words, str(folder), dict(environment)))
    process.start()
    process.join()
    told, complained = ((folder / name).read_text() for name in ("told", "complained"))
    return process.exitcode, told, complained


def _apart(log: str, environment: Mapping[str, str]) -> None:
    """Have an environment of its own, and say what is said to a file."""
    os.environ.clear()
    os.environ.update(environment)
    said = os.open(log, os.O_WRONLY | os.O_APPEND)
    for number in (1, 2):
        os.dup2(said, number)


def _started(target: Callable[..., None], *given: Any) -> Any:
    process = FORKS.Process(target=target, args=given, daemon=True)
    process.start()
    process.wait = process.join
    return process


def _work(program: str, theirs: socket.socket, log: str, environment: Mapping[str, str]) -> None:
    _apart(log, environment)
    sys.argv = ["-c", str(theirs.detach())]
    exec(program, {"__name__": "__main__"})


def start(
    program: str, theirs: socket.socket, log: BinaryIO, environment: Mapping[str, str]
) -> Any:
    """What ``worker.start`` starts, by a fork: 0.1 s of a core, not 2."""
    return _started(_work, program, theirs, log.name, {**os.environ, **environment})


class _Session:
    """A fork of a server that waits for a session, and what ``rpc.server.start`` gives of it."""

    def __init__(self, theirs: socket.socket, folder: str) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                session.main([str(theirs.detach()), folder])
                code = 0
            finally:
                os._exit(code)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _serve(options: Sequence[str], environment: Mapping[str, str]) -> None:
    os.setsid()
    _apart(os.devnull, environment)
    server.start = _Session
    server.main(options)


def serve(options: Sequence[str]) -> Any:
    """What ``python -m tvm_layout_ext.tune.rpc_server`` with some options starts, by forks."""
    return _started(_serve, options, dict(os.environ))
