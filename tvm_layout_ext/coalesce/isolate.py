"""Give a block a program of its own, in which TensorIR takes its iterations for independent.

TVM's ``bind`` and ``vectorize`` take no block that reads a buffer which it writes,
``reindex_cache_write`` none whose buffer another block writes, too, and ``reindex_cache_read`` none
that reads a buffer at several places. So the block is mapped in a program in which every place has
a buffer of its own, and what comes of it gets the buffers back.

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
from ..ir.queries import are_equal, blocks_in, loads_in
from ..ir.rebuild import block_with, sequence
from ..ir.walk import top_statements
from .independence import updated_in_place
from .request import NAME

#: A buffer, the indices of one place or None for all of it, and the buffer lent for it.
_Loan = tuple[Any, Sequence[Any] | None, Any]


@dataclass(frozen=True)
class Isolated:
    """A program in which a block has buffers of its own."""

    sch: Any  #: A schedule of it; it has no part in the trace of the program's own
    block: Any  #: The block in this schedule
    func: str  #: The function that the block is in
    #: Each buffer that was lent, and the one that it stands for.
    owners: tuple[tuple[Any, Any], ...] = ()
    #: The nests around the block's own, which the program does not have.
    before: tuple[Any, ...] = ()
    after: tuple[Any, ...] = ()

    @property
    def names(self) -> dict[str, str]:
        """What the user calls each buffer."""
        return {str(fresh.name): str(owner.name) for fresh, owner in self.owners}

    def restore(self, sch: Any, block: Any) -> tuple[Any, Any]:
        """Put buffers and nests back; return a new schedule of this program and its block."""
        name = str(sch.get(block).name_hint)
        functions = {
            gv: self._whole(func) if gv.name_hint == self.func else func
            for gv, func in sch.mod.functions.items()
        }
        return _schedule_of(tvm.IRModule(functions, attrs=sch.mod.attrs), self.func, name)

    def _whole(self, func: Any) -> Any:
        func = returned(func, self.owners)
        return _with_nests(func, [*self.before, *top_statements(func), *self.after])


def has_other_writers(sch: Any, nest: Nest) -> bool:
    """Whether another block writes what a block writes, or later what it reads."""
    held = holder_of(sch.mod, nest.block)
    if held is None:
        return False
    at = _position(held[1], nest.block)
    later = [] if at is None else top_statements(held[1])[at + 1 :]
    overwritten = any(_writers_in(stmt, a.buffer) for a in nest.accesses for stmt in later)
    return overwritten or bool(_shared(held[1], nest))


def is_entangled(sch: Any, nest: Nest) -> bool:
    """Whether caches of a block need a program of its own.

    So they do beside other writers of its buffers, and where it reads a buffer at several places.
    """
    return has_other_writers(sch, nest) or bool(_places(nest))


def isolate(sch: Any, nest: Nest) -> Isolated:
    """Map a block in a program of its own.

    ::

        for i, j in T.grid(96, 96):           for i, j in T.grid(96, 96):
            B[i, j] += A[i, j] + A[j, i]          B_out[i, j] = B[i, j] + A[i, j] + A_1[j, i]

    The schedule is left as it is; the block's iterations are independent.

    Raises ScheduleError if other blocks have its name, by which the program's lowering finds it.
    """
    place = _function_of(sch, nest.block)
    if place is None:
        raise ScheduleError(
            f"{NAME} maps block {nest.block.name_hint} when the program is lowered, by its name, "
            "which other blocks have, too; give it a name of its own."
        )
    name, func = place
    at, nests = _position(func, nest.block), top_statements(func)
    before, after = (nests[:at], nests[at + 1 :]) if at is not None else ([], [])
    taken = {str(var.name) for var in func.params} | {b.name_hint for b in blocks_in(func.body)}
    updated = updated_in_place(nest)
    written = [*updated, *_shared(func, nest)] if at is not None else updated
    loans = [(a.buffer, a.own_indices, _declared(a.buffer, taken, a)) for a in _places(nest)]
    func, owners = borrowed(func, nest.block, updated, written, loans)
    if at is not None:
        func = _with_nests(func, [top_statements(func)[at]])
    functions = {gv: func if gv.name_hint == name else f for gv, f in sch.mod.functions.items()}
    lent = _schedule_of(
        tvm.IRModule(functions, attrs=sch.mod.attrs), name, str(nest.block.name_hint)
    )
    return Isolated(*lent, name, owners, tuple(before), tuple(after))


def borrowed(
    func: Any,
    block: Any,
    read: Sequence[Any],
    written: Sequence[Any],
    loans: Sequence[_Loan] = (),
) -> tuple[Any, tuple[tuple[Any, Any], ...]]:
    """Let a block of a function read and write buffers of its own in the place of some.

    Returns the function, and each new buffer with the one that it stands for.
    """
    sources: list[_Loan] = [(buffer, None, _declared(buffer)) for buffer in read]
    targets: list[_Loan] = [(buffer, None, _declared(buffer)) for buffer in written]
    own = _borrowing(block, [*loans, *sources], targets)
    root = func.body.block
    swap = (s_tir.SBlock, lambda node: own if node.same_as(block) else node)
    inner = tvm_ffi.structural_map(root.body, [swap], order="post")
    owners = tuple((fresh, owner) for owner, _, fresh in (*sources, *targets, *loans))
    made = [fresh for fresh, _ in owners]
    root = block_with(root, body=inner, alloc_buffers=[*root.alloc_buffers, *made])
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


def writers(func: Any, buffer: Any) -> list[Any]:
    """List the blocks of a function that store to a buffer and hold no other block."""
    return _writers_in(func.body, buffer)


def _schedule_of(mod: tvm.IRModule, func: str, block: str) -> tuple[Any, Any]:
    sch = s_tir.Schedule(mod, debug_mask="none")
    sch.work_on(func)
    return sch, sch.get_sblock(block, func)


def _function_of(sch: Any, block: Any) -> tuple[str, Any] | None:
    """Find the function that holds a block, if no other block of it has its name."""
    held = holder_of(sch.mod, block)
    if held is None:
        return None
    alike = [own for own in blocks_in(held[1].body) if own.name_hint == block.name_hint]
    return held if len(alike) == 1 else None


def _shared(func: Any, nest: Nest) -> list[Any]:
    """Buffers that a block stores to beside others."""
    stored = [access.buffer for access in nest.accesses if access.kind == "store"]
    return [
        buffer
        for buffer in stored
        if len(writers(func, buffer)) > 1
        and not any(buffer.same_as(own) for own in updated_in_place(nest))
    ]


def _places(nest: Nest) -> list[Any]:
    """Regular loads of a buffer at other places than its first load, each place once.

    Where a buffer is read at irregular places, too, these keep it.
    """
    if any(loop.is_reduction for loop in nest.loops):
        return []
    written = [access.buffer for access in nest.accesses if access.kind != "load"]
    found: list[Any] = []
    raw = loads_in(nest.block.body)
    loads = [
        a
        for a in nest.global_loads()
        # What a let statement stands for is no index of the body.
        if any(_is_of(load, a.buffer, a.own_indices) for load in raw)
    ]
    for name in dict.fromkeys(access.name for access in loads):
        own: list[Any] = []
        for access in (one for one in loads if one.name == name):
            if not any(are_equal(access.own_indices, other.own_indices) for other in own):
                own.append(access)
        regular = [access for access in own if access.is_affine()]
        if not any(own[0].buffer.same_as(buffer) for buffer in written):
            found += regular if len(regular) < len(own) else regular[1:]
    return found


def _is_of(load: Any, buffer: Any, indices: Sequence[Any]) -> bool:
    return bool(load.source.same_as(buffer)) and are_equal(load.indices, indices)


def _with_nests(func: Any, nests: Sequence[Any]) -> Any:
    root = block_with(func.body.block, body=sequence(nests))
    return func.with_body(s_tir.SBlockRealize([], func.body.predicate, root))


def _position(func: Any, block: Any) -> int | None:
    """Find which nest of a function is loops around a block alone."""
    for at, stmt in enumerate(top_statements(func)):
        while isinstance(stmt, tirx.For):
            stmt = stmt.body
        if isinstance(stmt, s_tir.SBlockRealize) and stmt.block.same_as(block):
            return at
    return None


def _writers_in(stmt: Any, buffer: Any) -> list[Any]:
    found: list[Any] = []

    def look(block: Any) -> None:
        held: list[Any] = []
        tvm_ffi.structural_walk(block.body, [(s_tir.SBlock, held.append)])
        if not held and any(region.source.same_as(buffer) for region in block.writes):
            found.append(block)

    tvm_ffi.structural_walk(stmt, [(s_tir.SBlock, look)])
    return found


def _declared(buffer: Any, taken: set[str] | None = None, access: Any = None) -> Any:
    """Declare a buffer as another one is: by its name, or by one that is not taken yet."""
    name = str(buffer.name)
    if taken is not None:
        taken.add(name)
        name = next(n for i in range(1, len(taken) + 2) if (n := f"{name}_{i}") not in taken)
        taken.add(name)
    return tirx.decl_buffer(
        list(buffer.shape),
        buffer.dtype,
        name,
        strides=list(buffer.ty.strides) or None,
        elem_offset=buffer.ty.elem_offset,
        # What the function promises of its arguments is not promised of this buffer.
        data_alignment=int(buffer.ty.data_alignment) if access is None else access.alignment,
        offset_factor=int(buffer.ty.offset_factor),
        scope=str(buffer.scope()),
        layout=None,
    )


def _borrowing(block: Any, sources: Sequence[_Loan], targets: Sequence[_Loan]) -> Any:
    """Let a block read some buffers in the place of others, and write some in the place of others.

    A reduction reads what it writes, so it reads what it is lent for that.
    """
    lent = [owner for owner, _, _ in sources]
    reading = [*sources, *(one for one in targets if not any(one[0].same_as(b) for b in lent))]

    def load(node: Any) -> Any:
        return tirx.BufferLoad(_find(reading, node.source, node.indices), node.indices)

    def store(node: Any) -> Any:
        return tirx.BufferStore(_find(targets, node.buffer), node.value, node.indices)

    rules = [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store)]
    body = tvm_ffi.structural_map(block.body, rules, order="post")
    init = block.init
    if init is not None:
        init = tvm_ffi.structural_map(init, rules, order="post")
    writes = [tirx.BufferRegion(_find(targets, r.source), r.region) for r in block.writes]
    return block_with(
        block, body=body, init=init, reads=_reads(block, body, reading), writes=writes
    )


def _reads(block: Any, body: Any, reading: Sequence[_Loan]) -> list[Any]:
    """List what a block reads now; of a buffer that was read at several places, one place each."""
    parted = [owner for owner, indices, _ in reading if indices is not None]
    found: list[Any] = []
    for region in block.reads:
        source = _find(reading, region.source)
        if any(source.same_as(other.source) for other in found):
            # A function may list the regions of a buffer one by one.
            continue
        own = [load for load in loads_in(body) if load.source.same_as(source)]
        is_parted = any(region.source.same_as(buffer) for buffer in parted)
        if is_parted and own and all(are_equal(load.indices, own[0].indices) for load in own):
            found.append(_point(source, own[0].indices))
        else:
            found.append(tirx.BufferRegion(source, region.region))
    return found + [_point(fresh, at) for _, at, fresh in reading if at is not None]


def _point(buffer: Any, indices: Sequence[Any]) -> Any:
    return tirx.BufferRegion(buffer, [tvm.ir.Range.from_min_extent(i, 1) for i in indices])


def _find(loans: Sequence[_Loan], buffer: Any, indices: Sequence[Any] | None = None) -> Any:
    """What is lent for a buffer, or for a place in it."""
    for owner, place, fresh in loans:
        if not owner.same_as(buffer):
            continue
        if place is None or (indices is not None and are_equal(place, indices)):
            return fresh
    return buffer
