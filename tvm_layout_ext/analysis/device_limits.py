"""What a device function asks of its device: threads, blocks, and bytes of shared memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import tvm
from tvm import tirx

from ..errors import ScheduleError, TargetError
from ..gpu import hardware
from ..ir.queries import nodes_in


def _bytes(buffer: tirx.Buffer) -> int:
    count = math.prod(int(extent) for extent in buffer.shape)
    return count * int(tvm.DataType(buffer.dtype).itemsize)


def launch_extents(kernel: tirx.PrimFunc) -> dict[str, int]:
    """Constant launch extents of a device function, by thread tag."""
    launches = [a for a in nodes_in(kernel.body, tirx.AttrStmt) if a.attr_key == "thread_extent"]
    constant = [one for one in launches if isinstance(one.value, tirx.IntImm)]
    return {str(one.node.thread_tag): int(one.value) for one in constant}


def shared_buffers(
    func: tirx.PrimFunc, scopes: Sequence[str] = ("shared", "shared.dyn")
) -> dict[str, int]:
    """Bytes of each shared-memory allocation of a flat function, by name."""
    if not isinstance(func, tirx.PrimFunc):
        raise ScheduleError(f"shared_buffers takes a PrimFunc, not a {type(func).__name__}.")
    if not isinstance(scopes, list | tuple):
        raise ScheduleError(f"scopes is a list of names of memories, not {scopes!r}.")
    sizes: Counter[str] = Counter()
    for buffer in (one.buffer for one in nodes_in(func.body, tirx.AllocBuffer)):
        if buffer.scope() in scopes:
            sizes[buffer.name] += _bytes(buffer)
    return dict(sizes)


def check_shared(name: str, kernel: tirx.PrimFunc) -> int:
    """Bytes of shared memory of a block; TargetError if the function's target has fewer."""
    arch = str(kernel.attrs["target"].attrs["arch"])
    limit = hardware.architecture(arch).shared_per_block
    static, every = shared_buffers(kernel, ("shared",)), shared_buffers(kernel)
    needs = f"Kernel {name} needs {{:,}} bytes of {{}}shared memory ({{}}) and a block on {arch}"
    if (total := sum(every.values())) > limit:
        inside = _listed(_merged_buffers(kernel) or every)
        raise TargetError(f"{needs.format(total, '', inside)} may have {limit:,}.")
    if (total := sum(static.values())) > hardware.STATIC_SHARED_BYTES:
        raise TargetError(
            f"{needs.format(total, 'static ', _listed(static))} may have "
            f"{hardware.STATIC_SHARED_BYTES:,}; scope shared.dyn may have {limit:,}."
        )
    return sum(every.values())


def _merged_buffers(kernel: tirx.PrimFunc) -> dict[str, int]:
    """Bytes of each buffer of a kernel's shared memory, by the names from before the merging."""
    views = [one.buffer for one in nodes_in(kernel.body, tirx.DeclBuffer)]
    return {one.name: _bytes(one) for one in views if one.scope() in ("shared", "shared.dyn")}


def _listed(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name} {size:,}" for name, size in sizes.items())
