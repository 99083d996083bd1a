"""Choose what builds and runs a task's candidates, and keep its processes for the next task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm

from ..._compat import has_gpu
from ...errors import TargetError
from ..space.knobs import Config
from ..space.task import Task
from . import environment
from .backend import Backend, InProcess, Runner
from .measured import MeasuringBackend
from .rpc.run import RpcRunner
from .run_local import LocalRunner
from .simulated import SimulatedRunner

RUNNERS = ("auto", "cuda", "simulate")
RPC = "rpc"


def runner_name(name: str) -> str:
    """Settle ``"auto"``: ``"cuda"`` where there is a GPU, else ``"simulate"``.

    TargetError if the name is unknown, or is ``"cuda"`` where there is no GPU.
    """
    if name not in RUNNERS:
        raise TargetError(
            f"Unknown runner {name!r}; known are {', '.join(RUNNERS)} and {RPC}:HOST:PORT:KEY."
        )
    if name == "cuda" and not has_gpu():
        raise TargetError("Runner cuda needs a CUDA GPU and there is none; use --runner simulate.")
    if name != "auto":
        return name
    return "cuda" if has_gpu() else "simulate"


def make_backend(runner: str | Runner, task: Task) -> Backend:
    """Make what tries a task's candidates, of a name or an object that tries one at a time."""
    if not isinstance(runner, str):
        if not callable(getattr(runner, "run", None)):
            raise TargetError(f"A runner is a name or an object that runs, not {runner!r}.")
        return InProcess(task, runner)
    if runner.startswith(f"{RPC}:"):
        return _remote(runner, task)
    name = runner_name(runner)
    if name == "simulate":
        return InProcess(task, SimulatedRunner())
    return MeasuringBackend(task, LocalRunner(task), name, environment.cuda_device())


class BackendPool:
    """What builds and measures one task after another in the same processes; see :func:`tune`."""

    def __init__(self, runner: str | Runner = "auto") -> None:
        self.runner = runner
        self._backend: Backend | None = None
        #: What is ready of tasks to come, by whoever searches.
        self.prepared: dict[Task, Any] = {}
        #: Does a part of what is to be prepared, while trials are waited for; whether it did.
        self.meanwhile: Callable[[], bool] = bool

    def backend(self, task: Task) -> Backend:
        """What tries the candidates of a task; the one before must have ended."""
        if isinstance(self._backend, MeasuringBackend) and self._backend.serves(task):
            self._backend.take(task)
        else:
            self.close()
            self._backend = make_backend(self.runner, task)
        return self._backend

    def prepare(
        self, task: Task, config: Config, module: tvm.IRModule, is_final: bool
    ) -> Backend | None:
        """Begin what a task to come needs, if processes are there that will serve it.

        What ``is_final`` will be timed again, and is simulated now.
        """
        if self._backend is None:
            self._backend = make_backend(self.runner, task)
        if not (isinstance(self._backend, MeasuringBackend) and self._backend.serves(task)):
            return None
        self._backend.prepare(task, config, module, is_final)
        return self._backend

    def close(self) -> None:
        """Stop the processes."""
        if self._backend is not None:
            self._backend.close()
            self._backend = None


def _remote(runner: str, task: Task) -> Backend:
    parts = runner.split(":")
    if len(parts) != 4 or not parts[2].isdigit() or not all(parts):
        raise TargetError(f"An RPC runner is written rpc:HOST:PORT:KEY, not {runner!r}.")
    _, host, port, key = parts
    remote = RpcRunner(task, host, int(port), key)
    try:
        device = remote.device_name()
        return MeasuringBackend(task, remote, RPC, device)
    except BaseException:
        remote.close()
        raise
