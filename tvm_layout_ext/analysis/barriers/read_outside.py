"""What a kernel does to global memory, as far as barriers care."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...ir import ops
from ...ir.pointers import OPAQUE


@dataclass(frozen=True)
class Outside:
    """Global buffers of a kernel that are loaded and never written, by ``__chandle__()``.

    With an exchange, some buffer is both, and a barrier may be there for its sake.
    """

    read_only: frozenset[int]
    has_exchange: bool


def read_outside(func: tirx.PrimFunc, kernel: Any) -> Outside:
    """Find which global buffers a kernel loads and writes; its function declares the views.

    Views of one buffer count as one. An address that is handed to an instruction counts as a write
    unless the instruction is ``cp.async``, which only reads global memory.
    """
    roots: dict[int, int] = {}
    written: set[int] = set()
    loaded: set[int] = set()

    def root(buffer: Any) -> int:
        own = int(buffer.__chandle__())
        return roots.get(own, own)

    def view(node: Any) -> None:
        data = node.data
        if isinstance(data, tvm.ir.Call) and data.op.name == ops.BUFFER_DATA:
            roots[int(node.buffer.__chandle__())] = root(data.args[0])

    def address(node: Any) -> Any:
        if _is_copy(node):
            return tvm_ffi.WalkResult.SKIP
        if getattr(node.op, "name", "") in OPAQUE and node.args:
            target = node.args[0]
            buffer = getattr(target, "source", target)
            if isinstance(buffer, tirx.Var):
                written.add(root(buffer))
        return None

    def load(node: Any) -> None:
        if node.source.scope() in ("", "global"):
            loaded.add(int(node.source.__chandle__()))

    # Views come first: a store into one must count for all of them.
    tvm_ffi.structural_walk(func.body, [(tirx.DeclBuffer, view)], order="pre")
    rules = [
        (tirx.DeclBuffer, lambda _: tvm_ffi.WalkResult.SKIP),
        (tirx.BufferStore, lambda node: written.add(root(node.buffer))),
        (tvm.ir.Call, address),
        (tvm.ir.TensorLoad, load),
    ]
    tvm_ffi.structural_walk(kernel, rules, order="pre")
    read_only = frozenset(one for one in loaded if roots.get(one, one) not in written)
    return Outside(read_only, read_only != loaded)


def _is_copy(call: Any) -> bool:
    name = str(getattr(call.op, "name", ""))
    return name.startswith(ops.PTX_CP_ASYNC_C_PREFIX) or name == ops.S_TIR_CP_ASYNC_RAW
