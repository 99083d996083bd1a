"""Row strides and padding of shared buffers, read while they still have rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from .._compat import pass_name
from ..build import device_program, shared_buffers
from ..pipeline import lowering_passes

#: After the first, storage_align's padding is in the strides, and after the second a swizzle's;
#: FlattenBuffer, later, takes them away.
_COMPACT = "s_tir.CompactBufferAllocation"
_PADDED = "tvm_layout_ext.SwizzleSharedMemory"


@dataclass(frozen=True)
class SharedBuffer:
    """One shared buffer as it is laid out.

    ``shape`` is that after compaction, one number if the program was lowered before. ``stride`` is
    elements from one row to the next (None for a flat buffer), ``padding`` those of them that lie
    behind the row, ``bytes`` what is allocated.
    """

    name: str
    shape: tuple[int, ...]
    stride: int | None
    padding: int
    bytes: int

    def cells(self) -> list[str]:
        """All of it as text."""
        shape = "x".join(map(str, self.shape))
        stride = "-" if self.stride is None else str(self.stride)
        return [self.name, shape, stride, str(self.padding), f"{self.bytes:,}"]


def read_shared_buffers(mod: tvm.IRModule, target: Any) -> list[SharedBuffer]:
    """List the shared buffers of a module of TensorIR functions.

    A module that is already flat (``lower`` gave it) has only allocations left: no strides.
    """
    shaped = _shaped(mod)
    if shaped:
        return shaped
    return [
        SharedBuffer(name, (size,), None, 0, size)
        for kernel in device_program(mod, target=target).kernels.values()
        for name, size in shared_buffers(kernel).items()
    ]


def _shaped(mod: tvm.IRModule) -> list[SharedBuffer]:
    passes = lowering_passes()[0]
    ends = [
        next(i for i, stage in enumerate(passes) if pass_name(stage) == name) + 1
        for name in (_COMPACT, _PADDED)
    ]
    compact = tvm.ir.transform.Sequential(passes[: ends[0]])(mod)
    padded = tvm.ir.transform.Sequential(passes[ends[0] : ends[1]])(compact)
    last = {buffer.name: buffer for buffer in _allocated(padded)}
    return [_with_rows(buffer, last.get(buffer.name, buffer)) for buffer in _allocated(compact)]


def _with_rows(before: SharedBuffer, after: SharedBuffer) -> SharedBuffer:
    """An XOR leaves one dim; its rows are those that the buffer had."""
    if len(before.shape) == len(after.shape):
        return after
    return replace(before, bytes=after.bytes)


def _allocated(mod: tvm.IRModule) -> list[SharedBuffer]:
    found: list[SharedBuffer] = []

    def look(block: s_tir.SBlock) -> None:
        found.extend(_laid_out(b) for b in block.alloc_buffers if b.scope().startswith("shared"))

    for func in mod.functions.values():
        if isinstance(func, tirx.PrimFunc):
            tvm_ffi.structural_walk(func.body, [(s_tir.SBlock, look)])
    return found


def _laid_out(buffer: Any) -> SharedBuffer:
    shape = tuple(int(extent) for extent in buffer.shape)
    dense = [prod(shape[d + 1 :]) for d in range(len(shape))]
    strides = [int(stride) for stride in buffer.ty.strides] or dense
    stride = strides[-2] if len(strides) > 1 else None
    padding = stride - shape[-1] * strides[-1] if stride is not None else 0
    elements = strides[0] * shape[0] if shape else 1
    size = elements * tvm.DataType(buffer.dtype).itemsize
    return SharedBuffer(str(buffer.name), shape, stride, padding, size)
