"""Rewriting every access of a swizzled buffer, or refusing by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock

from ...analysis.accesses import AccessSite
from ...analysis.assumptions import Prover
from ...analysis.nest import element_bytes
from ...errors import LayoutError
from ...ir import ops
from ...ir.pointers import OPAQUE, POINTER_OPS, PointerOp, constant, pointer_of
from ...ir.queries import is_among, uses
from ...ir.rebuild import block_with, call_with
from ...layout.placement import Placement, Strided
from .swizzle_index import IndexWriter


@dataclass(frozen=True)
class Swizzled:
    """A buffer that is laid out anew; mode and block that asked for it are for messages."""

    buffer: Any
    shape: Sequence[int]
    placement: Placement
    name: str
    block: str

    def new_buffer(self) -> Any:
        """The buffer that takes its place: with row strides if padded, else flat."""
        old, placement, shape = self.buffer, self.placement, self.shape
        options = {"scope": old.scope(), "data_alignment": placement.alignment}
        if isinstance(placement, Strided):
            strides = list(placement.strides)
            return tirx.decl_buffer(shape, old.dtype, str(old.name), strides=strides, **options)
        size = placement.elements(shape)
        return tirx.decl_buffer([size], old.dtype, str(old.name), **options)


def refuse_unknown(body: Any, buffer: Any, mode: str, block: str) -> None:
    """Refuse addresses of a buffer that go to instructions which are not known."""

    def refuse(access: Any) -> None:
        raise LayoutError(
            f"Buffer {buffer.name} is swizzled by block {block} ({mode}), but accessed through "
            f"{access}; only loads, stores, cp.async, ldmatrix and stmatrix can follow."
        )

    def look(call: Any) -> Any:
        name = getattr(call.op, "name", "")
        op = POINTER_OPS.get(name)
        if op is None or not uses(call.args[op.pointer(call.args)], buffer):
            if name in OPAQUE and _names(call, buffer):
                refuse(call)
            return None
        pointer = pointer_of(call, op)
        if pointer is None or not pointer[0].same_as(buffer) or not op.bytes(call.args):
            refuse(call)
        # The calls that make its address are understood; those in indices are others.
        rest = [arg for at, arg in enumerate(call.args) if at != op.pointer(call.args)]
        for part in (*rest, *(pointer[1] if pointer is not None else ())):
            tvm_ffi.structural_walk(part, rules, order="pre")
        return tvm_ffi.WalkResult.SKIP

    def view(node: Any) -> None:
        if not node.buffer.same_as(buffer) and uses(node.data, buffer):
            refuse(f"the view {node.buffer.name}")

    rules: Any = [(tvm.ir.Call, look), (tirx.DeclBuffer, view)]
    tvm_ffi.structural_walk(body, rules, order="pre")


def _names(call: Any, buffer: Any) -> bool:
    """Whether a call takes the address of this buffer; its indices may hold loads of others."""
    first = call.args[1] if call.op.name == ops.TVM_ACCESS_PTR else call.args[0]
    if isinstance(first, tvm.ir.TensorLoad):
        return bool(first.source.same_as(buffer))
    return uses(first, buffer)


class Rewriter:
    """Rewrites accesses of swizzled buffers; ``thread_vars`` differ between threads."""

    def __init__(
        self,
        swizzled: Sequence[Swizzled],
        accesses: Sequence[AccessSite],
        thread_vars: Sequence[Any],
    ) -> None:
        self._swizzled = [(one, one.new_buffer()) for one in swizzled]
        # No two loops share a variable, or the program is ill-formed.
        ranges = {
            loop.var: tvm.ir.Range.from_min_extent(loop.start, loop.extent)
            for access in accesses
            for loop in access.loops
        }
        self._prover = Prover()
        for var, bounds in ranges.items():
            self._prover.analyzer.bind(var, bounds)
        self._writer = IndexWriter(self._prover.analyzer, lambda var: is_among(var, thread_vars))

    def rewrite(self, body: Any) -> Any:
        """Rewrite a statement; LayoutError if an access would be torn apart, or is left over."""
        rules = [
            (tvm.ir.TensorLoad, self._load),
            (tirx.BufferStore, self._store),
            (tvm.ir.Call, self._call),
            (SBlock, self._block),
        ]
        body = tvm_ffi.structural_map(body, [(tvm.ir.Call, self._settled)], order="post")
        tvm_ffi.structural_walk(body, [(tvm.ir.Call, self._check_pointer)])
        changed = tvm_ffi.structural_map(body, rules, order="post")
        for one, _ in self._swizzled:
            if uses(changed, one.buffer):
                raise LayoutError(
                    f"Buffer {one.buffer.name}, swizzled by block {one.block} ({one.name}), is "
                    "used in a way that the swizzle cannot follow."
                )
        return changed

    def _of(self, buffer: Any) -> tuple[Swizzled, Any] | None:
        return next((pair for pair in self._swizzled if pair[0].buffer.same_as(buffer)), None)

    def _load(self, node: Any) -> Any:
        found = self._of(node.source)
        return node if found is None else tirx.BufferLoad(found[1], self._places(found, node))

    def _store(self, node: Any) -> Any:
        found = self._of(node.buffer)
        if found is None:
            return node
        return tirx.BufferStore(found[1], node.value, self._places(found, node))

    def _places(self, found: tuple[Swizzled, Any], node: Any) -> list[Any]:
        one, _ = found
        indices = list(node.indices)
        if isinstance(one.placement, Strided):
            return indices
        last = indices[-1]
        if not isinstance(last, tirx.Ramp):
            return [self._writer.offset(one.placement, indices)]
        lanes = int(last.lanes)
        if constant(last.stride) != 1:
            self._refuse(one, indices, "its vector has gaps")
        base = [*indices[:-1], last.base]
        self._check_whole(one, base, lanes)
        return [tirx.Ramp(self._writer.offset(one.placement, base), 1, lanes)]

    def _check_whole(self, one: Swizzled, indices: Sequence[Any], elements: int) -> None:
        """Refuse an access of several elements that are not together and aligned."""
        if elements & (elements - 1):
            self._refuse(one, indices, f"its {elements} elements are no power of two")
        if one.placement.whole() < elements:
            self._refuse(
                one,
                indices,
                f"{one.placement.whole()} elements stay together and aligned, not {elements}",
            )
        if not self._prover.is_multiple(indices[-1], elements):
            self._refuse(one, indices, f"its column is not known to be a multiple of {elements}")

    def _refuse(self, one: Swizzled, indices: Sequence[Any], why: str) -> None:
        raise LayoutError(
            f"Buffer {one.buffer.name} is swizzled by block {one.block} ({one.name}), and the "
            f"access {one.buffer.name}{list(indices)} cannot follow: {why}."
        )

    def _pointer(self, node: Any) -> tuple[PointerOp, tuple[Swizzled, Any], Sequence[Any]] | None:
        """What an instruction's address names, if that is a swizzled buffer."""
        op = POINTER_OPS.get(getattr(node.op, "name", ""))
        pointer = None if op is None else pointer_of(node, op)
        found = None if pointer is None else self._of(pointer[0])
        return None if op is None or pointer is None or found is None else (op, found, pointer[1])

    def _settled(self, node: Any) -> Any:
        """Write an element's address and a distance from it as the address of one element."""
        found = self._pointer(node)
        if found is None or not found[0].has_offset:
            return node
        op, (one, _), indices = found
        position = op.pointer(node.args)
        address = node.args[position]
        if address.op.name != ops.ADDRESS_OF:
            return node
        element = tirx.BufferLoad(one.buffer, list(indices))
        arguments = list(node.args)
        arguments[position] = call_with(address, [element])
        arguments[position + 1] = tirx.IntImm("int32", 0)
        return call_with(node, arguments)

    def _check_pointer(self, node: Any) -> None:
        found = self._pointer(node)
        if found is None:
            return
        op, (one, _), indices = found
        size = element_bytes(one.buffer)
        if node.op.name == ops.PTX_LEGACY_LDMATRIX and size == 1 and constant(node.args[0]):
            self._refuse(one, indices, "TVM transposes elements of 1 byte without ldmatrix")
        self._check_whole(one, indices, max(1, (op.bytes(node.args) or 0) // size))

    def _call(self, node: Any) -> Any:
        """Rewrite an instruction that takes an access pointer.

        The pointer keeps its form, by which TVM finds where to put barriers and versions, and spans
        the whole buffer, in which the parts of a tile lie scattered.
        """
        found = self._pointer(node)
        if found is None:
            return node
        op, (one, buffer), indices = found
        offset = self._writer.offset(one.placement, indices)
        size = int(one.placement.elements(one.shape))
        position = op.pointer(node.args)
        arguments = list(node.args)
        if op.has_offset:
            arguments[position] = _with_pointer(arguments[position], buffer, 0, size)
            arguments[position + 1] = offset
        else:
            arguments[position] = _with_pointer(arguments[position], buffer, offset, size)
        return call_with(node, arguments)

    def _region(self, node: Any) -> Any:
        found = self._of(node.source)
        if found is None:
            return node
        one, buffer = found
        if isinstance(one.placement, Strided):
            return tirx.BufferRegion(buffer, node.region)
        return tirx.BufferRegion(buffer, [tvm.ir.Range(0, buffer.shape[0])])

    def _block(self, node: Any) -> Any:
        buffers = [b if (found := self._of(b)) is None else found[1] for b in node.alloc_buffers]
        return block_with(
            node,
            reads=[self._region(r) for r in node.reads],
            writes=[self._region(r) for r in node.writes],
            alloc_buffers=buffers,
        )


def _with_pointer(argument: Any, buffer: Any, offset: Any, size: int) -> Any:
    name = argument.op.name
    if name == ops.CUDA_CVTA_GENERIC_TO_SHARED:
        inside = _with_pointer(argument.args[0], buffer, offset, size)
        return call_with(argument, [inside])
    mode = argument.args[4] if name == ops.TVM_ACCESS_PTR else 3
    return buffer.access_ptr(int(mode), offset=offset, extent=size)
