"""What the device function's buffers are: which storage each is a view of, and as what type."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import ir, tirx
from tvm.ir.prim.expr import IntImm

from ...errors import NotModelled
from ...gpu.hardware import LINE_BYTES
from ...gpu.warpgroups import whole_patterns
from ...ir import ops
from ...ir.queries import is_call_of, loads_in, nodes_in, op_name
from .values import numpy_type, split_type

_SHARED = ("shared", "shared.dyn")
#: Shared allocations start on this, so that banks and sectors of a block do not depend on others.
_ALIGN = LINE_BYTES


def handle(node: Any) -> int:
    """Identity of a TVM object; ``==`` on expressions builds an expression."""
    return int(node.__chandle__())


@dataclass(frozen=True)
class Versions:
    """Versions of ``size`` bytes each, from between the bytes ``first`` and ``last`` on."""

    count: int
    size: int
    first: int
    last: int

    def of(self, byte: int) -> int | None:
        """Version, from 0, of a byte of the storage; None if it is not certain."""
        low, high = (byte - self.last) // self.size, (byte - self.first) // self.size
        return low if low == high and 0 <= low < self.count else None


@dataclass
class Storage:
    """Memory that a kernel allocates or is handed; ``number`` is its place among the memories.

    A ``granule`` is the smallest element accessed, in bytes; ``length`` is 0 for a parameter.
    """

    number: int
    name: str
    scope: str
    dtype: np.dtype[Any]
    length: int
    granule: int
    written: bool = False
    read: bool = False
    versions: dict[str, Versions] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Size of the allocation."""
        return self.length * self.dtype.itemsize

    @property
    def span(self) -> int:
        """Size with the padding up to the next block's copy of it."""
        return -(-self.bytes // _ALIGN) * _ALIGN


@dataclass(frozen=True)
class Place:
    """A named view of a storage from element ``offset``, of vectors of ``lanes``."""

    name: str
    storage: Storage
    dtype: np.dtype[Any]
    shape: tuple[Any, ...]
    offset: Any
    lanes: int = 1


@dataclass
class Places:
    """All buffers of a kernel, by identity, and its storages: parameters first, in order."""

    by_buffer: dict[int, Place] = field(default_factory=dict)
    by_pointer: dict[int, Place] = field(default_factory=dict)
    storages: list[Storage] = field(default_factory=list)

    def at(self, buffer: Any) -> Place:
        """Place of a buffer."""
        found = self.by_buffer.get(handle(buffer))
        if found is None:
            raise NotModelled(f"Buffer {buffer.name} is used but declared nowhere in the kernel.")
        return found

    def pointed(self, pointer: Any) -> Place:
        """Place that a pointer expression points at the start of."""
        if is_call_of(pointer, ops.BUFFER_DATA):
            return self.at(pointer.args[0])
        found = self.by_pointer.get(handle(pointer))
        if found is None:
            raise NotModelled(f"Cannot tell which buffer the pointer {pointer} points into.")
        return found

    def bytes_of(self, number: int) -> Place:
        """A storage as bytes."""
        storage = self.storages[number]
        storage.granule = 1
        return Place(storage.name, storage, np.dtype(np.uint8), (storage.bytes,), 0)


def shared_bases(places: Places) -> dict[int, int]:
    """Addresses of shared arrays, by number of their storage: each begins where a swizzle may."""
    found, at = {}, 0
    for storage in places.storages:
        if storage.scope in _SHARED:
            found[storage.number] = at
            at += whole_patterns(storage.bytes)
    return found


def is_tensor_map(var: Any) -> bool:
    """Whether a parameter or variable is a tensor map."""
    return type(getattr(var.ty, "element_type", None)).__name__ == "TensorMapType"


def _add_parameters(places: Places, kernel: Any) -> None:
    for param in kernel.params:
        if not hasattr(param.ty, "element_type"):
            continue
        is_map = is_tensor_map(param)
        dtype, _ = split_type("uint8" if is_map else str(param.ty.element_type.dtype))
        storage = Storage(len(places.storages), param.name, "global", dtype, 0, dtype.itemsize)
        places.storages.append(storage)
        places.by_pointer[handle(param)] = Place(param.name, storage, dtype, (), 0)


def _add_allocation(places: Places, node: Any) -> None:
    buffer = node.buffer
    dtype, lanes = split_type(str(buffer.dtype))
    scope = str(buffer.scope())
    if scope == "warp":
        # TVM 0.27 leaves some warp buffers as they are, and prints each as a thread's local array.
        scope = "local"
    if scope not in (*_SHARED, "local"):
        raise NotModelled(f"Buffer {buffer.name} has scope {scope!r}, which has no model here.")
    extents = [e.value for e in buffer.shape if isinstance(e, IntImm)]
    if len(extents) != len(buffer.shape):
        raise NotModelled(f"Allocation {buffer.name} in {scope} memory has no constant size.")
    length = int(np.prod(extents, dtype=np.int64)) * lanes
    storage = Storage(len(places.storages), str(buffer.name), scope, dtype, length, dtype.itemsize)
    places.storages.append(storage)
    places.by_buffer[handle(buffer)] = Place(
        str(buffer.name), storage, dtype, tuple(buffer.shape), 0, lanes
    )


def _add_view(places: Places, node: Any) -> None:
    buffer = node.buffer
    source = places.pointed(node.data)
    dtype, lanes = split_type(str(buffer.dtype))
    places.by_buffer[handle(buffer)] = Place(
        str(buffer.name), source.storage, dtype, tuple(buffer.shape), buffer.elem_offset, lanes
    )
    if source.storage.scope == "global":
        source.storage.name = str(buffer.name)


def find_places(kernel: Any) -> Places:
    """Collect the buffers of a device function and how each storage is used."""
    places = Places()
    _add_parameters(places, kernel)
    for node in nodes_in(kernel.body, tirx.AllocBuffer, tirx.DeclBuffer):
        (_add_view if isinstance(node, tirx.DeclBuffer) else _add_allocation)(places, node)
    _note_uses(places, kernel)
    return places


def _note_uses(places: Places, kernel: Any) -> None:
    stores = nodes_in(kernel.body, tirx.BufferStore)
    accesses = [(one.buffer, one.value) for one in stores]
    for buffer, value in [*accesses, *((one.source, one) for one in loads_in(kernel.body))]:
        storage = places.at(buffer).storage
        storage.granule = min(storage.granule, numpy_type(value)[0].itemsize)
    read, written = storages_used(places, kernel.body)
    for storage in read:
        storage.read = True
    for storage in written:
        storage.written = True


def storages_used(places: Places, node: Any) -> tuple[list[Storage], list[Storage]]:
    """Storages that statements read, and those that they write."""
    read = [places.at(load.source).storage for load in loads_in(node)]
    written = [places.at(store.buffer).storage for store in nodes_in(node, tirx.BufferStore)]
    calls = nodes_in(node, ir.Call)
    return read, [*written, *(one for call in calls for one in _written_by_call(places, call))]


def _written_by_call(places: Places, call: Any) -> list[Storage]:
    """Storages that a call writes through a pointer argument."""
    name = op_name(call)
    if name == ops.PTX_CP_ASYNC_BULK_TENSOR_S2G:
        return [places.pointed(call.args[0].args[0].args[0]).storage]
    if name == ops.S_TIR_CP_ASYNC_RAW:
        return [places.pointed(call.args[0]).storage]
    if name.startswith(ops.PTX_CP_ASYNC_PREFIX) or name.endswith("ldmatrix"):
        # They read through their pointers, or write shared memory.
        return []
    return [
        places.at(argument.args[0].source).storage
        for argument in call.args
        if is_call_of(argument, ops.ADDRESS_OF)
        and not isinstance(argument.args[0], ir.Var)
        and name not in (ops.CUDA_LDG, ops.CUDA_CVTA_GENERIC_TO_SHARED, ops.CUDA_MBARRIER_WAIT)
    ]
