"""CUDA that TVM writes, without compiling it: neither a compiler nor a GPU is needed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

import tvm_layout_ext as tlx

_COMPILE = "tvm_callback_cuda_compile"


@contextmanager
def no_compiler() -> Iterator[None]:
    """Let TVM keep CUDA as it wrote it, also where it finds a compiler."""
    known = tvm.get_global_func(_COMPILE, allow_missing=True)
    tvm.register_global_func(_COMPILE, lambda code, target=None: b"\0", override=True)
    try:
        yield
    finally:
        if known is None:
            tvm_ffi.registry.remove_global_func(_COMPILE)
        else:
            tvm.register_global_func(_COMPILE, known, override=True)


def cuda_text(source: Any, target: Any = "sm_90a") -> str:
    """CUDA that plain ``tvm.compile`` makes of a schedule or module, for a target or chip."""
    chosen = tlx.cuda_target(target) if isinstance(target, str) else target
    with no_compiler():
        built = tvm.compile(getattr(source, "mod", source), target=chosen)
    return str(built.mod.imports[0].inspect_source())


def nvcc_says(text: str, folder: Path, *options: str) -> str:
    """What nvcc and ptxas say of CUDA for ``sm_90a``; what they make is ``kernel.out``."""
    (folder / "kernel.cu").write_text(text)
    command = ["nvcc", "-arch=sm_90a", *options, "-o", "kernel.out", "kernel.cu"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stderr


def require_no_spills(text: str, folder: Path) -> str:
    """Neither a stack nor a spilled register goes to local memory; what ptxas says."""
    said = nvcc_says(text, folder, "-w", "-cubin", "-Xptxas", "-v")
    used = re.findall(r"\d+ bytes stack frame.*", said)
    assert set(used) == {"0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"}
    return said
