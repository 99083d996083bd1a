"""What nvrtc makes of a program; run as a file it does so in a process that imports nothing else.

Threads do not help: nvrtc 13 compiles one program at a time in a process.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple


class NvrtcProgram(NamedTuple):
    """The text of a program and the compiler's options."""

    text: bytes
    options: list[bytes]


class NvrtcResult(NamedTuple):
    """A cubin, None if the program is refused, and the compiler's log."""

    image: bytes | None
    log: str


def compiled(program: NvrtcProgram) -> NvrtcResult:
    """Compile a program in this process."""
    from cuda.bindings import nvrtc

    result, handle = nvrtc.nvrtcCreateProgram(program.text, b"tvm_kernels.cu", 0, None, None)
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        return NvrtcResult(None, f"nvrtc makes no program: {result}")
    try:
        (result,) = nvrtc.nvrtcCompileProgram(handle, len(program.options), program.options)
        _, size = nvrtc.nvrtcGetProgramLogSize(handle)
        log = bytearray(size)
        nvrtc.nvrtcGetProgramLog(handle, log)
        told = log.decode(errors="replace").rstrip("\0")
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            return NvrtcResult(None, told or str(result))
        _, size = nvrtc.nvrtcGetCUBINSize(handle)
        image = bytearray(size)
        nvrtc.nvrtcGetCUBIN(handle, image)
        return NvrtcResult(bytes(image), told)
    finally:
        nvrtc.nvrtcDestroyProgram(handle)


def compiled_apart(program: NvrtcProgram) -> NvrtcResult:
    """Compile a program in a process of its own, beside which others can."""
    if not sys.executable:  # Python is part of another program.
        return compiled(program)
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "program", Path(folder) / "result"
        given.write_bytes(pickle.dumps((sys.path, tuple(program))))
        command = [sys.executable, str(Path(__file__)), str(given), str(made)]
        done = subprocess.run(command, capture_output=True, check=False)
        if not done.returncode:
            return NvrtcResult(*pickle.loads(made.read_bytes()))
    said = done.stderr.decode(errors="replace").strip()
    return NvrtcResult(None, f"nvrtc's process ended with {done.returncode}: {said}")


if __name__ == "__main__":
    _given, _made = map(Path, sys.argv[1:])
    # The folder of this file, whose modules are the package's, is no place to import from.
    sys.path[:], _program = pickle.loads(_given.read_bytes())
    _made.write_bytes(pickle.dumps(tuple(compiled(NvrtcProgram(*_program)))))
