"""Read a kernel of flat TIR into a :class:`.program.Node`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...ir import ops
from ...ir.pointers import OPAQUE
from ...ir.queries import is_call_of, is_global, op_name
from ...ir.walk import THREADS
from .program import WRITE, EnclosingLoop, Node, Program, Sync
from .program_accesses import AccessReader, Around
from .terms import Scope, Symbol

_BLOCK_BARRIERS = (ops.CUDA_CTA_SYNC, ops.CUDA_SYNCTHREADS_AND, ops.CUDA_SYNCTHREADS_OR)
_WARP_BARRIERS = (ops.CUDA_WARP_SYNC, ops.PTX_BAR_WARP_SYNC)


class _ProgramReader:
    def __init__(self) -> None:
        self.program = Program(Node(None))
        self.memory = AccessReader(self.program)

    def statement(self, stmt: Any, around: Around) -> tuple[Node, Around]:
        """Read a statement; gives what lies around the next one."""
        if isinstance(stmt, tirx.Bind):
            term = around.scope.term(stmt.value)
            after = replace(around, scope=around.scope.having(stmt.var, term))
            return self.leaf(stmt, around), after
        if isinstance(stmt, tirx.AllocBuffer):
            self.memory.allocate(stmt.buffer)
            return Node(stmt), around
        if isinstance(stmt, tirx.DeclBuffer):
            self.memory.declare(stmt, around)
            return Node(stmt), around
        reader = _READERS.get(type(stmt), _ProgramReader.leaf)
        return reader(self, stmt, around), around

    def node(self, stmt: Any, kind: str, children: Sequence[Node], **more: Any) -> Node:
        node = Node(stmt, kind, list(children), **more)
        for child in children:
            child.parent = node
        return node

    def sequence(self, stmt: Any, around: Around) -> Node:
        children = []
        for part in stmt.seq:
            child, around = self.statement(part, around)
            children.append(child)
        return self.node(stmt, "seq", children)

    def branch(self, stmt: Any, around: Around) -> Node:
        condition = around.scope.term(stmt.condition)
        test = self.memory.accesses(stmt.condition, around)
        children = [self.statement(stmt.then_case, around.under(condition))[0]]
        if stmt.else_case is not None:
            children.append(self.statement(stmt.else_case, around.unless(condition))[0])
        return self.node(stmt, "if", children, condition=condition, accesses=test)

    def loop(self, stmt: Any, around: Around) -> Node:
        start, extent = map(around.scope.term, (stmt.min, stmt.extent))
        own = tirx.Var(str(stmt.loop_var.name), stmt.loop_var.ty)
        loop = EnclosingLoop(Symbol(own, varies=start.varies), start, extent)
        scope = around.scope.having(stmt.loop_var, loop.symbol)
        inside = replace(around, scope=scope, loops=(*around.loops, loop))
        return self.node(stmt, "loop", [self.statement(stmt.body, inside)[0]], loop=loop)

    def repeat(self, stmt: Any, around: Around) -> Node:
        loop = EnclosingLoop(Symbol(tirx.Var("while", "int32")), None, None)
        inside = replace(around, loops=(*around.loops, loop))
        condition = around.scope.term(stmt.condition)
        body = self.statement(stmt.body, inside)[0]
        test = self.memory.accesses(stmt.condition, inside)
        return self.node(stmt, "loop", [body], loop=loop, condition=condition, accesses=test)

    def attribute(self, stmt: Any, around: Around) -> Node:
        key, before, after = str(stmt.attr_key), None, None
        if key in ("thread_extent", "virtual_thread"):
            around = replace(around, scope=self.bind_thread(stmt, around.scope))
        elif key == "async_commit_queue_scope":
            after = Sync("commit")
        elif key == "async_wait_queue_scope":
            # The attribute right inside says how many groups may stay under way.
            before = Sync("wait", _groups(stmt.body.value))
        body = self.statement(stmt.body, around)[0]
        return self.node(stmt, "scope", [body], before=before, after=after)

    def bind_thread(self, stmt: Any, scope: Scope) -> Scope:
        tag = str(stmt.node.thread_tag)
        extent = scope.term(stmt.value).constant() or 0
        own = tirx.Var(tag, stmt.node.var.ty)
        fresh = Symbol(own, tag, tag in THREADS and extent != 1, extent)
        symbol = self.program.symbols.setdefault(tag, fresh)
        if tag in THREADS:
            self.program.threads[tag] = extent
        return scope.having(stmt.node.var, symbol)

    def leaf(self, stmt: Any, around: Around) -> Node:
        sync = _sync_of(stmt.value) if isinstance(stmt, tirx.Evaluate) else None
        if sync is not None:
            return Node(stmt, before=sync)
        found = self.memory.accesses(stmt, around)
        if isinstance(stmt, tirx.BufferStore):
            found += self.memory.at(stmt.buffer, stmt.indices, WRITE, around)
        return Node(stmt, accesses=found)


_READERS: dict[type, Callable[[_ProgramReader, Any, Around], Node]] = {
    tirx.SeqStmt: _ProgramReader.sequence,
    tirx.IfThenElse: _ProgramReader.branch,
    tirx.For: _ProgramReader.loop,
    tirx.While: _ProgramReader.repeat,
    tirx.AttrStmt: _ProgramReader.attribute,
}


def _groups(value: Any) -> int:
    return int(value) if isinstance(value, tirx.IntImm) else 0


def _sync_of(call: Any) -> Sync | None:
    name = op_name(call)
    if name == ops.TVM_STORAGE_SYNC:
        scope = str(call.args[0].value)
        kind = "block" if scope.startswith("shared") else "warp"
        return Sync(kind, is_storage=True)
    if name in _BLOCK_BARRIERS:
        return Sync("block")
    if name in _WARP_BARRIERS:
        return Sync("warp")
    if name == ops.PTX_CP_ASYNC_COMMIT_GROUP:
        return Sync("commit")
    if name == ops.PTX_CP_ASYNC_WAIT_ALL:
        return Sync("wait", -1)
    if name == ops.PTX_CP_ASYNC_WAIT_GROUP:
        return Sync("wait", _groups(call.args[0]))
    return None


def read_program(launch: Any, read_only: frozenset[Any] = frozenset()) -> Program:
    """Read a kernel from its outermost ``thread_extent``; :class:`Scope` says what is read only."""
    reader = _ProgramReader()
    reader.program.root, _ = reader.statement(launch, Around(Scope(read_only)))
    return reader.program


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
        if op_name(node).startswith(_COPIES):
            return tvm_ffi.WalkResult.SKIP
        if is_call_of(node, *OPAQUE) and node.args:
            written.add(root(getattr(node.args[0], "source", node.args[0])))
        return None

    def load(node: Any) -> None:
        if is_global(node.source):
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
