"""Nests as rules read them: branches and scalars inside of blocks, not around them."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from .queries import are_equal, is_load_of, is_number, nodes_in, substitute, uses
from .rebuild import block_with, loop_with, realize_with, sequence
from .walk import statements_of


def as_one_block(nest: Any) -> Any:
    """Join the blocks of a nest that stand under branches; the nest itself where it cannot be.

    ::

        for i in range(n):                    for i in range(n):
            if at[i] >= 0:                        with sblock("k"):
                with sblock("k"):                     vi = axis.spatial(n, i)
                    vi = axis.spatial(n, i)           if at[vi] >= 0:
                    K[at[vi]] = A[vi]                     K[at[vi]] = A[vi]
                with sblock("v"):                         V[at[vi]] = B[vi]
                    vi = axis.spatial(n, i)
                    V[at[vi]] = B[vi]
    """
    loops, body = list[Any](), nest
    while isinstance(body, tirx.For):
        loops.append(body)
        body = body.body
    blocks = nodes_in(body, s_tir.SBlockRealize)
    if isinstance(body, s_tir.SBlockRealize) or not blocks:
        return nest
    first = blocks[0]
    if not all(_is_plain(one) and _goes_as(one, first) for one in blocks):
        return nest
    inside = _inside(body, first)
    if inside is None:
        return nest
    asked = [_element(load) for load in nodes_in(inside, tvm.ir.TensorLoad)]
    reads, writes = (
        [_in_terms_of(first, one, region) for one in blocks for region in getattr(one.block, side)]
        for side in ("reads", "writes")
    )
    sides = {"reads": _each_once(reads + asked), "writes": _each_once(writes)}
    made = realize_with(first, block_with(first.block, body=inside, **sides))
    for loop in reversed(loops):
        made = loop_with(loop, body=made)
    return made


def _is_plain(realize: Any) -> bool:
    """Whether a block is spatial, always done, and has no more than iterators and a body."""
    block = realize.block
    made = nodes_in(block.body, tirx.AllocBuffer)
    has_more = [*made, *block.alloc_buffers, *block.match_buffers, *block.annotations]
    spatial = all(one.iter_type == tirx.IterVar.DataPar for one in block.iter_vars)
    return spatial and block.init is None and not has_more and is_number(realize.predicate, 1)


def _goes_as(realize: Any, first: Any) -> bool:
    """Whether a block's iterators are the loops that another's are, in the same order."""
    mine, others = realize.iter_values, first.iter_values
    return len(mine) == len(others) and all(
        isinstance(one, tirx.Var) and one.same_as(other)
        for one, other in zip(mine, others, strict=True)
    )


def _in_terms_of(first: Any, realize: Any, node: Any) -> Any:
    """What stands in a block, by the iterators of another one."""
    pairs = zip(realize.block.iter_vars, first.block.iter_vars, strict=True)
    return substitute(node, {one.var: other.var for one, other in pairs})


def _inside(stmt: Any, first: Any) -> Any | None:
    """A statement around blocks as the body of one; None where more is around them."""
    if isinstance(stmt, s_tir.SBlockRealize):
        return _in_terms_of(first, stmt, stmt.block.body)
    if isinstance(stmt, tirx.SeqStmt):
        parts = [_inside(one, first) for one in stmt.seq]
        return None if any(one is None for one in parts) else sequence(parts)
    if not isinstance(stmt, tirx.IfThenElse):
        return None
    of_loops = dict(zip(first.iter_values, (one.var for one in first.block.iter_vars), strict=True))
    then = _inside(stmt.then_case, first)
    other = None if stmt.else_case is None else _inside(stmt.else_case, first)
    if then is None or (other is None) != (stmt.else_case is None):
        return None
    return tirx.IfThenElse(substitute(stmt.condition, of_loops), then, other)


def _element(load: Any) -> Any:
    ranges = [tvm.ir.Range.from_min_extent(at, 1) for at in load.indices]
    return tirx.BufferRegion(load.source, ranges)


def _each_once(regions: list[Any]) -> list[Any]:
    found: list[Any] = []
    for one in regions:
        alike = [other for other in found if other.source.same_as(one.source)]
        if not any(are_equal(one.region, other.region) for other in alike):
            found.append(one)
    return found


def with_lets(block: Any) -> Any:
    """Make names of a block's scalars that are stored once, ahead of all who read them."""
    parts = list(statements_of(block.body))
    for made in [part for part in parts if isinstance(part, tirx.AllocBuffer)]:
        scalar = made.buffer
        used = [one for one in parts if uses(one, scalar) and not one.same_as(made)]
        stores = [
            one for one in nodes_in(block.body, tirx.BufferStore) if one.buffer.same_as(scalar)
        ]
        if len(stores) != 1 or not used or not used[0].same_as(stores[0]):
            continue
        bind = tirx.Bind(tirx.Var(str(scalar.name), str(scalar.dtype)), stores[0].value)

        def load(node: Any, scalar: Any = scalar, value: Any = bind.var) -> Any:
            return value if is_load_of(node, scalar) else node

        named = [
            bind
            if one.same_as(used[0])
            else tvm_ffi.structural_map(one, [(tvm.ir.TensorLoad, load)], order="post")
            for one in parts
            if not one.same_as(made)
        ]
        if not any(uses(one, scalar) for one in named):
            parts = named
    return block_with(block, body=sequence(parts))
