"""Loads that want another order than the store, through shared memory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from ...analysis.nest import Nest, read_nest
from ...errors import ScheduleError
from ...ir.block_body import one_element
from ...ir.queries import loads_in
from ..canonical import canonicalize_loops, is_linearized
from ..guarded_loads import guarded_outside
from ..isolate import is_entangled
from ..mapping import Mapping, store_mapping
from ..request import Request
from ..staging.apply import UnboundedTileError, schedule_staged
from ..strategy import Strategy
from ..subject import Subject

#: Threads of a block to try where TVM does not find the bound of a tile with those asked for.
_FEWER_THREADS = (512, 256, 128, 64, 32)


def staged(subject: Subject) -> list[Strategy]:
    """Propose tiles for the loads that disagree with the store; for all where that is asked for.

    Raises
    ------
    ScheduleError
        If there are such loads, and they are not to be staged.
    """
    request = subject.request
    stores = any(access.kind == "store" for access in subject.nest.accesses)
    if subject.kernel is not None or subject.is_reduction or not stores or request.stage == "none":
        return []
    if is_entangled(subject.sch, subject.block, subject.nest):
        subject = subject.apart
    linear = is_linearized(subject.sch, subject.block, subject.nest)
    if linear is not None:
        raise ScheduleError(f"loop {linear} stands behind several iterators of the block")
    trial = subject.sch.copy()
    _canonicalize(trial, subject.block, subject.nest)
    nest = read_nest(trial, subject.block)
    mapping = store_mapping(nest, nest.loops, request.vector_bytes)
    if request.stage == "shared":
        mapping = replace(mapping, disagreeing=_affine_loads(nest))
    if not mapping.disagreeing:
        return []
    _check(nest, mapping)
    apply = partial(_apply, subject.nest, nest, mapping, request)
    return [Strategy("staged", apply, subject.isolated)]


def _apply(raw: Nest, nest: Nest, mapping: Mapping, request: Request, sch: Any, block: Any) -> str:
    """Stage with the most threads, up to those asked for, with which TVM bounds the tile."""
    _canonicalize(sch, block, raw)
    most, width = request.num_threads, request.vector_bytes
    if any(loop.size is None for loop in nest.loops):
        for threads in (most, *(n for n in _FEWER_THREADS if most is None or n < most)):
            try:
                schedule_staged(sch.copy(), block, nest, mapping, threads, width)
            except UnboundedTileError:
                continue
            most = threads
            break
    return schedule_staged(sch, block, nest, mapping, most, width)


def _canonicalize(sch: Any, block: Any, nest: Nest) -> None:
    if nest.is_guarded or any(loop.size is None for loop in nest.loops):
        return
    try:
        canonicalize_loops(sch.copy(), block)
    except RuntimeError:
        return
    canonicalize_loops(sch, block)


def _affine_loads(nest: Nest) -> tuple[Any, ...]:
    loads = [access for access in nest.of_scope("global") if access.kind == "load"]
    return tuple(access for access in loads if access.is_affine())


def _check(nest: Nest, mapping: Mapping) -> None:
    """Refuse bodies whose loads no tile may stand for."""
    name = nest.block.name_hint
    if not one_element(nest.block.body):
        raise ScheduleError(
            f"Block {name} {_stores(nest)}, and what goes through registers is one element of each "
            "iteration"
        )
    outside = guarded_outside(nest)
    if outside is not None:
        raise ScheduleError(
            f"Block {name} reads {outside} only where a condition holds, and a tile would be read "
            "outside of its shape without it"
        )
    written = [access.buffer for access in nest.accesses if access.kind != "load"]
    for access in mapping.disagreeing:
        if any(map(loads_in, access.own_conditions)):
            raise ScheduleError(
                f"Block {name} reads {access.name} only where what it loads says so, and a tile "
                "would be read whole"
            )
        if any(access.buffer.same_as(buffer) for buffer in written):
            # TVM 0.27's reindex_cache_read takes the process down on such a block.
            raise ScheduleError(f"Block {name} writes {access.name} where it reads it")


def _stores(nest: Nest) -> str:
    """Say how many stores a block has that cannot all be one, or when it has one."""
    stores = [access for access in nest.accesses if access.kind == "store"]
    if len(stores) > 1:
        return f"has {len(stores)} stores"
    return f"stores {stores[0].name} only where a condition holds"
