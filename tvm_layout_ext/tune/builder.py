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
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.builder import BuilderInput, BuilderResult, PyBuilder
from tvm.support.popen_pool import MapResult, PopenPoolExecutor, StatusKind
from tvm.target import Target

from .._compat import load_cuda_runtime
from ..build import check_fits, compile_lowered, lower
from ..errors import LayoutExtError, TargetError
from ..target import cuda_target
from .cubin import MachineCode, machine_code
from .host_objects import HostObjects, compile_objects
from .worker import ignore_ctrl_c

__all__ = ["INFO", "LIBRARY", "CubinBuilder", "build_one", "describe_error", "start_worker"]

#: Files of an artifact's folder.
LIBRARY, INFO = "kernel.so", "info.json"
#: TVM's worker processes grow a little with each build; after so many a fresh one takes over.
USES = 200


@derived_object
class CubinBuilder(PyBuilder):
    """Builds candidates in parallel, each to machine code in a library of its own.

    A result's ``artifact_path`` is a folder with ``kernel.so`` and ``info.json`` (``registers``,
    ``spill_bytes``, ``smem_bytes``, ``seconds``, ``compiler``). A candidate that does not build,
    crashes its worker or takes too long is a result whose ``error_msg`` starts with one line
    ``<ErrorClass>: <sentence>``; ptxas's refusals are a ``PtxasError``.

    Parameters
    ----------
    architecture : str
        ptxas's name of the GPU's architecture, for inputs whose target is CUDA; inputs for a CPU
        are built for their own target.
    workers : int, optional
        Processes; by default as many as there are cores.
    timeout : float
        Seconds that one candidate may take.
    folder : path, optional
        Where the artifacts go; by default a temporary folder that :meth:`close`, or the end of the
        process, removes.

    Raises
    ------
    TargetError
        If the architecture is unknown, or there is no C compiler.
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
        self.workers = workers or os.cpu_count() or 1
        self.timeout = timeout
        self._scratch = Path(tempfile.mkdtemp(prefix="tvm_layout_ext_build_"))
        self._remove = weakref.finalize(self, shutil.rmtree, str(self._scratch), True)
        self.folder = Path(folder) if folder is not None else self._scratch / "artifacts"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._objects = compile_objects(self._scratch)
        self._pool: PopenPoolExecutor | None = None

    def build(self, build_inputs: Sequence[BuilderInput]) -> list[BuilderResult]:
        """Build all inputs; the results are in their order."""
        jobs = [
            (one.mod, self._target_of(one), str(self.folder), self._objects) for one in build_inputs
        ]
        results = self._workers().map_with_error_catching(build_one, jobs)
        return [self._result(outcome) for outcome in results]

    def close(self) -> None:
        """End the workers and remove the temporary folder, and with it the artifacts there."""
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

    def _result(self, outcome: MapResult) -> BuilderResult:
        if outcome.status == StatusKind.COMPLETE:
            return BuilderResult(*outcome.value)
        if outcome.status == StatusKind.TIMEOUT:
            text = f"BuildTimeoutError: The build was ended after {self.timeout:g} seconds."
        elif isinstance(outcome.value, ChildProcessError):
            text = "BuildCrashError: The process that built this candidate crashed."
        else:
            text = describe_error(outcome.value)
        return BuilderResult(None, text)


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
    # Else each of 64 workers would hold a context, half a gigabyte of the GPU's memory.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    load_cuda_runtime(driver)
    tvm.register_global_func("tvm_callback_cuda_compile", _Compiler.compile, override=True)


def build_one(
    job: tuple[tvm.IRModule, Target, str, HostObjects],
) -> tuple[str | None, str | None]:
    """Build a candidate in a worker process that :func:`start_worker` has prepared.

    Parameters
    ----------
    job : tuple
        Scheduled module, target, folder under which the artifact's own is made, host objects.

    Returns
    -------
    tuple
        The artifact's folder and None, or None and ``<ErrorClass>: <sentence>``.
    """
    mod, target, parent, objects = job
    folder = Path(tempfile.mkdtemp(dir=parent))
    try:
        info = _write(mod, target, folder, objects)
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        return None, describe_error(_Compiler.error or error)
    (folder / INFO).write_text(json.dumps(info))
    return str(folder), None


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
