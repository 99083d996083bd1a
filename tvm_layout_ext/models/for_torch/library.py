"""The shared library of an executable, and the versions that it is loaded by."""

from __future__ import annotations

import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.support import cc

from ..._compat import has_cuda_runtime, tvm_version
from ..._version import __version__
from ...errors import ScheduleError, TargetError

_LIBRARY = "module.so"


def versions() -> dict[str, str]:
    """What must be the same where a module is loaded."""
    ffi = metadata.version("apache-tvm-ffi")
    return {"apache-tvm": tvm_version(), "apache-tvm-ffi": ffi, "tvm_layout_ext": __version__}


def check_versions(saved: dict[str, str]) -> None:
    """ScheduleError if other versions wrote a file."""
    here = versions()
    for name, version in saved.items():
        if version != here[name]:
            raise ScheduleError(f"The module was saved by {name} {version}; here is {here[name]}.")


def library_of(executable: Any) -> bytes:
    """The shared library of an executable; TargetError if it cannot be made here."""
    if _has_cuda(executable.mod) and not has_cuda_runtime():
        raise TargetError(
            "A module that was compiled without a CUDA driver has no machine code to save."
        )
    if cc.get_cc() is None:
        raise TargetError("Saving a module links a library; there is no C++ compiler, as g++.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / _LIBRARY
        executable.export_library(str(path))
        return path.read_bytes()


def executable_of(library: bytes) -> Any:
    """What :func:`library_of` gave, loaded; TargetError if there is no CUDA driver."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / _LIBRARY
        path.write_bytes(library)
        try:
            return relax.VMExecutable(tvm.runtime.load_module(str(path)))
        except Exception as error:
            if has_cuda_runtime():
                raise
            raise TargetError("A saved module is loaded where there is a CUDA driver.") from error


def _has_cuda(module: Any) -> bool:
    return str(module.kind) == "cuda" or any(map(_has_cuda, module.imports))
