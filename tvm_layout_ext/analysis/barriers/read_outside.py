"""What a kernel does to global memory, as far as barriers care."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...ir import ops
from ...ir.pointers import OPAQUE
from ...ir.queries import is_call_of

#: Copies only read global memory.
_COPIES = (ops.PTX_CP_ASYNC_C_PREFIX, ops.S_TIR_CP_ASYNC_RAW)


@dataclass(frozen=True)
class Outside:
    """Global buffers loaded and never written; in an exchange one is both."""

    read_only: frozenset[Any]
    has_exchange: bool


def read_outside(func: tirx.PrimFunc, kernel: Any) -> Outside:
    """Global buffers that a kernel loads and writes, views of one counting as one.

    An address given to an instruction counts as a write, unless that is ``cp.async``.
    """
    roots: dict[Any, Any] = {}
    written: set[Any] = set()
    loaded: set[Any] = set()

    def root(buffer: Any) -> Any:
        return roots.get(buffer, buffer)

    def view(node: Any) -> None:
        if is_call_of(node.data, ops.BUFFER_DATA):
            roots[node.buffer] = root(node.data.args[0])

    def address(node: Any) -> Any:
        if str(getattr(node.op, "name", "")).startswith(_COPIES):
            return tvm_ffi.WalkResult.SKIP
        if is_call_of(node, *OPAQUE) and node.args:
            written.add(root(getattr(node.args[0], "source", node.args[0])))
        return None

    def load(node: Any) -> None:
        if node.source.scope() in ("", "global"):
            loaded.add(node.source)

    # Views come first: a store into one must count for all of them.
    tvm_ffi.structural_walk(func.body, [(tirx.DeclBuffer, view)], order="pre")
    rules = [
        (tirx.DeclBuffer, lambda _: tvm_ffi.WalkResult.SKIP),
        (tirx.BufferStore, lambda node: written.add(root(node.buffer))),
        (tvm.ir.Call, address),
        (tvm.ir.TensorLoad, load),
    ]
    tvm_ffi.structural_walk(kernel, rules, order="pre")
    read_only = frozenset(one for one in loaded if root(one) not in written)
    return Outside(read_only, read_only != loaded)
