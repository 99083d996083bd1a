"""One m, one n and one k for a product that has several of them, or some of extent 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx import IndexMap

from ..analysis.contraction import Contraction, iterators_of
from ..errors import ScheduleError
from ..ir.conditions import choice_parts, is_zero
from ..ir.evaluate import placeholder_extent

Groups = Sequence[Sequence[int]]


def check_loops(sch: Any, block: Any, what: Contraction, call: str) -> None:
    """Raise ScheduleError if the loops over a product are not those of its iterators any more."""
    loops = [sch.get(loop) for loop in sch.get_loops(block)]
    extents = [placeholder_extent(one.extent) if int(one.kind) == 0 else None for one in loops]
    if extents != list(what.extents):
        raise ScheduleError(
            f"The loops over block {sch.get(block).name_hint} are no longer those of its "
            f"{len(what.extents)} iterators; {call} comes before loops are split, fused, reordered "
            "or bound."
        )


def merge_iterators(sch: Any, block: Any, what: Contraction) -> tuple[Any, ...]:
    """Merge the iterators of a product into batch, m, n and k, if they are not those already.

    Gives copies of the operands, to inline into whatever copies them next::

        # before                                  # after
        for b, s, n, k in T.grid(2, 48, N, K):    for m, k in T.grid(96, K):
            C[b, s, n] += A[b, s, k] * W[k, n]        A_reindex[m, k] = A[m // 48, m % 48, k]
                                                  for m, n, k in T.grid(96, N, K):
                                                      C_reindex[m, n] += A_reindex[m, k] * W...
                                                  for b, s, n in T.grid(2, 48, N):
                                                      C[b, s, n] = C_reindex[b * 48 + s, n]
    """
    if len(what.rows) == len(what.columns) == len(what.depth) == 1:
        return ()
    if 1 in what.sizes:
        raise ScheduleError(
            f"Block {sch.get(block).name_hint} multiplies m, n, k of {what.sizes}, one of them of "
            "several iterators; beside a single row, column or term they cannot be merged."
        )
    batch = [[i] for i in what.batch]
    rows, columns, depth = what.rows, what.columns, what.depth
    copies = []
    for side, own in ((what.a, rows), (what.b, columns)):
        indices = [at.min for at in sch.get(block).reads[side.index].region]
        copy = sch.reindex(block, ("read", side.index))
        if not all(isinstance(at, tirx.Var | tirx.IntImm) for at in indices):
            _inline_padding(sch, copy)
        stored = [*batch, *((own, depth) if side.k_major else (depth, own))]
        merged = _index_map(sch, copy, what, stored, side.dims)
        sch.transform_layout(block, ("read", side.index), merged)
        sch.transform_block_layout(copy, merged)
        copies.append(copy)
    sch.reindex(block, ("write", 0))
    everywhere = [*batch, rows, columns]
    merged = _index_map(sch, block, what, everywhere, what.result)
    sch.transform_layout(block, ("write", 0), merged)
    every = range(len(what.extents))
    sch.transform_block_layout(block, _index_map(sch, block, what, [*everywhere, depth], every))
    return tuple(copies)


def _inline_padding(sch: Any, copy: Any) -> None:
    """Let a copy read zeros around an image where a block of its own would store them."""
    for block in sch.get_producers(copy):
        value = sch.get(block).body.value
        parts = choice_parts(value)
        if parts is not None and is_zero(parts[2]):
            value = parts[1]
        if isinstance(value, tvm.ir.TensorLoad) and len(sch.get_consumers(block)) == 1:
            sch.compute_inline(block)


def merge_result(sch: Any, block: Any, sums: Any) -> None:
    """Let a block that reads sums once have batch, rows and columns, neighbours in memory last."""
    node = sch.get(block)
    groups = read_groups(node, sums)
    if len(groups) < 2:
        raise ScheduleError(
            f"Block {node.name_hint} reads a part of the sums alone; what stores a product takes "
            "each of its sums once."
        )
    *batch, rows, columns = groups
    every = range(len(node.iter_vars))
    if len(rows) == len(columns) == 1 and {*rows, *columns} == {*every[-2:]}:
        return
    extents = [placeholder_extent(one.dom.extent) for one in node.iter_vars]
    stored = [i for at in node.writes[0].region for i in iterators_of(node, at.min)]
    last = [i for i in stored if i in (*rows, *columns)][-1]
    inner = [columns, rows] if last in rows else [rows, columns]
    used = {i for group in (*batch, *inner) for i in group}
    groups = [*([i] for i in every if i not in used), *batch, *inner]
    sch.transform_block_layout(block, _map(sch, block, groups, extents))


def read_groups(block: Any, buffer: Any) -> list[list[int]]:
    """The iterators in each index by which a block reads each element once; else None."""
    if any(one.iter_type != tirx.IterVar.DataPar for one in block.iter_vars):
        return []
    region = next(one for one in block.reads if one.source.same_as(buffer)).region
    groups = [iterators_of(block, one.min) for one in region]
    used = [i for group in groups for i in group]
    wide = {i for i, one in enumerate(block.iter_vars) if placeholder_extent(one.dom.extent) > 1}
    once = len(used) == len({*used}) and wide <= {*used}
    single = all(int(one.extent) == 1 for one in region)
    return groups if once and single else []


def _index_map(
    sch: Any, block: Any, what: Contraction, groups: Groups, dims: Sequence[int]
) -> IndexMap:
    """Merge those iterators of a block that a buffer has, which are its indices in that order."""
    held = sorted(dims)
    places = [[held.index(i) for i in group if i in held] for group in groups]
    return _map(sch, block, places, [what.extents[i] for i in held])


def _map(sch: Any, block: Any, groups: Groups, extents: Sequence[int]) -> IndexMap:
    """Map indices to one for each group of them, of which the last counts fastest."""
    listed = [group for group in groups if group]
    dtype = str(sch.get(block).iter_vars[0].var.ty.dtype)
    return IndexMap.from_func(_merged(listed, extents), ndim=len(extents), index_dtype=dtype)


def _merged(groups: Groups, extents: Sequence[int]) -> Callable[..., list[Any]]:
    def merged(*indices: Any) -> list[Any]:
        found = []
        for group in groups:
            value: Any = 0
            for i in group:
                value = value * extents[i] + indices[i]
            found.append(value)
        return found

    return merged
