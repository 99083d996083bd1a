"""Where a scheduled kernel touches memory: each access with the loops and annotations around it.

Reads a module as the schedule left it, before any lowering, so that a candidate's features cost
milliseconds. Works for any schedule, not only for those of ``schedules/``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from tvm import s_tir, tirx

from ...analysis.nest import element_bytes
from ...gpu.hardware import WARP_SIZE
from ...ir.annotations import TENSOR_CORE
from ...ir.evaluate import evaluate
from ...ir.queries import loads_in

__all__ = ["AccessSite", "SiteLoop", "read_sites"]

_REDUCE = 2
_ZERO = np.int64(0)


@dataclass(frozen=True, eq=False)
class SiteLoop:
    """A loop around an access.

    Attributes
    ----------
    var : Var
    extent : int
        Iterations; 1 where the size is symbolic.
    kind : str
        ``serial``, ``unrolled``, ``vectorized``, ``tensor`` (inside of one instruction), or a
        thread such as ``threadIdx.x``.
    """

    var: Any
    extent: int
    kind: str

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
        """Whether a thread issues the access anew in each iteration."""
        return self.kind in ("serial", "unrolled", "parallel")


@dataclass(frozen=True, eq=False)
class AccessSite:
    """One load or store of a block, or one product.

    Attributes
    ----------
    buffer : Buffer
    kind : str
        ``load`` or ``store``.
    indices : tuple of PrimExpr
        In the variables of the blocks around it.
    bindings : tuple of (Var, PrimExpr)
        What these variables are, outermost first.
    loops : tuple of Loop
        Outermost first.
    block : str
        Name of the block.
    notes : mapping
        Annotations of the blocks around it.
    order : int
        Number of the block in the program.
    reduces : bool
        A block that adds up; its result is touched in every iteration, but stays in a register.
    """

    buffer: Any
    kind: str
    indices: tuple[Any, ...]
    bindings: tuple[tuple[Any, Any], ...]
    loops: tuple[SiteLoop, ...]
    block: str
    notes: Mapping[str, Any]
    order: int
    reduces: bool = False

    @property
    def scope(self) -> str:
        """Memory of the buffer: ``global``, ``shared``, ``local``, ``warp``, ..."""
        return str(self.buffer.scope())

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return element_bytes(self.buffer)

    @property
    def vector(self) -> int:
        """Elements that a thread moves at once."""
        return prod(loop.extent for loop in self.loops if loop.kind == "vectorized")

    @property
    def instruction(self) -> str:
        """Name of the tensor intrinsic that the block becomes, or nothing."""
        names = self.notes.get(TENSOR_CORE, ())
        return str(names[0]) if len(names) else ""

    @property
    def repeats(self) -> int:
        """How often a thread issues it."""
        return prod(loop.extent for loop in self.loops if loop.repeats)

    @property
    def is_result(self) -> bool:
        """Whether it is the result of a reduction, which is in memory only after the last step."""
        return self.reduces and self.kind == "store"

    def at(self, values: Mapping[int, Any]) -> list[Any]:
        """Indices for arrays of loop values, by position of the loop; others are 0.

        None for an index that is itself loaded.
        """
        env: dict[Any, Any] = {
            loop.var: values.get(number, _ZERO) for number, loop in enumerate(self.loops)
        }
        for var, value in self.bindings:
            env[var] = evaluate(value, env)
        return [_known(index, env) for index in self.indices]


def _known(index: Any, env: dict[Any, Any]) -> Any:
    try:
        return evaluate(index, env)
    except KeyError:
        return None


@dataclass(frozen=True)
class _Around:
    loops: tuple[SiteLoop, ...] = ()
    bindings: tuple[tuple[Any, Any], ...] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)
    block: str = ""
    in_tensor: bool = False
    reduces: bool = False


class _SiteReader:
    def __init__(self) -> None:
        self.blocks = 0

    def visit(self, stmt: Any, around: _Around) -> Iterator[AccessSite]:
        if isinstance(stmt, tirx.For):
            yield from self.visit(stmt.body, self._inside(stmt, around))
        elif isinstance(stmt, s_tir.SBlockRealize):
            yield from self._block(stmt, around)
        elif isinstance(stmt, tirx.SeqStmt):
            for part in stmt.seq:
                yield from self.visit(part, around)
        elif isinstance(stmt, tirx.IfThenElse):
            yield from self.visit(stmt.then_case, around)
            if stmt.else_case is not None:
                yield from self.visit(stmt.else_case, around)
        elif isinstance(stmt, tirx.BufferStore):
            yield from self._store(stmt, around)
        elif hasattr(stmt, "body"):
            yield from self.visit(stmt.body, around)

    @staticmethod
    def _inside(loop: Any, around: _Around) -> _Around:
        thread = loop.thread_binding
        kind = loop.kind.name.lower() if hasattr(loop.kind, "name") else _KINDS[int(loop.kind)]
        if around.in_tensor:
            kind = "tensor"
        elif thread is not None:
            kind = str(thread.thread_tag)
        extent = int(loop.extent) if isinstance(loop.extent, int | tirx.IntImm) else 1
        return replace(around, loops=(*around.loops, SiteLoop(loop.loop_var, extent, kind)))

    def _block(self, realize: Any, around: _Around) -> Iterator[AccessSite]:
        block = realize.block
        self.blocks += 1
        pairs = zip(block.iter_vars, realize.iter_values, strict=True)
        notes = {str(key): block.annotations[key] for key in block.annotations}
        inside = replace(
            around,
            bindings=(*around.bindings, *((axis.var, value) for axis, value in pairs)),
            notes={**around.notes, **notes},
            block=str(block.name_hint),
            in_tensor=around.in_tensor or TENSOR_CORE in notes,
            reduces=any(int(axis.iter_type) == _REDUCE for axis in block.iter_vars),
        )
        yield from self.visit(block.body, inside)

    def _store(self, stmt: Any, around: _Around) -> Iterator[AccessSite]:
        for load in loads_in(stmt.value):
            if not (around.reduces and load.source.same_as(stmt.buffer)):
                yield self._site(load.source, "load", load.indices, around)
        yield self._site(stmt.buffer, "store", stmt.indices, around)

    def _site(self, buffer: Any, kind: str, indices: Sequence[Any], around: _Around) -> AccessSite:
        return AccessSite(
            buffer, kind, tuple(indices), around.bindings, around.loops, around.block,
            around.notes, self.blocks, around.reduces,
        )  # fmt: skip


_KINDS = ("serial", "parallel", "vectorized", "unrolled", "thread")


def read_sites(function: Any) -> list[list[AccessSite]]:
    """Every access of a scheduled function, by kernel, in the order of the program.

    A kernel is what lies under one outermost loop, if a loop of it is bound to blocks or threads.
    """
    kernels: dict[Any, list[AccessSite]] = {}
    for site in _SiteReader().visit(function.body, _Around()):
        outermost = id(site.loops[0]) if site.loops else None
        kernels.setdefault(outermost, []).append(site)
    return [
        sites
        for sites in kernels.values()
        if any(loop.is_grid or loop.is_thread for site in sites for loop in site.loops)
    ]


def warps_of(threads: int) -> int:
    """Warps of a block."""
    return -(-threads // WARP_SIZE)
