"""The builder: candidates to loadable libraries, in worker processes, with ptxas's report.

Its results are folders that hold ``kernel.so`` and ``info.json``. Workers need no GPU.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import tvm
from tvm.target import Target

from ...._compat import load_cuda_runtime
from ....build import compile_checked, compile_lowered, lower
from ....cubin import MachineCode, compiling_by, machine_code
from ....errors import TargetError
from ....target import cuda_target
from ..backend import Begun, failure_text
from ..environment import cores
from ..worker import Worker
from ..worker_pool import WorkerPool
from .host_objects import HostObjects, compile_objects

#: Files of an artifact's folder.
LIBRARY, INFO = "kernel.so", "info.json"
#: Candidates are scheduled, ranked and simulated there, too.
_IMPORTS = "tvm_layout_ext.tune.search.tune, tvm_layout_ext.schedules"
#: Nothing that builds may use a GPU: each of 64 processes would hold half a gigabyte of it.
_NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


class Building(NamedTuple):
    """A candidate that is being built: its folder-to-be, and None or what failed when it ends."""

    folder: str
    error: Future[str | None]


class CubinBuilder:
    """Builds candidates in parallel, each to machine code in a library of its own.

    A candidate that does not build, crashes its worker or takes more than ``timeout`` seconds ends
    with a text as of :func:`.failure_text`; ptxas's refusals are a ``PtxasError``. There are as
    many ``workers`` as cores that this process may use, by default.
    """

    def __init__(
        self, architecture: str, workers: int | None = None, timeout: float = 60.0
    ) -> None:
        self.target = cuda_target(architecture)
        self.timeout = timeout
        self._scratch = Path(tempfile.mkdtemp(prefix="tvm_layout_ext_build_"))
        self._remove = weakref.finalize(self, shutil.rmtree, str(self._scratch), True)
        self.folder = self._scratch / "artifacts"
        self.folder.mkdir()
        self._objects = compile_objects(self._scratch)
        first = start_worker, self._objects.driver
        logs = [self._scratch / f"{number}.log" for number in range(workers or cores())]
        self._pool = WorkerPool([Worker(log, _IMPORTS, first, _NO_GPU) for log in logs])

    def begin(
        self, modules: Sequence[tvm.IRModule], target: Target | None = None, later: bool = False
    ) -> list[Building]:
        """Start to build scheduled modules for the architecture or another target; do not wait.

        What is built ``later`` lets all else go first.
        """
        started = []
        for mod in modules:
            building = Building(tempfile.mkdtemp(dir=self.folder), Future())
            job = (mod, target or self.target, building.folder, self._objects)
            ended = partial(self._end, building.error)
            self.apart(build_one, job, later=later).add_done_callback(ended)
            started.append(building)
        return started

    def asked(self, function: Callable[..., Any], *args: Any) -> Begun:
        """Begin a function in one of the processes; what is returned waits for its result.

        A user's operator may be nothing that can be sent to a process: it is then asked here.
        """
        running = self.apart(function, *args)

        def result() -> Any:
            return function(*args) if running.exception() else running.result()

        return Begun(result, running.done)

    def apart(
        self,
        function: Callable[..., Any],
        *args: Any,
        timeout: float | None = None,
        later: bool = False,
    ) -> Future[Any]:
        """Run a function in one of the processes, in at most :attr:`timeout` seconds or so many."""
        timeout = timeout or self.timeout
        return self._pool.submit(function, *args, timeout=timeout, later=later)

    def close(self) -> None:
        """End the workers and remove the temporary folder, and with it the artifacts there."""
        self._pool.close()
        self._remove()

    def _end(self, error: Future[str | None], done: Future[Any]) -> None:
        try:
            error.set_result(done.result())
        except TimeoutError:
            ended = f"BuildTimeoutError: The build was ended after {self.timeout:g} seconds."
            error.set_result(ended)
        except ChildProcessError as crash:
            error.set_result(f"BuildCrashError: {crash}")
        except Exception as raised:
            error.set_result(failure_text(raised))


def start_worker(driver: str) -> None:
    """Prepare a worker process: TVM's CUDA runtime is there without a driver."""
    # Others build while a candidate is measured, and whoever measures must never wait for a core.
    os.nice(10)
    load_cuda_runtime(driver)


def build_one(job: tuple[tvm.IRModule, Target, str, HostObjects]) -> str | None:
    """Build a module into a folder; None, or ``<ErrorClass>: <sentence>`` if it failed."""
    mod, target, place, objects = job
    folder = Path(place)
    try:
        info = _write(mod, target, folder, objects)
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        return failure_text(error)
    (folder / INFO).write_text(json.dumps(info))
    return None


def _write(mod: tvm.IRModule, target: Target, folder: Path, objects: HostObjects) -> dict[str, Any]:
    start = time.perf_counter()
    codes: list[MachineCode] = []

    def compiled(source: str) -> bytes:
        codes.append(machine_code(source, str(target.attrs["arch"])))
        return codes[-1].image

    with compiling_by(compiled):
        if target.kind.name == "cuda":
            executable, shared = compile_checked(lower(mod, target=target), target)
        else:
            executable, shared = compile_lowered(mod, target), None
    code = codes[-1] if codes else None
    if target.kind.name == "cuda" and code is None:
        raise TargetError(
            "TVM did not compile the kernel, because its CUDA runtime cannot be loaded here; "
            "install the CUDA runtime library (libcudart) that TVM was built for."
        )
    executable.export_library(str(folder / LIBRARY), addons=[objects.rotation])
    return {
        "registers": code.registers if code else None,
        "spill_bytes": code.spill_bytes if code else None,
        "smem_bytes": shared,
        "seconds": round(time.perf_counter() - start, 3),
        "compiler": code.compiler if code else target.kind.name,
    }
