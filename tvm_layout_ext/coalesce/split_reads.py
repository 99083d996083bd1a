"""Give reads of one buffer in several orders a buffer each, so that each can be staged alone.

TVM's ``cache_read`` and ``reindex_cache_read`` put one buffer in the place of all reads that a
block makes of another, and none of its traced primitives parts a block's expression. So the reads
are parted in the program itself, before it is scheduled: a read in another order goes to a copy of
the whole buffer, which is inlined again into whatever then stands between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx import IterVar

from ..analysis.nest import Access, Nest
from ..ir.queries import are_equal, loads_in
from ..ir.rebuild import block_with
from .privatize import place_of


@dataclass(frozen=True)
class SplitReads:
    """A program in which a block reads every buffer at one place.

    Attributes
    ----------
    sch : tvm.s_tir.Schedule
        A schedule of it; it has no part in the trace of the program's own.
    block : SBlockRV
        The block in this schedule.
    copies : tuple of SBlockRV
        The blocks that copy whole buffers.
    originals : dict of str to str
        Name of the buffer that each copy is of.
    """

    sch: Any
    block: Any
    copies: tuple[Any, ...]
    originals: dict[str, str]

    def inline(self, sch: Any) -> None:
        """Let the readers of the copies read the buffers themselves, in a schedule of this one."""
        for copy in self.copies:
            sch.compute_inline(copy)


@dataclass(frozen=True)
class _ReadsAtPlace:
    """Loads of a buffer at one place."""

    access: Access
    indices: tuple[Any, ...]

    def is_of(self, buffer: Any, indices: Sequence[Any]) -> bool:
        return bool(self.access.buffer.same_as(buffer)) and are_equal(self.indices, indices)


def split_aliasing_reads(sch: Any, nest: Nest, apart: Sequence[Access]) -> SplitReads | None:
    """Part the reads that a block makes of a buffer at several places.

    ::

        for i, j in T.grid(N, N):            for i, j in T.grid(N, N):
            B[i, j] = A[i, j] + A[j, i]          A_1[i, j] = A[i, j]
                                             for i, j in T.grid(N, N):
                                                 B[i, j] = A[i, j] + A_1[j, i]

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Left as it is.
    nest : Nest
        The block.
    apart : sequence of Access
        Loads that are to be staged; one of the others keeps the buffer, if there is one.

    Returns
    -------
    SplitReads or None
        None where every buffer is read at one place, or where the block is inside another, or
        shares its name with one.
    """
    moved = _moved(nest, apart)
    place = place_of(sch, nest.block)
    if not moved or place is None:
        return None
    name, func, at = place
    taken = _names(func)
    copies = [_copy_of(read.access, taken) for read in moved]
    root = func.body.block
    parts = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    fresh = _with_copies(nest.block, moved, copies)
    swap = (s_tir.SBlock, lambda own: fresh if own.same_as(nest.block) else own)
    parts[at] = tvm_ffi.structural_map(parts[at], [swap], order="post")
    nests = [_copying(read.access.buffer, copy) for read, copy in zip(moved, copies, strict=True)]
    parts[at:at] = nests
    body = block_with(root, body=tirx.SeqStmt(parts), alloc_buffers=[*root.alloc_buffers, *copies])
    func = func.with_body(s_tir.SBlockRealize([], func.body.predicate, body))
    functions = {gv: func if gv.name_hint == name else f for gv, f in sch.mod.functions.items()}
    parted = s_tir.Schedule(tvm.IRModule(functions, attrs=sch.mod.attrs), debug_mask="none")
    parted.work_on(name)
    return SplitReads(
        parted,
        parted.get_sblock(nest.block.name_hint, name),
        tuple(parted.get_sblock(copy.name, name) for copy in copies),
        {str(c.name): r.access.name for c, r in zip(copies, moved, strict=True)},
    )


def _moved(nest: Nest, apart: Sequence[Access]) -> list[_ReadsAtPlace]:
    """Reads that get a buffer of their own: all of a buffer but one, and all that are regular."""
    reads = _reads(nest)
    found: list[_ReadsAtPlace] = []
    for name in dict.fromkeys(read.access.name for read in reads):
        own = [read for read in reads if read.access.name == name]
        kept = [read for read in own if not read.access.is_affine()]
        kept = kept or [r for r in own if not any(r.access is a for a in apart)][:1] or own[:1]
        found += [read for read in own if not any(read is other for other in kept)]
    return found


def _reads(nest: Nest) -> list[_ReadsAtPlace]:
    """List the places at which a block reads global buffers, each once."""
    loads = loads_in(nest.block.body)
    accesses = [access for access in nest.accesses if access.kind != "store"]
    found: list[_ReadsAtPlace] = []
    for load, access in zip(loads, accesses, strict=True):
        known = any(read.is_of(load.source, load.indices) for read in found)
        if access.kind == "load" and access.scope == "global" and not known:
            found.append(_ReadsAtPlace(access, tuple(load.indices)))
    return found


def _blocks(func: Any) -> list[str]:
    names: list[str] = []
    look = (s_tir.SBlock, lambda block: names.append(block.name_hint))
    tvm_ffi.structural_walk(func.body, [look])
    return names


def _names(func: Any) -> set[str]:
    """Names of the blocks and buffers of a function."""
    names = set(_blocks(func)) | {str(param.name) for param in func.params}

    def look(block: Any) -> None:
        names.update(str(buffer.name) for buffer in block.alloc_buffers)

    tvm_ffi.structural_walk(func.body, [(s_tir.SBlock, look)])
    return names


def _copy_of(access: Access, taken: set[str]) -> Any:
    """Declare a copy that lies in memory as the buffer does, so that it is counted alike."""
    buffer = access.buffer
    name = next(n for i in range(1, len(taken) + 2) if (n := f"{buffer.name}_{i}") not in taken)
    taken.add(name)
    return tirx.decl_buffer(
        list(buffer.shape),
        buffer.dtype,
        name,
        strides=list(buffer.ty.strides) or None,
        elem_offset=buffer.ty.elem_offset,
        data_alignment=access.alignment,
        offset_factor=int(buffer.ty.offset_factor),
        layout=None,
    )


def _with_copies(block: Any, moved: Sequence[_ReadsAtPlace], copies: Sequence[Any]) -> Any:
    """Let a block read copies; each read of a regular place is a region of one point."""

    def swap(load: Any) -> Any:
        for read, copy in zip(moved, copies, strict=True):
            if read.is_of(load.source, load.indices):
                return tirx.BufferLoad(copy, load.indices)
        return load

    body = tvm_ffi.structural_map(block.body, [(tvm.ir.TensorLoad, swap)], order="post")
    loads = loads_in(body)
    changed = [read.access.buffer for read in moved]
    reads: list[Any] = []
    for region in block.reads:
        if any(region.source.same_as(other.source) for other in reads):
            # A function may list the regions of a buffer one by one.
            continue
        own = [load for load in loads if load.source.same_as(region.source)]
        parted = any(region.source.same_as(buffer) for buffer in changed)
        alike = parted and all(are_equal(load.indices, own[0].indices) for load in own)
        reads.append(_point(region.source, own[0].indices) if alike else region)
    reads += [_point(copy, read.indices) for read, copy in zip(moved, copies, strict=True)]
    return block_with(block, body=body, reads=reads)


def _point(buffer: Any, indices: Sequence[Any]) -> Any:
    return tirx.BufferRegion(buffer, [tvm.ir.Range.from_min_extent(i, 1) for i in indices])


def _copying(buffer: Any, copy: Any) -> Any:
    """Build the nest that copies a whole buffer."""
    axes, loops = [], []
    for dim, extent in enumerate(buffer.shape):
        kind = extent.ty if isinstance(extent, tvm.ir.Expr) else "int32"
        loops.append(tirx.Var(f"ax{dim}", kind))
        axes.append(IterVar((0, extent), tirx.Var(f"v{dim}", kind), IterVar.DataPar))
    at = [axis.var for axis in axes]
    block = s_tir.SBlock(
        axes,
        [_point(buffer, at)],
        [_point(copy, at)],
        str(copy.name),
        tirx.BufferStore(copy, tirx.BufferLoad(buffer, at), at),
    )
    nest = s_tir.SBlockRealize(loops, True, block)
    for loop, extent in zip(reversed(loops), reversed(list(buffer.shape)), strict=True):
        nest = tirx.For(loop, 0, extent, tirx.ForKind.SERIAL, nest)
    return nest
