"""``by_all_cores``: kernels of a model become machine code side by side, and are kept on disk."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from ..._function_of_thread import FunctionOfThread
from ...calls import disk
from ...cubin import compiled_code, compiling_by, is_stock
from ...ir.queries import nodes_in
from ...tune.measure.environment import cores

_log = logging.getLogger("tvm_layout_ext")
_KERNEL = 2
#: Multiplications of the least part: some 0.8 s for nvrtc, whose process begins in 0.3 s.
_LEAST = 1000


_BUILDER = FunctionOfThread("target.build.cuda")


@contextmanager
def by_all_cores() -> Iterator[None]:
    """While entered, this thread makes CUDA modules of parts, which as many cores compile.

    The first imports the others, where TVM looks for kernels, too. Another compiler than TVM's own
    is left in its place.
    """
    if not is_stock():
        yield
        return
    with _BUILDER.replaced(_built):
        yield


def _built(kernels: tvm.IRModule, target: Target) -> Any:
    """The module of kernels."""
    parts, build = _parts(kernels, cores()), _BUILDER.before()
    # TVM writes one text at a time; a thread waits outside for its machine code.
    writing, arch = threading.Lock(), str(target.attrs["arch"])

    def compiled(source: str) -> bytes:
        # Versions are asked for once, as one thread at a time is here.
        key = disk.image_key(source, arch)
        writing.release()
        try:
            return _image(key, source, arch)
        finally:
            writing.acquire()

    def part(some: tvm.IRModule) -> Any:
        with compiling_by(compiled), writing, target:
            return build(some, target)

    with ThreadPoolExecutor(len(parts)) as pool:
        first, *others = pool.map(part, parts)
    for one in others:
        first.import_module(one)
    return first


def _parts(kernels: tvm.IRModule, most: int) -> Sequence[tvm.IRModule]:
    """Kernels in parts of about the same work, the largest first; one if they call functions."""
    if any(
        int(func.attrs.get("calling_conv", 0)) != _KERNEL for func in kernels.functions.values()
    ):
        return [kernels]
    work = {gv: _work(func) for gv, func in kernels.functions.items()}
    parts = [dict[Any, Any]() for _ in range(max(1, min(most, sum(work.values()) // _LEAST)))]
    loads = [0] * len(parts)
    for gv in sorted(work, key=lambda gv: (-work[gv], gv.name_hint)):
        least = loads.index(min(loads))
        parts[least][gv] = kernels[gv]
        loads[least] += work[gv]
    return [tvm.IRModule(one, attrs=kernels.attrs) for one in parts if one]


def _work(func: Any) -> int:
    """What a kernel's compilation takes: with multiplications, most of places, its text grows."""
    return 1 + len(nodes_in(func.body, tirx.Mul))


def _image(key: str, source: str, arch: str) -> bytes:
    """Machine code, from the disk or made in a process of its own.

    What is slow is told, and not kept, to be told again.
    """
    if (known := disk.known(key)) is not None:
        return known
    code = compiled_code(source, arch, apart=True)
    if code.slow:
        _log.warning("%s", code.slow)
    else:
        disk.keep(key, code.image)
    return code.image
