"""Let an access that walks a whole dense array say so, however its loops were fused."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from .mark_annotated import MARK

__all__ = ["StraightenIndices"]


def _numerator(indices: Any) -> Any | None:
    """The one expression whose quotients and remainders the indices are, or None."""
    found: list[Any] = []
    look = lambda node: found.append(node.a)  # noqa: E731
    for index in indices:
        tvm_ffi.structural_walk(index, [(tirx.FloorDiv, look), (tirx.FloorMod, look)])
    # f % 12 // 4 has the numerators f % 12 and f.
    plain = [a for a in found if not isinstance(a, tirx.FloorDiv | tirx.FloorMod)]
    if not plain or any(not tvm_ffi.structural_equal(a, plain[0]) for a in plain):
        return None
    return plain[0]


def _straight(buffer: Any, indices: Any) -> list[Any] | None:
    """Indices that give the same offset without quotients, or None."""
    if len(indices) < 2 or buffer.scope() != "global" or list(buffer.ty.strides):
        return None
    walked = _numerator(indices)
    if walked is None:
        return None
    var = tirx.Var("walked", walked.ty)

    def swap(node: Any) -> Any:
        if isinstance(node, tirx.FloorDiv | tirx.FloorMod) and tvm_ffi.structural_equal(
            node.a, walked
        ):
            return type(node)(var, node.b)
        return node

    rules = [(tirx.FloorDiv, swap), (tirx.FloorMod, swap)]
    offset: Any = indices[0] * 0
    for index, extent in zip(indices, buffer.shape, strict=True):
        offset = offset * extent + tvm_ffi.structural_map(index, rules, order="post")
    offset = tvm.sym.Analyzer().simplify(offset)
    left: list[Any] = []
    tvm_ffi.structural_walk(offset, [(tirx.FloorDiv, left.append), (tirx.FloorMod, left.append)])
    if left:
        return None
    back = (tirx.Var, lambda v: walked if v.same_as(var) else v)
    offset = tvm_ffi.structural_map(offset, [back], order="post")
    return [*(index * 0 for index in indices[:-1]), offset]


def _load(node: Any) -> Any:
    indices = _straight(node.source, node.indices)
    return node if indices is None else tirx.BufferLoad(node.source, indices)


def _store(node: Any) -> Any:
    indices = _straight(node.buffer, node.indices)
    return node if indices is None else tirx.BufferStore(node.buffer, node.value, indices)


@tirx.transform.prim_func_pass(opt_level=0, name="tvm_layout_ext.StraightenIndices")
def _straighten_indices(func: tirx.PrimFunc, _mod: Any, _ctx: Any) -> tirx.PrimFunc:
    if func.attrs.get(MARK, None) is None:
        return func
    rules = [(tvm.ir.TensorLoad, _load), (tirx.BufferStore, _store)]
    return func.with_body(tvm_ffi.structural_map(func.body, rules, order="post"))


def StraightenIndices() -> Any:
    """Create the pass that puts an offset without quotients in the place of several indices.

    Loops fused over a dense array leave an index a dim, whose offset is the fused loop again::

        A[f // 396, f % 396 // 132, f % 132 // 33, f % 33]      is      A[0, 0, 0, f]

    TVM sees that only before it splits f into block, thread and vector; afterwards it would take
    the vector for a gather. The last index then runs over the end of its dim, which flattening, the
    next thing to happen to it, does not mind.

    Leaves alone: buffers with strides of their own or outside global memory, indices of different
    expressions, offsets that keep a quotient, and functions without an annotation of this package.
    """
    return _straighten_indices
