"""Lend a block buffers of its own, so that TensorIR takes its iterations for independent.

TVM's ``bind`` and ``vectorize`` take no block that reads a buffer which it writes, and
``reindex_cache_write`` none whose buffer another block writes, too; no traced primitive changes
that. So the block is mapped in a program in which it reads one buffer and writes another, and what
comes of it gets the buffer back.

With buffers of its own the block depends on no other, and TVM would move what it stores behind all
of them. So its nest is the only one of that program, and goes back to its place among the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ..analysis.nest import Nest
from ..errors import ScheduleError
from ..ir.block_bindings import holder_of
from ..ir.queries import blocks_in
from ..ir.rebuild import block_with, sequence
from .own_elements import updated_in_place, why_dependent
from .request import NAME


@dataclass(frozen=True)
class PrivateBuffers:
    """A program in which a block has buffers of its own.

    Attributes
    ----------
    sch : tvm.s_tir.Schedule
        A schedule of it; it has no part in the trace of the program's own.
    block : SBlockRV
        The block in this schedule.
    func : str
        The function that the block is in.
    owners : tuple of (Buffer, Buffer)
        Each buffer that was lent, and the one that it stands for. Both have one name.
    before, after : tuple of Stmt
        The nests around the block's own, which the program does not have.
    """

    sch: Any
    block: Any
    func: str
    owners: tuple[tuple[Any, Any], ...] = ()
    before: tuple[Any, ...] = ()
    after: tuple[Any, ...] = ()

    def give_back(self, sch: Any, block: Any) -> tuple[Any, Any]:
        """Put buffers and nests back; return a new schedule of this program and its block."""
        name = str(sch.get(block).name_hint)
        functions = {
            gv: self._whole(func) if gv.name_hint == self.func else func
            for gv, func in sch.mod.functions.items()
        }
        return schedule_of(tvm.IRModule(functions, attrs=sch.mod.attrs), self.func, name)

    def _whole(self, func: Any) -> Any:
        func = returned(func, self.owners)
        return _with_nests(func, [*self.before, *_nests(func), *self.after])


def privatize_inplace(sch: Any, nest: Nest) -> PrivateBuffers | None:
    """Lend buffers to a block that updates some in place, if it does.

    ::

        for i in range(N):                   for i in range(N):
            A[i] = A[i] * 2 + B[i]               A_out[i] = A_in[i] * 2 + B[i]

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Left as it is.
    nest : Nest
        The block.

    Raises
    ------
    ScheduleError
        If its iterations depend on each other.
    """
    updated = updated_in_place(nest)
    for buffer in updated:
        reason = why_dependent(nest, buffer)
        if reason is not None:
            raise ScheduleError(
                f"{NAME} finds no legal mapping of block {nest.block.name_hint}: {reason}."
            )
    return _lend(sch, nest, updated, updated) if updated else None


def privatize_writers(sch: Any, nest: Nest) -> PrivateBuffers | None:
    """Lend buffers to a block where another writes what it writes, or later what it reads.

    ::

        for i, j in T.grid(N, 16):           for i, j in T.grid(N, 16):
            B[i, j] = A[j, i]                    B_out[i, j] = A[j, i]
        for i, j in T.grid(N, 16):           for i, j in T.grid(N, 16):
            B[i, j + 16] = C[j, i]               B[i, j + 16] = C[j, i]

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Left as it is.
    nest : Nest
        The block.
    """
    held = holder_of(sch.mod, nest.block)
    if held is None:
        return None
    func = held[1]
    stored = [access.buffer for access in nest.accesses if access.kind == "store"]
    shared = [buffer for buffer in stored if len(writers(func, buffer)) > 1]
    at = _position(func, nest.block)
    later = [] if at is None else _nests(func)[at + 1 :]
    overwritten = any(_writers_in(stmt, a.buffer) for a in nest.accesses for stmt in later)
    return _lend(sch, nest, [], shared) if shared or overwritten else None


def _lend(sch: Any, nest: Nest, read: Sequence[Any], written: Sequence[Any]) -> PrivateBuffers:
    """Let a block read and write copies of the declarations of some buffers, in no other's sight.

    A block inside a kernel, beside others, keeps them: it is not moved.
    """
    block = nest.block
    place = function_of(sch, block)
    if place is None:
        raise ScheduleError(
            f"{NAME} maps block {block.name_hint} when the program is lowered, by its name, which "
            "other blocks have, too; give it a name of its own."
        )
    name, func = place
    at, nests = _position(func, block), _nests(func)
    before, after = (nests[:at], nests[at + 1 :]) if at is not None else ([], [])
    func, owners = borrowed(func, block, read, written)
    if at is not None:
        func = _with_nests(func, _nests(func)[at : at + 1])
    functions = {gv: func if gv.name_hint == name else f for gv, f in sch.mod.functions.items()}
    lent = schedule_of(tvm.IRModule(functions, attrs=sch.mod.attrs), name, str(block.name_hint))
    return PrivateBuffers(*lent, name, owners, tuple(before), tuple(after))


def borrowed(
    func: Any, block: Any, read: Sequence[Any], written: Sequence[Any]
) -> tuple[Any, tuple[tuple[Any, Any], ...]]:
    """Let a block of a function read and write buffers of its own in the place of some.

    Returns
    -------
    tuple
        The function, and each new buffer with the one that it stands for.
    """
    sources = [(buffer, _declared(buffer)) for buffer in read]
    targets = [(buffer, _declared(buffer)) for buffer in written]
    own = _borrowing(block, sources, targets)
    root = func.body.block
    swap = (s_tir.SBlock, lambda node: own if node.same_as(block) else node)
    inner = tvm_ffi.structural_map(root.body, [swap], order="post")
    owners = tuple((buffer, owner) for owner, buffer in (*sources, *targets))
    fresh = [buffer for buffer, _ in owners]
    root = block_with(root, body=inner, alloc_buffers=[*root.alloc_buffers, *fresh])
    return func.with_body(s_tir.SBlockRealize([], func.body.predicate, root)), owners


def returned(func: Any, owners: Sequence[tuple[Any, Any]]) -> Any:
    """Put the buffers that were lent back into a function."""

    def swap(var: Any) -> Any:
        return next((owner for buffer, owner in owners if var.same_as(buffer)), var)

    root = func.body.block
    lent = [buffer for buffer, _ in owners]
    kept = [b for b in root.alloc_buffers if not any(b.same_as(other) for other in lent)]
    body = s_tir.SBlockRealize([], func.body.predicate, block_with(root, alloc_buffers=kept))
    return func.with_body(tvm_ffi.structural_map(body, [(tirx.Var, swap)], order="post"))


def schedule_of(mod: tvm.IRModule, func: str, block: str) -> tuple[Any, Any]:
    """Schedule one function of a program; return that and a block of it by name."""
    sch = s_tir.Schedule(mod, debug_mask="none")
    sch.work_on(func)
    return sch, sch.get_sblock(block, func)


def function_of(sch: Any, block: Any) -> tuple[str, Any] | None:
    """Find the function that holds a block, if no other block of it has its name."""
    held = holder_of(sch.mod, block)
    if held is None:
        return None
    alike = [own for own in blocks_in(held[1].body) if own.name_hint == block.name_hint]
    return held if len(alike) == 1 else None


def place_of(sch: Any, block: Any) -> tuple[str, Any, int] | None:
    """Find the function that holds a block by its name, and which nest of it is the block's own."""
    held = function_of(sch, block)
    at = _position(held[1], block) if held is not None else None
    return (*held, at) if held is not None and at is not None else None


