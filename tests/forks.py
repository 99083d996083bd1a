"""Processes forked from one that has imported everything once, which takes 2 s of a core."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

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
