"""Buffers with versions, and statements that use one of these."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock

from ...errors import ScheduleError
from ...ir import ops
from ...ir.queries import is_call_of
from ...ir.rebuild import access_rules, call_with, without_annotations
from .parts import REQUEST
from .record import VersionedBuffer

#: Versions begin at multiples of this, so that vectors of any width stay aligned.
_VERSION_BYTES = 16
#: Operators on fragments, in which an offset follows every address.
_BY_OFFSET = (ops.PTX_LEGACY_LDMATRIX, ops.PTX_LEGACY_MMA, ops.MMA_FILL, ops.MMA_STORE)


@dataclass(frozen=True)
class Versioned:
    """A buffer without and with the leading dim of its versions."""

    old: Any
    new: Any
    versions: int

    @property
    def stride(self) -> Any:
        """Elements from one version to the next."""
        return self.new.ty.strides[0]

    def record(self, name: str) -> VersionedBuffer:
        """What reports say of it, by a name of its own."""
        size = int(self.stride) * tvm.DataType(self.new.dtype).bits // 8
        return VersionedBuffer(name, self.new.scope(), self.versions, size)


def with_versions(buffer: Any, versions: int) -> Versioned:
    """Give a buffer a leading dim of versions, each of them aligned for vectors of any width."""
    shape: list[Any] = list(buffer.shape)
    strides: list[Any] = list(buffer.ty.strides)
    if not all(isinstance(extent, int | tirx.IntImm) for extent in (*shape, *strides)):
        given = " x ".join(map(str, shape))
        raise ScheduleError(
            f"Buffer {buffer.name} has {given} elements, which is not a constant, so it cannot "
            "have several versions; copy a whole tile, with zeros where there is nothing."
        )
    if not strides:
        strides = [prod(map(int, shape[i + 1 :])) for i in range(len(shape))]
    size = int(strides[0]) * int(shape[0])
    lanes = max(1, _VERSION_BYTES * 8 // buffer.dtype.bits)
    new = tirx.decl_buffer(
        [versions, *shape],
        buffer.dtype,
        buffer.name,
        strides=[-(-size // lanes) * lanes, *strides],
        scope=buffer.scope(),
        data_alignment=max(int(buffer.ty.data_alignment), _VERSION_BYTES),
    )
    return Versioned(buffer, new, versions)


def use_version(stmt: Any, one: Versioned, number: Any) -> Any:
    """Let a statement access one version of a buffer."""

    def access(buffer: Any, indices: Any) -> Any:
        return (one.new, [number, *indices]) if buffer.same_as(one.old) else None

    def region(node: Any) -> Any:
        if not node.source.same_as(one.old):
            return node
        version = tvm.ir.Range.from_min_extent(number, 1)
        return tirx.BufferRegion(one.new, [version, *node.region])

    def call(node: Any) -> Any:
        if node.op.name == ops.TVM_ACCESS_PTR and _is_data(node.args[1], one.old):
            kind, _, offset, extent, mask = node.args
            moved = offset + number * one.stride
            return call_with(node, [kind, one.new.data, moved, extent, mask])
        if node.op.name in _BY_OFFSET:
            return _moved_offsets(node, one, number)
        if _is_data(node, one.old):
            raise ScheduleError(
                f"Buffer {one.old.name} is used by its bare address, so it cannot have several "
                "versions; use T.address_of or access_ptr."
            )
        return node

    def plain(block: Any) -> Any:
        return without_annotations(block, *REQUEST)

    others = [(tvm.ir.TensorRegion, region), (tvm.ir.Call, call), (SBlock, plain)]
    return tvm_ffi.structural_map(stmt, [*access_rules(access), *others], order="pre")


def _moved_offsets(call: Any, one: Versioned, number: Any) -> Any:
    """A call that takes addresses and, after each, an offset in elements."""
    args = list(call.args)
    for i, arg in enumerate(args):
        if _is_data(arg, one.old):
            args[i], args[i + 1] = one.new.data, args[i + 1] + number * one.stride
    return call_with(call, args)


def _is_data(expr: Any, buffer: Any) -> bool:
    return is_call_of(expr, ops.BUFFER_DATA) and bool(expr.args[0].same_as(buffer))
