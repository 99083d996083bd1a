"""The builder: candidates to loadable libraries, in worker processes, with ptxas's report.

Its results are folders that hold ``kernel.so`` and ``info.json``. Workers need no GPU.
"""

from __future__ import annotations

import heapq
import itertools
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import tvm
from tvm.support.popen_pool import PopenPoolExecutor, PopenWorker
from tvm.target import Target

from ...._compat import load_cuda_runtime
from ....build import compile_checked, compile_lowered, lower
from ....cubin import COMPILER, MachineCode, machine_code
from ....errors import LayoutExtError, TargetError
from ....target import cuda_target
from ..backend import Begun, failure_text
from ..environment import cores
from ..worker import WITHOUT_TORCH, ignore_ctrl_c
from .forks import NO_GPU, ForkRefusedError, fork_server
from .host_objects import HostObjects, compile_objects

_log = logging.getLogger("tvm_layout_ext")
#: Files of an artifact's folder.
LIBRARY, INFO = "kernel.so", "info.json"
#: TVM's worker processes grow a little with each build; after so many a fresh one takes over.
USES = 200


class Building(NamedTuple):
    """A candidate that is being built: its folder-to-be, and None or what failed when it ends."""

    folder: str
    error: Future[str | None]


_PROGRAM = f"{WITHOUT_TORCH}from tvm.exec.popen_worker import main; main()"


class _Worker(PopenWorker):
    """TVM's worker, forked where that is possible: without PyTorch and without a GPU."""

    _proc: Any

    def _start(self) -> None:
        if self._proc is not None:
            return
        main_read, worker_write = os.pipe()
        worker_read, main_write = os.pipe()
        self._proc = self._process(worker_read, worker_write)
        os.close(worker_read)
        os.close(worker_write)
        self._reader, self._writer = os.fdopen(main_read, "rb"), os.fdopen(main_write, "wb")

    def _process(self, reader: int, writer: int) -> Any:
        try:
            return fork_server().fork(reader, writer)
        except ForkRefusedError as error:
            _log.info("A build process is started, not forked. %s", error)
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(reader), str(writer)],
            pass_fds=(reader, writer),
            stdout=self._stdout,
            stderr=self._stderr,
            env={**os.environ, **NO_GPU},
        )


class _Pool(PopenPoolExecutor):
    """TVM's pool with processes of ours, and of what waits the most urgent first."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._jobs: list[tuple[bool, int, Any, Any]] = []
        self._numbers = itertools.count()

    def submit(
        self, fn: Callable[..., Any], *args: Any, timeout: float | None, later: bool = False
    ) -> Future[Any]:
        """Run a function in a process, one ``later`` after all that are not."""
        future: Future[Any] = Future()
        job = partial(self._worker_run, fn, args, {"timeout": timeout})
        with self._lock:
            heapq.heappush(self._jobs, (later, next(self._numbers), future, job))
        self._threadpool.submit(self._take)
        return future

    def _take(self) -> None:
        with self._lock:
            _, _, future, job = heapq.heappop(self._jobs)
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(job())
        except BaseException as error:
            future.set_exception(error)

    def _worker_run(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        with self._lock:
            own = threading.get_ident()
            if own not in self._worker_map:
                self._worker_map[own] = _Worker(
                    self._initializer,
                    self._initargs,
                    self._maximum_process_uses,
                    self._stdout,
                    self._stderr,
                )
            worker = self._worker_map[own]
        worker.send(fn, args, {}, kwargs["timeout"])
        return worker.recv()


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
        self.workers = workers or cores()
        self.timeout = timeout
        self._scratch = Path(tempfile.mkdtemp(prefix="tvm_layout_ext_build_"))
        self._remove = weakref.finalize(self, shutil.rmtree, str(self._scratch), True)
        self.folder = self._scratch / "artifacts"
        self.folder.mkdir()
        self._objects = compile_objects(self._scratch)
        self._pool: _Pool | None = None
        self._waiting: list[Future[Any]] = []

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
        running: Future[Any] = self._workers().submit(
            function, *args, timeout=timeout or self.timeout, later=later
        )
        self._waiting = [*(one for one in self._waiting if not one.done()), running]
        return running

    def close(self) -> None:
        """End the workers and remove the temporary folder, and with it the artifacts there."""
        for running in self._waiting:
            # A thread of the pool would start another worker for it.
            running.cancel()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self._remove()

    def _workers(self) -> _Pool:
        if self._pool is None:
            self._pool = _Pool(
                max_workers=self.workers,
                initializer=start_worker,
                initargs=(self._objects.driver,),
                maximum_process_uses=USES,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            # All start now, not only those that the first build needs, which is the default alone.
            for _ in range(self.workers):
                self._pool.submit(int, timeout=None)
        return self._pool

    def _end(self, error: Future[str | None], done: Future[Any]) -> None:
        try:
            error.set_result(done.result())
        except CancelledError:
            error.set_result("BuildCrashError: The builder was closed.")
        except TimeoutError:
            ended = f"BuildTimeoutError: The build was ended after {self.timeout:g} seconds."
            error.set_result(ended)
        except ChildProcessError:
            error.set_result("BuildCrashError: The process that built this candidate crashed.")
        except Exception as raised:
            error.set_result(failure_text(raised))


class _Compiler:
    """What compiles CUDA source in a worker, and what it said of the candidate at hand."""

    arch = ""
    code: ClassVar[MachineCode | None] = None
    #: An error's class is lost on its way through TVM.
    error: ClassVar[LayoutExtError | None] = None

    @classmethod
    def start(cls, arch: str) -> None:
        cls.arch, cls.code, cls.error = arch, None, None

    @classmethod
    def compile(cls, source: str) -> bytes:
        try:
            cls.code = machine_code(source, cls.arch)
        except LayoutExtError as error:
            cls.error = error
            raise
        return cls.code.image


def start_worker(driver: str) -> None:
    """Prepare a worker process: CUDA source is compiled by :func:`machine_code`."""
    ignore_ctrl_c()
    # Others build while a candidate is measured, and whoever measures must never wait for a core.
    os.nice(10)
    load_cuda_runtime(driver)
    tvm.register_global_func(COMPILER, _Compiler.compile, override=True)


def build_one(job: tuple[tvm.IRModule, Target, str, HostObjects]) -> str | None:
    """Build a module into a folder; None, or ``<ErrorClass>: <sentence>`` if it failed."""
    mod, target, place, objects = job
    folder = Path(place)
    try:
        info = _write(mod, target, folder, objects)
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        return failure_text(_Compiler.error or error)
    (folder / INFO).write_text(json.dumps(info))
    return None


def _write(mod: tvm.IRModule, target: Target, folder: Path, objects: HostObjects) -> dict[str, Any]:
    start = time.perf_counter()
    _Compiler.start(str(target.attrs.get("arch", "")))
    if target.kind.name == "cuda":
        executable, shared = compile_checked(lower(mod, target=target), target)
    else:
        executable, shared = compile_lowered(mod, target), None
    code = _Compiler.code
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
