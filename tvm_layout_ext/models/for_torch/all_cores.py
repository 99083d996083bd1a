"""``by_all_cores``: kernels of a model become machine code side by side, and are kept on disk."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from ...calls import disk
from ...cubin import compiled_code, compiling_by, is_stock
from ...ir.queries import nodes_in
from ...tune.measure.environment import cores

_log = logging.getLogger("tvm_layout_ext")
#: TVM's function from kernels to a module.
_BUILD = "target.build.cuda"
_KERNEL = 2
#: Multiplications of the least part: some 0.8 s for nvrtc, whose process begins in 0.3 s.
_LEAST = 1000


@contextmanager
def by_all_cores(arch: str) -> Iterator[None]:
    """While entered, TVM makes CUDA modules of parts, as many as there are cores to compile them.

    The first imports the others, where TVM looks for kernels, too. Another compiler than TVM's own
    is left in its place.
    """
    if not is_stock():
        yield
        return
    stock = tvm.get_global_func(_BUILD)
    # TVM writes one text at a time; a thread waits outside for its machine code.
    writing = threading.Lock()

    def compiled(source: str) -> bytes:
        writing.release()
        try:
            return disk.image(source, arch, lambda: _image(source, arch))
        finally:
            writing.acquire()

    def part(target: Target, kernels: tvm.IRModule) -> Any:
        with writing, target:
            return stock(kernels, target)

    def built(kernels: tvm.IRModule, target: Target) -> Any:
        parts = _parts(kernels, cores())
        with ThreadPoolExecutor(len(parts)) as pool:
            first, *others = pool.map(partial(part, target), parts)
        for one in others:
            first.import_module(one)
        return first

    tvm.register_global_func(_BUILD, built, override=True)
    try:
        with compiling_by(compiled):
            yield
    finally:
        tvm.register_global_func(_BUILD, stock, override=True)


def _parts(kernels: tvm.IRModule, most: int) -> Sequence[tvm.IRModule]:
    """Kernels in parts of about the same work, the largest first; one if they call functions."""
    if any(int(func.attrs["calling_conv"]) != _KERNEL for func in kernels.functions.values()):
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


def _image(source: str, arch: str) -> bytes:
    """Machine code made in a process of its own; a warning says if it is slow."""
    code = compiled_code(source, arch, apart=True)
    if code.slow:
        _log.warning("%s", code.slow)
    return code.image
