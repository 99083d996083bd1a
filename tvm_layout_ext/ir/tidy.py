"""Functions as rules read them: plain indices, and no block whose results nobody reads."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, sym, tirx

from .conditions import analyzer_of, conjuncts
from .one_block import as_one_block, with_lets
from .ops import CHOICE
from .queries import is_among, is_call_of, nodes_in
from .rebuild import accessed, block_with, realize_with, sequence
from .walk import top_statements

_QUOTIENTS = (tirx.FloorDiv, tirx.FloorMod)


def tidy(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Simplify quotients in a function's indices, and drop what it computes for nobody.

    Reshapes of TVM's operators have quotients of dims of extent 1, behind which rows are not seen,
    and a norm of fixed statistics writes copies of these that the fused function does not return.
    """
    if not isinstance(func.body, s_tir.SBlockRealize):
        return func
    root = func.body.block
    kept: list[Any] = []
    read: list[Any] = []
    for nest in reversed(top_statements(func)):
        loads, stores = accessed(nest)
        made = root.alloc_buffers
        if stores and all(is_among(b, made) and not is_among(b, read) for b in stores):
            continue
        plain = tvm_ffi.structural_map(nest, [(s_tir.SBlock, _simplified)], order="post")
        kept.insert(0, as_one_block(plain))
        read += loads
    return func.with_body(realize_with(func.body, block_with(root, body=sequence(kept))))


def without_unread(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Drop copies inside of kernels to buffers of the function that nobody reads.

    An argmax computes maxima, too, of which a model asks none.
    """
    root = func.body.block
    loads = [load.source for load in nodes_in(root, tvm.ir.TensorLoad)]
    unread = [buffer for buffer in root.alloc_buffers if not is_among(buffer, loads)]
    if not unread:
        return func

    def is_copy(stmt: Any) -> bool:
        while isinstance(stmt, tirx.For):
            stmt = stmt.body
        store = stmt.block.body if isinstance(stmt, s_tir.SBlockRealize) else None
        return isinstance(store, tirx.BufferStore) and is_among(store.buffer, unread)

    def shorter(node: Any) -> Any:
        return sequence([one for one in node.seq if not is_copy(one)] or node.seq)

    body = tvm_ffi.structural_map(root.body, [(tirx.SeqStmt, shorter)], order="post")
    stored = [store.buffer for store in nodes_in(body, tirx.BufferStore)]
    made = [one for one in root.alloc_buffers if not is_among(one, unread) or is_among(one, stored)]
    return func.with_body(realize_with(func.body, block_with(root, body=body, alloc_buffers=made)))


def under_guards(value: Any, analyzer: sym.Analyzer) -> Any:
    """An expression whose loads have fewer quotients where their conditions say that they may.

    Of what is reshaped and then padded an index is ``(i - 1) // 1568 % 2``, where ``i`` is between
    1 and 1568, which nothing but the condition says.

    Examples
    --------
    >>> i, b = tirx.Var("i", "int32"), tirx.decl_buffer((9, 8), "float32", "B", layout=None)
    >>> analyzer = sym.Analyzer()
    >>> analyzer.bind(i, tvm.ir.Range(0, 9))
    >>> under_guards(tirx.if_then_else(i >= 1, b[(i - 1) // 8, i], 0.0), analyzer)
    T.if_then_else(i >= 1, B[0, i], T.float32(0.0))
    """

    def load(one: Any) -> Any:
        indices = [_shorter(index, analyzer.simplify(index)) for index in one.indices]
        return tirx.BufferLoad(one.source, indices)

    def choice(call: Any) -> Any:
        if not is_call_of(call, CHOICE):
            return call
        condition, value, other = call.args
        with ExitStack() as scopes:
            for part in conjuncts(condition):
                scopes.enter_context(analyzer.constraint_scope(part))
            found = tvm_ffi.structural_map(value, [(tvm.ir.TensorLoad, load)], order="post")
        return tirx.if_then_else(condition, found, other)

    return tvm_ffi.structural_map(value, [(tvm.ir.Call, choice)], order="post")


def _shorter(index: Any, simple: Any) -> Any:
    """Of two forms of an index the one of fewer quotients, or the first."""
    count = [len(nodes_in(one, *_QUOTIENTS)) for one in (simple, index)]
    return simple if count[0] < count[1] else index


def _simplified(block: Any) -> Any:
    """A block whose loads and regions have no quotients that their iterators' ranges make plain."""
    block = with_lets(block)
    analyzer = analyzer_of((one.var, one.dom) for one in block.iter_vars)

    def plain(index: Any) -> Any:
        return analyzer.simplify(index) if nodes_in(index, *_QUOTIENTS) else index

    def load(node: Any) -> Any:
        return tirx.BufferLoad(node.source, [plain(index) for index in node.indices])

    def region(node: Any) -> Any:
        ranges = [tvm.ir.Range.from_min_extent(plain(r.min), r.extent) for r in node.region]
        return tirx.BufferRegion(node.source, ranges)

    body = tvm_ffi.structural_map(block.body, [(tvm.ir.TensorLoad, load)], order="post")
    return block_with(block, body=body, reads=[region(one) for one in block.reads])
