"""What a device function asks of its device: threads, blocks, and bytes of shared memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import tirx

from ..errors import TargetError
from ..gpu import hardware


def _bytes(buffer: tirx.Buffer) -> int:
    count = math.prod(int(extent) for extent in buffer.shape)
    return count * int(tvm.DataType(buffer.dtype).itemsize)


def launch_extents(kernel: tirx.PrimFunc) -> dict[str, int]:
    """Constant launch extents of a device function, by thread tag."""
    extents: dict[str, int] = {}

    def look(node: tirx.AttrStmt) -> None:
        if node.attr_key == "thread_extent" and isinstance(node.value, tirx.IntImm):
            extents[str(node.node.thread_tag)] = int(node.value)

    tvm_ffi.structural_walk(kernel.body, [(tirx.AttrStmt, look)])
    return extents


def shared_buffers(
    func: tirx.PrimFunc, scopes: Sequence[str] = ("shared", "shared.dyn")
) -> dict[str, int]:
    """Bytes of each shared-memory allocation of a flat function, by name."""
    sizes: dict[str, int] = {}

    def look(node: tirx.AllocBuffer) -> None:
        buffer = node.buffer
        if buffer.scope() in scopes:
            sizes[buffer.name] = sizes.get(buffer.name, 0) + _bytes(buffer)

    tvm_ffi.structural_walk(func.body, [(tirx.AllocBuffer, look)])
    return sizes


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
    sizes: dict[str, int] = {}

    def look(node: tirx.DeclBuffer) -> None:
        buffer = node.buffer
        if buffer.scope() in ("shared", "shared.dyn"):
            sizes[buffer.name] = _bytes(buffer)

    tvm_ffi.structural_walk(kernel.body, [(tirx.DeclBuffer, look)])
    return sizes


def _listed(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name} {size:,}" for name, size in sizes.items())
