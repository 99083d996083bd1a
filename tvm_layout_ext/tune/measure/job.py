"""A trial as a worker gets it, and its inputs in files."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path

from ..space.task import Task
from .protocol import Timing
from .reference.problem import Problem

#: Streams of a task's random inputs: of the trials, and of a winner's verification.
TRIALS, FRESH = 0, 1
_CPU_TARGETS = ("llvm", "c")


def device_kind(kind: str) -> str:
    """The kind of device that runs what was built for a target's or a device's kind."""
    return "cpu" if kind in _CPU_TARGETS else kind


@dataclass(frozen=True)
class Job:
    """One trial, as a worker process gets it: folders of artifact and problem, kind of device.

    ``best`` are the seconds of the best candidate so far, for the early stop.
    """

    artifact: str
    problem: str
    kind: str
    timing: Timing
    best: float | None = None


class Inputs:
    """A task's inputs and reference in files, drawn when first asked for."""

    def __init__(self, task: Task) -> None:
        self.task, self._number = task, 0
        self.folder = Path(tempfile.mkdtemp(prefix="tvm_layout_ext_run_"))
        self.remove = weakref.finalize(self, shutil.rmtree, str(self.folder), True)

    def take(self, task: Task) -> None:
        """Draw another task's from now on; processes know problems by their folders' names."""
        for stream in (TRIALS, FRESH):
            shutil.rmtree(self._place(stream), ignore_errors=True)
        self.task, self._number = task, self._number + 1

    def _place(self, stream: int) -> Path:
        return self.folder / f"inputs{self._number}_{stream}"

    def job(self, artifact: str, kind: str, timing: Timing, stream: int = TRIALS) -> Job:
        """A trial of an artifact; ``kind`` is a target's or a device's."""
        folder = self._place(stream)
        if not folder.exists():
            Problem.draw(self.task, stream).save(folder)
        return Job(artifact, str(folder), device_kind(kind), timing)
