"""Two small pieces of C beside the tuned kernels: a rotation of arguments, and a driver stand-in.

``rotated(n, a0, b0, ..., a1, b1, ...)`` calls ``main`` once for each set of ``n`` arguments, one
launch right after the other, where TVM's ``time_evaluator`` has one list of arguments. With enough
sets each launch finds its inputs outside the cache, and none waits for the host.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ...._compat import DRIVER_FUNCTIONS
from ....errors import TargetError

#: Name of the rotation in a tuned kernel's library.
ROTATED = "rotated"
_ROTATION = """
#include <tvm/ffi/c_api.h>
int32_t __tvm_ffi_main(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);
int32_t __tvm_ffi_rotated(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  const int32_t each = (int32_t)args[0].v_int64;
  for (int32_t i = 1; i + each <= count; i += each) {
    const int32_t status = __tvm_ffi_main(self, args + i, each, result);
    if (status) return status;
  }
  return 0;
}
"""
#: CUDA_ERROR_STUB_LIBRARY of the driver API.
_STUB_LIBRARY = 34


@dataclass(frozen=True)
class HostObjects:
    """What :func:`compile_objects` wrote: the object to link, and the driver's stand-in."""

    rotation: str
    driver: str


def compile_objects(folder: Path) -> HostObjects:
    """Compile both into a folder; TargetError if there is no C compiler."""
    import tvm_ffi.libinfo

    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise TargetError("Building kernels for the tuner needs a C compiler; there is no cc.")
    stub = "\n".join(f"int {name}(void) {{ return {_STUB_LIBRARY}; }}" for name in DRIVER_FUNCTIONS)
    objects = HostObjects(str(folder / "rotation.o"), str(folder / "libcuda.so.1"))
    include = tvm_ffi.libinfo.find_include_path()
    dlpack = tvm_ffi.libinfo.find_dlpack_include_path()
    commands = [
        (_ROTATION, ["-c", f"-I{include}", f"-I{dlpack}", "-o", objects.rotation]),
        (stub, ["-shared", "-Wl,-soname,libcuda.so.1", "-o", objects.driver]),
    ]
    for source, options in commands:
        subprocess.run(
            [compiler, "-O2", "-fPIC", "-x", "c", *options, "-"],
            input=source, text=True, check=True, capture_output=True,
        )  # fmt: skip
    return objects
