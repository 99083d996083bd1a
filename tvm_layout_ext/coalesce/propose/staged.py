"""Loads that want another order than the store, through shared memory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ...analysis.nest import read_nest
from ...errors import ScheduleError
from ..canonical import canonicalize, is_linearized
from ..isolate import is_entangled
from ..mapping import store_mapping
from ..staging.apply import stage_block
from ..staging.legal import affine_loads, check_staged
from ..strategy import Strategy
from ..subject import Subject


def staged(subject: Subject) -> list[Strategy]:
    """Propose tiles for the loads that disagree with the store; for all where that is asked for.

    Raises ScheduleError if there are such loads, and they are not to be staged.
    """
    request = subject.request
    stores = any(access.kind == "store" for access in subject.nest.accesses)
    if subject.kernel is not None or subject.is_reduction or not stores or request.stage == "none":
        return []
    if is_entangled(subject.sch, subject.nest):
        subject = subject.apart
    linear = is_linearized(subject.sch, subject.block, subject.nest)
    if linear is not None:
        raise ScheduleError(f"loop {linear} stands behind several iterators of the block")
    trial = subject.sch.copy()
    canonicalize(trial, subject.block, subject.nest)
    nest = read_nest(trial, subject.block)
    mapping = store_mapping(nest, nest.loops, request.vector_bytes)
    if request.stage == "shared":
        mapping = replace(mapping, disagreeing=affine_loads(nest))
    if not mapping.disagreeing:
        return []
    check_staged(nest, mapping.disagreeing)
    apply = partial(stage_block, subject.nest, nest, mapping, request)
    return [Strategy("staged", apply, subject.isolated)]
