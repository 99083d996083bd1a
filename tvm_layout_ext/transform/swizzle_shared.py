"""Lay out shared tiles by XOR, so that rows and columns of them meet every bank once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock

from .. import decisions
from ..errors import LayoutError
from .mark_annotated import ANNOTATION_PREFIX, MARK
from .rebuild import block_with

__all__ = ["SWIZZLE", "SwizzleSharedMemory", "swizzle_text"]

#: Annotation of the block that fills a shared buffer: for each dim the offsets to which the bits of
#: its index go, lowest bit first, as in ``"32,66;1,2,4,8,16"``. The offset of an element is the XOR
#: of those of its set bits.
SWIZZLE = ANNOTATION_PREFIX + "swizzle"
_NAME = "SwizzleSharedMemory"
#: Calls that take a buffer as a whole, past its indices.
_OPAQUE = ("tirx.address_of", "tirx.tvm_access_ptr", "tirx.buffer_data", "tirx.ptr_byte_offset")


def swizzle_text(images: Sequence[Sequence[int]]) -> str:
    """Write a swizzle as the annotation has it.

    >>> swizzle_text([[4, 10], [1, 2], []])
    '4,10;1,2;'
    """
    return ";".join(",".join(map(str, bits)) for bits in images)


def _parse(text: str, block: str) -> list[list[int]]:
    try:
        return [[int(image) for image in bits.split(",") if image] for bits in text.split(";")]
    except ValueError as error:
        raise LayoutError(
            f"Block {block} has the swizzle {text!r}; it must look like '4,10;1,2'."
        ) from error


class _Swizzled:
    """A buffer that is laid out anew, and the flat one that takes its place."""

    def __init__(self, buffer: Any, images: list[list[int]], block: str) -> None:
        self.buffer = buffer
        self.images = images
        self.block = block
        size = 1 << sum(map(len, images))
        self.flat = tirx.decl_buffer(
            [size], buffer.dtype, f"{buffer.name}", scope=buffer.scope(), data_alignment=128
        )

    def offset(self, indices: Sequence[Any]) -> Any:
        """Where an element goes: fields of index bits, added where they do not meet."""
        sources: dict[int, list[tuple[int, int]]] = {}
        for dim, bits in enumerate(self.images):
            for bit, image in enumerate(bits):
                for out in range(image.bit_length()):
                    if image >> out & 1:
                        sources.setdefault(out, []).append((dim, bit))
        total: Any = indices[0] * 0
        out = 0
        while out < len(sources):
            width = _field(sources, out)
            terms = [_extract(indices[dim], bit, width) for dim, bit in sources[out]]
            value = terms[0]
            for term in terms[1:]:
                value = tirx.bitwise_xor(value, term)
            total = total + value * (1 << out)
            out += width
        return total


def _field(sources: dict[int, list[tuple[int, int]]], first: int) -> int:
    """How many offset bits from ``first`` on come from neighbouring bits of the same indices."""
    width = 1
    while first + width in sources and sources[first + width] == [
        (dim, bit + width) for dim, bit in sources[first]
    ]:
        width += 1
    return width


def _extract(index: Any, bit: int, width: int) -> Any:
    return tirx.floormod(tirx.floordiv(index, 1 << bit), 1 << width)


def _requests(func: tirx.PrimFunc) -> list[_Swizzled]:
    found: list[_Swizzled] = []

    def look(block: Any) -> None:
        value = block.annotations.get(SWIZZLE, None)
        if value is not None:
            images = _parse(str(value), block.name_hint)
            (region,) = block.writes
            _check(region.source, images, block.name_hint)
            found.append(_Swizzled(region.source, images, block.name_hint))

    tvm_ffi.structural_walk(func.body, [(SBlock, look)])
    return found


def _check(buffer: Any, images: list[list[int]], block: str) -> None:
    name = f"Buffer {buffer.name}, which block {block} wants swizzled,"
    if not buffer.scope().startswith("shared"):
        raise LayoutError(f"{name} is in {buffer.scope()} memory; only shared memory has banks.")
    if len(images) != len(buffer.shape):
        raise LayoutError(f"{name} has {len(buffer.shape)} dims, the swizzle {len(images)}.")
    for dim, (extent, bits) in enumerate(zip(buffer.shape, images, strict=True)):
        # A tile of a buffer of symbolic size n has min(n, 64) elements along a dim.
        if int(tvm.sym.Analyzer().const_int_bound(extent).max_value) > 1 << len(bits):
            raise LayoutError(
                f"{name} has {extent} elements along dim {dim}, the swizzle {1 << len(bits)}."
            )
    flat = [image for bits in images for image in bits]
    if not _is_bijective(flat):
        raise LayoutError(f"{name} would have several elements at one offset: {flat}.")


def _is_bijective(vectors: Sequence[int]) -> bool:
    """Whether the XORs of n vectors are the numbers below 2**n, each once."""
    if any(not 0 <= vector < 1 << len(vectors) for vector in vectors):
        return False
    pivots: dict[int, int] = {}
    for vector in vectors:
        rest = vector
        while rest and rest.bit_length() in pivots:
            rest ^= pivots[rest.bit_length()]
        if not rest:
            return False
        pivots[rest.bit_length()] = rest
    return True


def _refuse_opaque(func: tirx.PrimFunc, swizzled: Sequence[_Swizzled]) -> None:
    """Refuse accesses that do not go through indices."""

    def look(call: Any) -> None:
        if getattr(call.op, "name", "") in _OPAQUE:
            for one in swizzled:
                if any(var.same_as(one.buffer) for var in _variables(call)):
                    raise LayoutError(
                        f"Buffer {one.buffer.name} is swizzled by block {one.block}, but accessed "
                        f"through {call.op.name}; only loads and stores by index can follow."
                    )

    tvm_ffi.structural_walk(func.body, [(tvm.ir.Call, look)])


def _variables(expr: Any) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(expr, [(tirx.Var, found.append)])
    return found


def _rewrite(func: tirx.PrimFunc, swizzled: Sequence[_Swizzled]) -> tirx.PrimFunc:
    def of(buffer: Any) -> _Swizzled | None:
        return next((one for one in swizzled if one.buffer.same_as(buffer)), None)

    def load(node: Any) -> Any:
        one = of(node.source)
        return node if one is None else tirx.BufferLoad(one.flat, [one.offset(node.indices)])

    def store(node: Any) -> Any:
        one = of(node.buffer)
        if one is None:
            return node
        return tirx.BufferStore(one.flat, node.value, [one.offset(node.indices)])

    def region(node: Any) -> Any:
        one = of(node.source)
        if one is None:
            return node
        return tirx.BufferRegion(one.flat, [tvm.ir.Range(0, one.flat.shape[0])])

    def block(node: Any) -> Any:
        buffers = [one.flat if (one := of(b)) is not None else b for b in node.alloc_buffers]
        kept = {key: value for key, value in node.annotations.items() if key != SWIZZLE}
        return block_with(
            node,
            reads=[region(r) for r in node.reads],
            writes=[region(r) for r in node.writes],
            alloc_buffers=buffers,
            annotations=kept,
        )

    rules = [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store), (SBlock, block)]
    return func.with_body(tvm_ffi.structural_map(func.body, rules, order="post"))


@tirx.transform.prim_func_pass(opt_level=0, name="tvm_layout_ext.SwizzleSharedMemory")
def _swizzle_shared_memory(func: tirx.PrimFunc, _mod: Any, _ctx: Any) -> tirx.PrimFunc:
    if func.attrs.get(MARK, None) is None:
        return func
    swizzled = _requests(func)
    if not swizzled:
        return func
    _refuse_opaque(func, swizzled)
    for one in swizzled:
        decisions.note(_NAME, one.buffer.name, f"offset bits {one.images}")
    changed = tvm.IRModule.from_expr(_rewrite(func, swizzled))
    simplified = tirx.transform.StmtSimplify()(changed)
    return next(iter(simplified.functions.values()))


def SwizzleSharedMemory() -> Any:
    """Create the pass that lays out annotated shared buffers by XOR.

    Block annotation ``layout_ext.swizzle`` holds, for each dim of the buffer that the block writes,
    the offset to which each bit of the index goes. All loads and stores of the buffer by index
    follow, single or vectorized; vectors stay whole where the lowest bits keep their places. A tile
    of 16 by 16 words whose rows are XORed, four words at a time, by two bits of the row number, has
    ``"16,32,68,136;1,2,4,8"``: 68 is 64 and 4.

    Does not handle, and refuses by name: accesses through a pointer (``address_of``,
    ``access_ptr``, and so tensor intrinsics), buffers with more elements than the swizzle, and bits
    that meet.

    Raises
    ------
    LayoutError
        In these cases.
    """
    return _swizzle_shared_memory
