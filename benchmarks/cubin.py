"""Compile a CUDA file with nvcc, and launch its kernels through the driver."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["Cubin", "compiled"]


def compiled(source: Path, arch: str) -> bytes:
    """Machine code of a CUDA file for one architecture, such as ``sm_90``."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "kernels.cubin"
        command = ["nvcc", f"-arch={arch}", "-O3", "-cubin", "-o", str(out), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"nvcc does not compile {source.name}:\n{done.stderr}")
        return out.read_bytes()


class Cubin:
    """Kernels in the CUDA context that torch made current.

    Parameters
    ----------
    image : bytes
        What :func:`compiled` gave.
    """

    def __init__(self, image: bytes) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(self._module), image)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._driver, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} failed with CUDA error {status}.")

    def function(self, name: str) -> ctypes.c_void_p:
        """Find a kernel by its C name."""
        found = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(found), self._module, name.encode())
        return found

    def launch(
        self, function: ctypes.c_void_p, blocks: int, threads: int, *arguments: int, stream: int = 0
    ) -> None:
        """Launch with 64-bit arguments: pointers and counts."""
        values = [ctypes.c_uint64(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self._call(
            "cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, ctypes.c_void_p(stream),
            pointers, None,
        )  # fmt: skip
