"""One RPC session's process at a server: it holds a problem on the device and tries candidates.

The problem, that is inputs and reference, comes once a server and stays there as files; a trial
brings its library only. An alarm of the operating system ends a session whose trial takes too long,
or whose client is silent, whatever its threads do.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

from ...._compat import serve_session
from ..builder.builder import LIBRARY
from ..protocol import Job, Timing, device_name
from ..run_local import Here, measure_here

_log = logging.getLogger("tvm_layout_ext")
PREFIX = "tvm_layout_ext.rpc."
NAMES = ("gpu", "holds", "put", "keep", "library", "prepare", "measure")
#: Seconds after which a session without a call ends, so that others get its server.
IDLE = 60.0
#: Seconds for inputs and reference to get to the device.
PREPARE = 300.0
#: So many problems stay at a server.
KEPT = 4
_PR_SET_PDEATHSIG = 1


class _Session:
    """What the client's calls share; ``folder`` is the server's, for problems."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.own = Path(tempfile.mkdtemp(dir=folder, prefix="session_"))
        self._artifact = Path(tempfile.mkdtemp(dir=self.own))

    def gpu(self) -> str:
        gpu = tvm.cuda(0)
        if not gpu.exist:
            return json.dumps([device_name(tvm.cpu(0)), ""])
        # A process that has not used its GPU yet cannot tell its name.
        tvm.runtime.empty((1,), "int8", gpu)
        return json.dumps([device_name(gpu), str(gpu.compute_version)])

    def holds(self, digest: str) -> bool:
        return self._place(digest).is_dir()

    def put(self, digest: str, name: str, data: bytes) -> None:
        place = self._place(digest, self.own)
        place.mkdir(exist_ok=True)
        with (place / Path(name).name).open("ab") as file:
            file.write(data)

    def keep(self, digest: str) -> None:
        kept = [one for one in self.folder.iterdir() if re.fullmatch("[0-9a-f]+", one.name)]
        kept.sort(key=lambda one: one.stat().st_mtime, reverse=True)
        for old in kept[KEPT - 1 :]:
            shutil.rmtree(old, ignore_errors=True)
        self._place(digest, self.own).rename(self._place(digest))

    def library(self, data: bytes) -> None:
        shutil.rmtree(self._artifact, ignore_errors=True)
        # Always another path: the loader answers for a path that it knows with what it has loaded.
        self._artifact = Path(tempfile.mkdtemp(dir=self.own))
        (self._artifact / LIBRARY).write_bytes(data)

    def prepare(self, text: str) -> None:
        signal.setitimer(signal.ITIMER_REAL, PREPARE)
        Here.arguments(self._job(text), 0)

    def measure(self, text: str, seconds: float) -> str:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        job = self._job(text)
        measured, memory = measure_here(job, 0)
        signal.setitimer(signal.ITIMER_REAL, IDLE)
        return json.dumps({"measured": asdict(measured), "memory": memory})

    def _job(self, text: str) -> Job:
        facts = json.loads(text)
        timing = Timing(**facts.pop("timing"))
        problem = str(self._place(facts.pop("problem")))
        return Job(str(self._artifact), problem, timing=timing, **facts)

    def _place(self, digest: str, folder: Path | None = None) -> Path:
        if not re.fullmatch("[0-9a-f]{32}", digest):
            raise ValueError(f"{digest!r} is no digest of 32 hexadecimal digits.")
        return (folder or self.folder) / digest


def _watched(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a call put the idle session's alarm off."""

    def call(*args: Any) -> Any:
        signal.setitimer(signal.ITIMER_REAL, IDLE)
        try:
            return function(*args)
        finally:
            signal.setitimer(signal.ITIMER_REAL, IDLE)

    return call


def main(arguments: Sequence[str] | None = None) -> None:
    """Wait for a connection on the server's socket, and serve it to its end."""
    number, folder = sys.argv[1:] if arguments is None else arguments
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Linux: a server that is killed takes its sessions along.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    control = socket.socket(fileno=int(number))
    files: list[int] = []
    with suppress(ConnectionError):
        control.send(b"r")
        _, files, _, _ = socket.recv_fds(control, 1, 1)
    if not files:
        return
    session = _Session(Path(folder))
    for name in NAMES:
        call = _watched(getattr(session, name))
        tvm_ffi.register_global_func(PREFIX + name, call, override=True)
    signal.setitimer(signal.ITIMER_REAL, IDLE)
    try:
        serve_session(socket.socket(fileno=files[0]))
    except Exception as error:
        _log.warning("The session ended: %s", error)
    finally:
        shutil.rmtree(session.own, ignore_errors=True)
        # A GPU's driver may have nothing left that can be taken down in order.
        os._exit(0)
