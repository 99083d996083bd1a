"""The builder: candidates to loadable libraries, in worker processes, with ptxas's report.

Its results are folders that hold ``kernel.so`` and ``info.json``; any process on a machine of the
same kind can load the library. Workers see no GPU, and need none.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.builder import BuilderInput, BuilderResult, PyBuilder
from tvm.support.popen_pool import PopenPoolExecutor
from tvm.target import Target

from ...._compat import load_cuda_runtime
from ....build import check_fits, compile_lowered, lower
from ....errors import LayoutExtError, TargetError
from ....target import cuda_target
from ..environment import cores
from ..worker import ignore_ctrl_c
from .cubin import MachineCode, machine_code
from .host_objects import HostObjects, compile_objects

#: Files of an artifact's folder.
LIBRARY, INFO = "kernel.so", "info.json"
#: TVM's worker processes grow a little with each build; after so many a fresh one takes over.
USES = 200


class Building(NamedTuple):
    """A candidate that is being built: its folder-to-be, and None or what failed when it ends."""

    folder: str
    error: Future[str | None]


@derived_object
class CubinBuilder(PyBuilder):
    """Builds candidates in parallel, each to machine code in a library of its own.

    A result's ``artifact_path`` is a folder with ``kernel.so`` and ``info.json``. A candidate that
    does not build, crashes its worker or takes too long is a result whose ``error_msg`` starts with
    one line ``<ErrorClass>: <sentence>``; ptxas's refusals are a ``PtxasError``.

    Parameters
    ----------
    architecture : str
        For inputs whose target is CUDA; inputs for a CPU are built for their own target.
    workers : int, optional
        Processes; by default as many as there are cores that this process may use.
    timeout : float
        Seconds that one candidate may take.
    folder : path, optional
        Where the artifacts go; by default a temporary folder that is removed at the end.
    """

    def __init__(
        self,
        architecture: str,
        workers: int | None = None,
        timeout: float = 60.0,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        self.target = cuda_target(architecture)
        self.workers = workers or cores()
        self.timeout = timeout
        self._scratch = Path(tempfile.mkdtemp(prefix="tvm_layout_ext_build_"))
        self._remove = weakref.finalize(self, shutil.rmtree, str(self._scratch), True)
        self.folder = Path(folder) if folder is not None else self._scratch / "artifacts"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._objects = compile_objects(self._scratch)
        self._pool: PopenPoolExecutor | None = None
        self._waiting: list[Future[Any]] = []

    def build(self, build_inputs: Sequence[BuilderInput]) -> list[BuilderResult]:
        """Build all inputs; the results are in their order."""
        errors = [(folder, error.result()) for folder, error in self.begin(build_inputs)]
        return [BuilderResult(None if text else folder, text) for folder, text in errors]

    def begin(self, build_inputs: Sequence[BuilderInput]) -> list[Building]:
        """Start to build all inputs, in their order, and do not wait."""
        pool, started = self._workers(), []
        for one in build_inputs:
            building = Building(tempfile.mkdtemp(dir=self.folder), Future())
            job = (one.mod, self._target_of(one), building.folder, self._objects)
            running = pool.submit(build_one, job)
            running.add_done_callback(lambda done, end=building.error: self._end(done, end))
            started.append((building, running))
        self._waiting = [one for one in self._waiting if not one.done()]
        self._waiting += [running for _, running in started]
        return [building for building, _ in started]

    def apart(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run a function in one of the processes, in at most :attr:`timeout` seconds."""
        running: Future[Any] = self._workers().submit(function, *args)
        self._waiting.append(running)
        return running

    def clear(self) -> None:
        """Remove the artifacts, of which nobody wants any more."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        """End the workers and remove the temporary folder, and with it the artifacts there."""
        for running in self._waiting:
            # A thread of the pool would start another worker for it.
            running.cancel()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self._remove()

    def _target_of(self, one: BuilderInput) -> Target:
        return self.target if one.target.kind.name == "cuda" else one.target

    def _workers(self) -> PopenPoolExecutor:
        if self._pool is None:
            self._pool = PopenPoolExecutor(
                max_workers=self.workers,
                timeout=self.timeout,
                initializer=start_worker,
                initargs=(self._objects.driver,),
                maximum_process_uses=USES,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            # All start now, not only those that the first build needs, which is the default alone.
            for _ in range(self.workers):
                self._pool.submit(_nothing)
        return self._pool

    def _end(self, done: Future[Any], error: Future[str | None]) -> None:
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
            error.set_result(describe_error(raised))


def _nothing() -> None:
    """Ask nothing of a worker but to be there."""


def describe_error(error: BaseException) -> str:
    """``<ErrorClass>: <first line>``, and all of the text below if there is more."""
    text = str(error).strip() or "no text"
    first = text.splitlines()[0]
    head = f"{type(error).__name__}: {first}"
    return head if text == first else f"{head}\n{text}"


class _Compiler:
    """What compiles CUDA source in a worker, and what it said of the candidate at hand."""

    arch = ""
    code: ClassVar[MachineCode | None] = None
    #: An error's class is lost on its way through TVM.
    error: ClassVar[LayoutExtError | None] = None

    @classmethod
    def start(cls, arch: str) -> None:
        """Forget the last candidate."""
        cls.arch, cls.code, cls.error = arch, None, None

    @classmethod
    def compile(cls, source: str) -> bytes:
        """TVM's callback."""
        try:
            cls.code = machine_code(source, cls.arch)
        except LayoutExtError as error:
            cls.error = error
            raise
        return cls.code.image


def start_worker(driver: str) -> None:
    """Prepare a worker process: no GPU, and CUDA source is compiled by :func:`machine_code`.

    Parameters
    ----------
    driver : str
        Path of the stand-in for the driver's library, :attr:`HostObjects.driver`.
    """
    ignore_ctrl_c()
    # Others build while a candidate is measured, and whoever measures must never wait for a core.
    os.nice(10)
    # Else each of 64 workers would hold a context, half a gigabyte of the GPU's memory.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    load_cuda_runtime(driver)
    tvm.register_global_func("tvm_callback_cuda_compile", _Compiler.compile, override=True)


def build_one(job: tuple[tvm.IRModule, Target, str, HostObjects]) -> str | None:
    """Build a scheduled module for a target into a folder, in a process of :func:`start_worker`.

    None, or ``<ErrorClass>: <sentence>`` if it failed; the folder is removed then.
    """
    mod, target, place, objects = job
    folder = Path(place)
    try:
        info = _write(mod, target, folder, objects)
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        return describe_error(_Compiler.error or error)
    (folder / INFO).write_text(json.dumps(info))
    return None


def _write(mod: tvm.IRModule, target: Target, folder: Path, objects: HostObjects) -> dict[str, Any]:
    start = time.perf_counter()
    _Compiler.start(str(target.attrs.get("arch", "")))
    shared = None
    if target.kind.name == "cuda":
        mod = lower(mod, target=target)
        shared = check_fits(mod, target)
    executable = compile_lowered(mod, target)
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
