"""CUDA that TVM writes, without compiling it: neither a compiler nor a GPU is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
