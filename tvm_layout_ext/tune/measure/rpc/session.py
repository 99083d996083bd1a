"""One session's process at a server: it holds a problem on the device and tries candidates.

The problem, that is inputs and reference, comes once a server and stays there as files; a trial
brings its library only. An alarm of the operating system ends a session whose trial takes too long,
or whose client is silent, whatever its threads do.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import tvm

from ..builder.builder import LIBRARY
from ..protocol import Job, device_name
from ..run_local import Here, measure_here
from ..worker import answer

#: Seconds after which a session without a call ends, so that others get its server.
IDLE = 60.0
#: Seconds for inputs and reference to get to the device.
PREPARE = 300.0
#: So many problems stay at a server.
KEPT = 4
_PR_SET_PDEATHSIG = 1


class _Folders:
    """Where a session keeps files: problems in the server's, and its own."""

    server: ClassVar[Path]
    own: ClassVar[Path]
    artifact: ClassVar[str] = ""


# What clients call.


def gpu() -> tuple[str, str]:
    """Name and compute capability of the GPU; of a CPU no capability."""
    device = tvm.cuda(0)
    if not device.exist:
        return device_name(tvm.cpu(0)), ""
    # A process that has not used its GPU yet cannot tell its name.
    tvm.runtime.empty((1,), "int8", device)
    return device_name(device), str(device.compute_version)


def holds(digest: str) -> bool:
    """Whether a problem is here."""
    return (_Folders.server / digest).is_dir()


def put(digest: str, name: str, data: bytes) -> None:
    """Add to a file of a problem."""
    place = _Folders.own / digest
    place.mkdir(exist_ok=True)
    with (place / name).open("ab") as file:
        file.write(data)


def keep(digest: str) -> None:
    """Let a problem stay that is here as a whole."""
    kept = [one for one in _Folders.server.iterdir() if re.fullmatch("[0-9a-f]+", one.name)]
    kept.sort(key=lambda one: one.stat().st_mtime, reverse=True)
    for old in kept[KEPT - 1 :]:
        shutil.rmtree(old, ignore_errors=True)
    (_Folders.own / digest).rename(_Folders.server / digest)


def prepare(job: Job) -> None:
    """Bring inputs and reference to the device."""
    signal.setitimer(signal.ITIMER_REAL, PREPARE)
    Here.arguments(_placed(job))


def library(data: bytes) -> None:
    """Take a candidate's library."""
    shutil.rmtree(_Folders.artifact, ignore_errors=True)
    # Always another path: the loader answers for a path that it knows with what it has loaded.
    _Folders.artifact = tempfile.mkdtemp(dir=_Folders.own)
    (Path(_Folders.artifact) / LIBRARY).write_bytes(data)


def measure(job: Job, seconds: float) -> dict[str, Any]:
    """Try the candidate whose library was sent."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    return measure_here(_placed(job))


def _placed(job: Job) -> Job:
    return replace(job, artifact=_Folders.artifact, problem=str(_Folders.server / job.problem))


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
    _Folders.server = Path(folder)
    _Folders.own = Path(tempfile.mkdtemp(dir=folder, prefix="session_"))
    answer(Connection(files[0]), IDLE, lambda given: json.dumps(given).encode())
    shutil.rmtree(_Folders.own, ignore_errors=True)
    # A GPU's driver may have nothing left that can be taken down in order.
    os._exit(0)
