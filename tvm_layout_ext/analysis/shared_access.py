"""Every access of a function's shared memory, with the loops and conditions around it.

Works before lowering, where indices have several dims and vectors are loops, and on final device
functions, where offsets are flat and vectors are ramps. Instructions that take an address instead
of indices are known by name (:data:`.pointers.POINTER_OPS`); nothing else that takes one is
understood.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx import IterVar

from .._compat import CHOICE
from ..ir import ops
from ..ir.pointers import POINTER_OPS, constant, pointer_of, source_of
from .nest import element_bytes

__all__ = [
    "Context",
    "CopySource",
    "LoopVar",
    "SharedAccess",
    "read_shared_accesses",
]

_THREADS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")


@dataclass(frozen=True)
class LoopVar:
    """A variable that a loop or the launch gives its values.

    Attributes
    ----------
    var : Var
    start, extent : PrimExpr or int
    kind : str
        ``serial``, ``vectorized``, ..., or a thread such as ``threadIdx.x``.
    """

    var: Any
    start: Any
    extent: Any
    kind: str


@dataclass(frozen=True)
class Context:
    """What lies around a statement.

    Attributes
    ----------
    loops : tuple of LoopVar
        Outermost first.
    lets : tuple of (Var, PrimExpr)
        Variables that stand for expressions, in order.
    conditions : tuple of PrimExpr
        All of which hold.
    threads : dict of str to int
        Extents of the kernel's thread axes.
    block : str
        Name of the innermost block with a name.
    marks : dict of str to Any
        Annotations of the blocks around it, those of the innermost first.
    """

    loops: tuple[LoopVar, ...] = ()
    lets: tuple[tuple[Any, Any], ...] = ()
    conditions: tuple[Any, ...] = ()
    threads: dict[str, int] = field(default_factory=dict)
    block: str = ""
    marks: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CopySource:
    """Global memory that an access copies from.

    Attributes
    ----------
    buffer : Buffer
    indices : tuple of PrimExpr
        Of the element that goes to the access's own.
    fills : bool
        It is read under a condition; zeros or the like are stored elsewhere.
    """

    buffer: Any
    indices: tuple[Any, ...]
    fills: bool = False


@dataclass(frozen=True)
class SharedAccess:
    """One load, store or matrix instruction of shared memory.

    Attributes
    ----------
    buffer : Buffer
    kind : str
        ``load``, ``store``, ``ldmatrix``, ``stmatrix`` or ``cp.async``.
    indices : tuple of PrimExpr
        Of the first element, one for each dim; the last may be a ramp.
    bytes : int or None
        What a lane touches from there; None for as much as the vector has.
    context : Context
    source : Source or None
        What a store or ``cp.async`` copies, if it does nothing else.
    """

    buffer: Any
    kind: str
    indices: tuple[Any, ...]
    bytes: int | None
    context: Context
    source: CopySource | None = None

    @property
    def is_write(self) -> bool:
        """Whether it writes shared memory."""
        return self.kind in ("store", "stmatrix", "cp.async")

    def __str__(self) -> str:
        where = f" in block {self.context.block}" if self.context.block else ""
        return f"{self.kind} of {self.buffer.name}{list(self.indices)}{where}"


class _SharedAccessReader:
    """Walks statements with their context."""

    def __init__(self) -> None:
        self.found: list[SharedAccess] = []

    def statement(self, node: Any, context: Context) -> Context:
        """Read a statement; gives the context of what follows it."""
        handler = _STATEMENTS.get(type(node))
        if handler is not None:
            return handler(self, node, context) or context
        self.expression(node, context)
        return context

    def sequence(self, node: Any, context: Context) -> None:
        for child in node.seq:
            context = self.statement(child, context)

    def loop(self, node: Any, context: Context) -> None:
        kind = str(tirx.ForKind(node.kind).name).lower()
        if node.thread_binding is not None:
            kind = str(node.thread_binding.thread_tag)
        self._inside(LoopVar(node.loop_var, node.min, node.extent, kind), node.body, context)

    def _inside(self, loop: LoopVar, body: Any, context: Context) -> None:
        if not context.threads:
            context = replace(context, threads=_threads(loop, body))
        self.statement(body, replace(context, loops=(*context.loops, loop)))

    def attribute(self, node: Any, context: Context) -> None:
        if isinstance(node.node, IterVar) and str(node.attr_key) == "thread_extent":
            loop = LoopVar(node.node.var, 0, node.value, str(node.node.thread_tag))
            self._inside(loop, node.body, context)
        else:
            self.statement(node.body, context)

    def realize(self, node: Any, context: Context) -> None:
        inside = self._under(context, node.predicate)
        block = node.block
        pairs = zip((it.var for it in block.iter_vars), node.iter_values, strict=True)
        inside = replace(
            inside,
            lets=(*inside.lets, *pairs),
            block=str(block.name_hint) or inside.block,
            marks=inside.marks | dict(block.annotations.items()),
        )
        if block.init is not None:
            self.statement(block.init, inside)
        self.statement(block.body, inside)

    def branch(self, node: Any, context: Context) -> None:
        self.expression(node.condition, context)
        self.statement(node.then_case, self._under(context, node.condition))
        if node.else_case is not None:
            self.statement(node.else_case, self._under(context, tirx.Not(node.condition)))

    def let(self, node: Any, context: Context) -> Context:
        self.expression(node.value, context)
        return replace(context, lets=(*context.lets, (node.var, node.value)))

    def store(self, node: Any, context: Context) -> None:
        self.expression(node.value, context)
        for index in node.indices:
            self.expression(index, context)
        self._note(node.buffer, "store", node.indices, None, context, _copied(node))

    def evaluate(self, node: Any, context: Context) -> None:
        self.expression(node.value, context)

    def expression(self, node: Any, context: Context) -> None:
        """Read the loads and instructions of an expression, conditional ones under theirs."""
        handled: list[Any] = []

        def call(node: Any) -> Any:
            name = getattr(node.op, "name", "")
            op = POINTER_OPS.get(name)
            if op is not None:
                pointer = pointer_of(node, op)
                if pointer is not None:
                    size, source = op.bytes(node.args), source_of(node, op)
                    copied = None if source is None else CopySource(*source, _is_sized(node))
                    self._note(pointer[0], op.kind, pointer[1], size, context, copied)
            elif name == CHOICE:
                self._choice(node.args, context)
                return tvm_ffi.WalkResult.SKIP
            elif name == ops.ADDRESS_OF:
                handled.append(node.args[0])
            return None

        def load(node: Any) -> None:
            if not any(node.same_as(one) for one in handled):
                self._note(node.source, "load", node.indices, None, context)

        rules = [(tvm.ir.Call, call), (tvm.ir.TensorLoad, load)]
        tvm_ffi.structural_walk(node, rules, order="pre")

    def _choice(self, args: Sequence[Any], context: Context) -> None:
        condition, left, right = args
        self.expression(condition, context)
        self.expression(left, self._under(context, condition))
        self.expression(right, self._under(context, tirx.Not(condition)))

    @staticmethod
    def _under(context: Context, condition: Any) -> Context:
        if constant(condition) == 1:
            return context
        return replace(context, conditions=(*context.conditions, condition))

    def _note(
        self,
        buffer: Any,
        kind: str,
        indices: Sequence[Any],
        size: int | None,
        context: Context,
        source: CopySource | None = None,
    ) -> None:
        if str(buffer.scope()).startswith("shared"):
            self.found.append(SharedAccess(buffer, kind, tuple(indices), size, context, source))


def _copied(store: Any) -> CopySource | None:
    """What a store takes from global memory as it is, maybe under a condition."""
    value, fills = store.value, False
    while (chosen := _chosen(value)) is not None:
        value, fills = chosen, True
    if not isinstance(value, tvm.ir.TensorLoad) or value.source.dtype != store.buffer.dtype:
        return None
    if str(value.source.scope()) not in ("", "global"):
        return None
    return CopySource(value.source, tuple(value.indices), fills)


def _chosen(value: Any) -> Any | None:
    """What a choice gives where its condition holds."""
    if isinstance(value, tirx.Select):
        return value.true_value
    is_choice = isinstance(value, tvm.ir.Call) and getattr(value.op, "name", "") == CHOICE
    return value.args[1] if is_choice else None


def _is_sized(call: Any) -> bool:
    """Whether a ``cp.async`` says how many bytes to read, the rest being zeros."""
    return str(call.op.name).startswith(ops.PTX_PREFIX) and len(call.args) > 3


def _body(reader: _SharedAccessReader, node: Any, context: Context) -> None:
    reader.statement(node.body, context)


_STATEMENTS: dict[type, Callable[[_SharedAccessReader, Any, Context], Context | None]] = {
    tirx.SeqStmt: _SharedAccessReader.sequence,
    tirx.For: _SharedAccessReader.loop,
    tirx.AttrStmt: _SharedAccessReader.attribute,
    s_tir.SBlockRealize: _SharedAccessReader.realize,
    tirx.IfThenElse: _SharedAccessReader.branch,
    tirx.Bind: _SharedAccessReader.let,
    tirx.BufferStore: _SharedAccessReader.store,
    tirx.Evaluate: _SharedAccessReader.evaluate,
    tirx.While: _body,
}


def _threads(first: LoopVar, body: Any) -> dict[str, int]:
    """Extents of a kernel's thread axes, from its outermost loop or attribute."""
    found = {first.kind: constant(first.extent) or 1}

    def loop(node: Any) -> None:
        if node.thread_binding is not None:
            found[str(node.thread_binding.thread_tag)] = constant(node.extent) or 1

    def attribute(node: Any) -> None:
        if isinstance(node.node, IterVar) and str(node.attr_key) == "thread_extent":
            found[str(node.node.thread_tag)] = constant(node.value) or 1

    tvm_ffi.structural_walk(body, [(tirx.For, loop), (tirx.AttrStmt, attribute)])
    return {tag: extent for tag, extent in found.items() if tag in _THREADS}


