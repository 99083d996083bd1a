"""Processes forked from one that has imported everything once, which takes 2 s of a core."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.tune.helpers", "xgboost"])


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


def _work(program: str, theirs: socket.socket, log: str, environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    said = os.open(log, os.O_WRONLY | os.O_APPEND)
    for number in (1, 2):
        os.dup2(said, number)
    sys.argv = ["-c", str(theirs.detach())]
    exec(program, {"__name__": "__main__"})


def start(
    program: str, theirs: socket.socket, log: BinaryIO, environment: Mapping[str, str]
) -> Any:
    """What ``worker.start`` starts, by a fork: 0.1 s of a core, not 2."""
    given = (program, theirs, log.name, {**os.environ, **environment})
    process = FORKS.Process(target=_work, args=given, daemon=True)
    process.start()
    process.wait = process.join
    return process
