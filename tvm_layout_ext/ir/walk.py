"""Statements of a program, of any stage, with the loops, names, conditions and blocks around."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tvm import s_tir, tirx
from tvm.tirx import IterVar

from .annotations import TENSOR_CORE
from .queries import is_number, nodes_in

THREADS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
#: Statements that hold others, and no condition.
_HOLDERS = (tirx.SeqStmt, tirx.For, tirx.AttrStmt, s_tir.SBlockRealize)


@dataclass(frozen=True, eq=False)
class LoopVar:
    """A variable that a loop or the launch gives its values."""

    var: Any
    extent: Any
    #: ``serial``, ``vectorized``, ``unrolled``, ``parallel``, a thread such as ``threadIdx.x``, or
    #: ``tensor`` inside of a block that becomes one instruction.
    kind: str
    start: Any = field(default=0, kw_only=True)

    @cached_property
    def size(self) -> int | None:
        """Iterations, or None where they are symbolic."""
        return int(self.extent) if isinstance(self.extent, int | tirx.IntImm) else None

    @cached_property
    def count(self) -> int:
        """Iterations, 1 where they are symbolic."""
        return 1 if self.size is None else self.size

    @property
    def is_thread(self) -> bool:
        """Whether it is bound to a thread of a block."""
        return self.kind.startswith("threadIdx")

    @property
    def is_grid(self) -> bool:
        """Whether it is bound to blocks."""
        return self.kind.startswith("blockIdx")

    @property
    def repeats(self) -> bool:
        """Whether a thread does anew in each iteration what is inside."""
        return self.kind in ("serial", "unrolled", "parallel")


@dataclass(frozen=True, eq=False)
class Context:
    """What lies around a statement."""

    loops: tuple[LoopVar, ...] = ()  #: Outermost first
    #: Variables that stand for expressions, in order; iterators of blocks among them.
    lets: tuple[tuple[Any, Any], ...] = ()
    conditions: tuple[Any, ...] = ()  #: All of which hold
    blocks: tuple[Any, ...] = ()  #: Outermost first
    in_init: bool = False  #: The statement sets a reduction's initial value
    #: Extents of the thread axes below the outermost loop; complete once the walk is at its end.
    threads: dict[str, int] = field(default_factory=dict)

    @cached_property
    def block(self) -> str:
        """Name of the innermost block with a name."""
        names = (str(block.name_hint) for block in reversed(self.blocks))
        return next((name for name in names if name), "")

    @cached_property
    def marks(self) -> dict[str, Any]:
        """Annotations of the blocks; of equal keys the innermost."""
        found: dict[str, Any] = {}
        for block in self.blocks:
            found |= {str(key): value for key, value in block.annotations.items()}
        return found

    def inside(self, loop: LoopVar) -> Context:
        """Context of a loop's body."""
        threads = self.threads if self.loops else {}
        if loop.kind in THREADS:
            threads[loop.kind] = loop.count
        return replace(self, loops=(*self.loops, loop), threads=threads)

    def under(self, condition: Any) -> Context:
        """Context of what is done only where a condition holds."""
        if is_number(condition, 1):
            return self
        return replace(self, conditions=(*self.conditions, condition))

    def knowing(self, var: Any, value: Any) -> Context:
        """Context in which a variable stands for an expression."""
        return replace(self, lets=(*self.lets, (var, value)))


def walk(stmt: Any, context: Context | None = None) -> Iterator[tuple[Any, Context]]:
    """Every statement in the order of the program, those that hold others before these.

    Examples
    --------
    >>> i = tirx.Var("i", "int32")
    >>> b = tirx.decl_buffer((8,), "float32", "B", layout=None)
    >>> store = tirx.BufferStore(b, tirx.const(0.0, "float32"), [i])
    >>> (_, outer), (_, inner) = walk(tirx.IfThenElse(i < 4, store, None))
    >>> outer.conditions, inner.conditions
    ((), (i < 4,))
    """
    context = context or Context()
    yield stmt, context
    if isinstance(stmt, tirx.SeqStmt):
        for part in statements_of(stmt):
            yield from walk(part, context)
            if isinstance(part, tirx.Bind):
                context = context.knowing(part.var, part.value)
    else:
        for part, around in _held(stmt, context):
            yield from walk(part, around)


def _held(stmt: Any, context: Context) -> Iterator[tuple[Any, Context]]:
    """What a statement other than a sequence holds."""
    if isinstance(stmt, tirx.For):
        kind = "tensor" if TENSOR_CORE in context.marks else loop_kind(stmt)
        loop = LoopVar(stmt.loop_var, stmt.extent, kind, start=stmt.min)
        yield stmt.body, context.inside(loop)
    elif isinstance(stmt, tirx.IfThenElse):
        yield stmt.then_case, context.under(stmt.condition)
        if stmt.else_case is not None:
            yield stmt.else_case, context.under(tirx.Not(stmt.condition))
    elif isinstance(stmt, s_tir.SBlockRealize):
        block, inside = stmt.block, context.under(stmt.predicate)
        pairs = zip((it.var for it in block.iter_vars), stmt.iter_values, strict=True)
        inside = replace(inside, lets=(*inside.lets, *pairs), blocks=(*inside.blocks, block))
        if block.init is not None:
            yield block.init, replace(inside, in_init=True)
        yield block.body, inside
    elif isinstance(stmt, tirx.AttrStmt) and is_launch(stmt):
        loop = LoopVar(stmt.node.var, stmt.value, str(stmt.node.thread_tag))
        yield stmt.body, context.inside(loop)
    elif isinstance(stmt, tirx.AttrStmt | tirx.While):
        yield stmt.body, context


def axis_indices(number: Any, extents: Mapping[str, int]) -> dict[str, Any]:
    """Index along each axis, the fastest first, of threads or blocks that are counted through."""
    found = {}
    for tag, extent in extents.items():
        found[tag], number = number % extent, number // extent
    return found


def is_launch(stmt: Any) -> bool:
    """Whether an attribute starts threads or blocks."""
    return isinstance(stmt.node, IterVar) and str(stmt.attr_key) == "thread_extent"


def launches(stmt: Any) -> bool:
    """Whether a statement launches kernels: sorts do by attributes, cumulative sums by loops."""
    if any(is_launch(one) for one in nodes_in(stmt, tirx.AttrStmt)):
        return True
    return any(loop.thread_binding is not None for loop in nodes_in(stmt, tirx.For))


def own_parts(stmt: Any) -> list[Any]:
    """What belongs to a statement itself: its condition, or all of one that holds no others."""
    if isinstance(stmt, tirx.IfThenElse | tirx.While):
        return [stmt.condition]
    return [] if isinstance(stmt, _HOLDERS) else [stmt]


def statements_of(stmt: Any) -> Iterator[Any]:
    """Statements of a sequence, those of sequences in it among them; or the statement itself."""
    if isinstance(stmt, tirx.SeqStmt):
        for part in stmt.seq:
            yield from statements_of(part)
    else:
        yield stmt


def top_statements(func: tirx.PrimFunc) -> list[Any]:
    """List the statements of a function's outermost block."""
    return list(statements_of(func.body.block.body))


def loop_kind(loop: Any) -> str:
    """Kind of a For: ``serial`` and so on, or the thread that it is bound to."""
    if loop.thread_binding is not None:
        return str(loop.thread_binding.thread_tag)
    return str(tirx.ForKind(loop.kind).name).lower()