def read_shared_accesses(func: Any) -> list[SharedAccess]:
    """List the accesses of shared memory that a function makes, in the order of the program.

    Parameters
    ----------
    func : PrimFunc
        Opaque TensorIR blocks or flat statements; iterators of blocks count as let variables.

    Examples
    --------
    >>> for access in read_shared_accesses(kernel):    # doctest: +SKIP
    ...     print(access)
    store of A_shared[threadIdx_x // 32, threadIdx_x % 32] in block A_shared
    load of A_shared[threadIdx_x % 32, threadIdx_x // 32] in block B
    """
    reader = _SharedAccessReader()
    reader.statement(func.body, Context())
    return reader.found


def loops_in_use(access: SharedAccess) -> Iterator[LoopVar]:
    """Iterate over the loops that indices, conditions or lets mention."""
    parts = [*access.indices, *access.context.conditions]
    used = [var for part in parts for var in tirx.analysis.undefined_vars(part)]
    for var, value in reversed(access.context.lets):
        if any(var.same_as(other) for other in used):
            used.extend(tirx.analysis.undefined_vars(value))
    for loop in access.context.loops:
        if any(loop.var.same_as(var) for var in used):
            yield loop


def access_bytes(access: SharedAccess) -> int:
    """Bytes of an element."""
    return element_bytes(access.buffer)
