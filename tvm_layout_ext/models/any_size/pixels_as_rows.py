"""Windows of one pixel, of images of any size: pixels are rows of a matrix, counted through."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock

from ...ir.queries import (
    are_equal,
    blocks_in,
    is_among,
    is_number,
    nodes_in,
    substitute,
    variables,
)
from ...ir.rebuild import block_with, realize_with, sequence, with_accesses
from ...ir.walk import top_statements


def without_places(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Leave the place in a window of one pixel out of indices, and copies of whole images.

    These are what a convolution of windows has of zeros around images. Where only the number of
    images is symbolic, each is a product, and nothing changes.
    """
    if not any(variables(n) for param in func.params for n in getattr(param, "shape", ())[1:]):
        return func
    body = tvm_ffi.structural_map(func.body, [(SBlock, _plain)], order="post")
    return _without_copies(func.with_body(body))


def _plain(block: Any) -> Any:
    """A block whose indices have no iterator of one value that it sums over."""
    places = {
        one.var: one.dom.min
        for one in block.iter_vars
        if one.iter_type == tirx.IterVar.CommReduce and is_number(one.dom.extent, 1)
    }
    if not places:
        return block
    analyzer = tvm.sym.Analyzer()

    def change(buffer: Any, at: Any) -> tuple[Any, list[Any]]:
        return buffer, [analyzer.simplify(substitute(index, places)) for index in at]

    def region(node: Any) -> Any:
        _, at = change(node.source, [one.min for one in node.region])
        pairs = zip(at, node.region, strict=True)
        ranges = [tvm.ir.Range.from_min_extent(low, one.extent) for low, one in pairs]
        return tirx.BufferRegion(node.source, ranges)

    reads = [region(one) for one in block.reads]
    return block_with(block, body=with_accesses(block.body, change), reads=reads)


def _without_copies(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function that reads parameters where it read whole copies of them."""
    root = func.body.block
    copied = dict(filter(None, map(_copy, top_statements(func))))
    copied = {
        to: param
        for to, param in copied.items()
        if is_among(to, root.alloc_buffers) and is_among(param, func.params)
    }
    if not copied:
        return func
    kept = [one for one in top_statements(func) if not _writes(one, copied)]

    def source(buffer: Any) -> Any:
        return next((param for to, param in copied.items() if to.same_as(buffer)), buffer)

    def block(node: Any) -> Any:
        reads = [tirx.BufferRegion(source(one.source), one.region) for one in node.reads]
        return block_with(node, reads=reads)

    body = with_accesses(sequence(kept), lambda buffer, at: (source(buffer), at))
    body = tvm_ffi.structural_map(body, [(SBlock, block)], order="post")
    made = [one for one in root.alloc_buffers if not is_among(one, copied)]
    return func.with_body(realize_with(func.body, block_with(root, body=body, alloc_buffers=made)))


def _copy(nest: Any) -> tuple[Any, Any] | None:
    """The buffer that a nest fills with all of another one, and this."""
    blocks = blocks_in(nest)
    store = blocks[0].body if len(blocks) == 1 else None
    load = getattr(store, "value", None)
    if not isinstance(load, tvm.ir.TensorLoad) or not isinstance(store, tirx.BufferStore):
        return None
    own = [one.var for one in blocks[0].iter_vars]
    same = are_equal(store.indices, load.indices) and all(is_among(at, own) for at in load.indices)
    whole = same and are_equal(store.buffer.shape, load.source.shape)
    return (store.buffer, load.source) if whole and len(own) == len(load.indices) else None


def _writes(nest: Any, buffers: Any) -> bool:
    return any(is_among(one.buffer, buffers) for one in nodes_in(nest, tirx.BufferStore))