def _nests(func: Any) -> list[Any]:
    """List the statements of a function's outermost block."""
    body = func.body.block.body
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def _with_nests(func: Any, nests: Sequence[Any]) -> Any:
    root = block_with(func.body.block, body=sequence(nests))
    return func.with_body(s_tir.SBlockRealize([], func.body.predicate, root))


def _position(func: Any, block: Any) -> int | None:
    """Find which nest of a function is loops around a block alone."""
    for at, stmt in enumerate(_nests(func)):
        while isinstance(stmt, tirx.For):
            stmt = stmt.body
        if isinstance(stmt, s_tir.SBlockRealize) and stmt.block.same_as(block):
            return at
    return None


def writers(func: Any, buffer: Any) -> list[Any]:
    """List the blocks of a function that store to a buffer and hold no other block."""
    return _writers_in(func.body, buffer)


def _writers_in(stmt: Any, buffer: Any) -> list[Any]:
    found: list[Any] = []

    def look(block: Any) -> None:
        held: list[Any] = []
        tvm_ffi.structural_walk(block.body, [(s_tir.SBlock, held.append)])
        if not held and any(region.source.same_as(buffer) for region in block.writes):
            found.append(block)

    tvm_ffi.structural_walk(stmt, [(s_tir.SBlock, look)])
    return found


def _declared(buffer: Any) -> Any:
    """Declare a buffer as another one is, with its name: whatever is counted has the same names."""
    return tirx.decl_buffer(
        list(buffer.shape),
        buffer.dtype,
        str(buffer.name),
        strides=list(buffer.ty.strides) or None,
        elem_offset=buffer.ty.elem_offset,
        data_alignment=int(buffer.ty.data_alignment),
        offset_factor=int(buffer.ty.offset_factor),
        scope=str(buffer.scope()),
        layout=None,
    )


def _borrowing(
    block: Any, sources: Sequence[tuple[Any, Any]], targets: Sequence[tuple[Any, Any]]
) -> Any:
    """Let a block read some buffers in the place of others, and write some in the place of others.

    A reduction reads what it writes, so it reads what it is lent for that.
    """
    reading = [*sources, *(pair for pair in targets if not _has(sources, pair[0]))]
    load = (
        tvm.ir.TensorLoad,
        lambda node: tirx.BufferLoad(_find(reading, node.source), node.indices),
    )
    store = (
        tirx.BufferStore,
        lambda node: tirx.BufferStore(_find(targets, node.buffer), node.value, node.indices),
    )
    body = tvm_ffi.structural_map(block.body, [load, store], order="post")
    init = block.init
    if init is not None:
        init = tvm_ffi.structural_map(init, [load, store], order="post")
    return block_with(
        block,
        body=body,
        init=init,
        reads=[tirx.BufferRegion(_find(reading, r.source), r.region) for r in block.reads],
        writes=[tirx.BufferRegion(_find(targets, r.source), r.region) for r in block.writes],
    )


def _has(pairs: Sequence[tuple[Any, Any]], buffer: Any) -> bool:
    return any(owner.same_as(buffer) for owner, _ in pairs)


def _find(pairs: Sequence[tuple[Any, Any]], buffer: Any) -> Any:
    return next((fresh for owner, fresh in pairs if owner.same_as(buffer)), buffer)
