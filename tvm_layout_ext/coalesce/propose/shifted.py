"""Share out a move whose rows lie askew, so that both sides take whole vectors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm_ffi
from tvm import s_tir

from ...analysis.nest import Loop, Nest
from ...errors import ScheduleError
from ...ir.annotations import SHIFTED
from ..mapping import Mapping
from ..shifted.move import Move, read_move, vector_of, why_not
from ..strategy import Strategy
from ..subject import Subject
from .flat import flat_map


def shifted(subject: Subject) -> list[Strategy]:
    """Offer vectors that are shifted into place, to a move that has none otherwise.

    ::

        for i, j in T.grid(64, 65):             for block in T.thread_binding(...):
            B[i, j] = A[i + 1, j + 1]               for thread in T.thread_binding(128):
                                                        for v in T.vectorized(4):
                                                            with T.sblock("B"):
                                                                # layout_ext.shifted = 4

    Raises
    ------
    ScheduleError
        If it is a move in a form that goes by no shifted vectors.
    """
    nest = subject.nest
    if subject.kernel is not None or subject.is_reduction:
        return []
    try:
        move = read_move(nest.block)
    except ScheduleError:
        if subject.mapping.vector == 1:
            raise
        return []
    vector = 0 if move is None else vector_of(move, subject.request.vector_bytes)
    if move is None or subject.mapping.vector >= vector:
        return []
    order = _order(nest, subject.free, move)
    if order is None:
        raise ScheduleError("its loops are not those of the result")
    if nest.is_guarded:
        raise ScheduleError(f"it runs only where {nest.predicate} holds")
    reason = why_not(move, vector)
    if reason:
        raise ScheduleError(reason)
    _check_parameters(subject.sch, subject.block, move)
    plain = flat_map(subject, Mapping(tuple(order), len(order), vector, ()))

    def apply(sch: Any, block: Any) -> str:
        text = plain.apply(sch, block)
        sch.annotate(block, SHIFTED, vector)
        return f"{text}, shifted into place"

    return [Strategy("shifted", apply)]


def _order(nest: Nest, free: Sequence[Loop], move: Move) -> list[Loop] | None:
    """Loops of the dims of the result, in their order; None if they are others."""
    store = next(access for access in nest.accesses if access.kind == "store")
    left = list(free)
    order: list[Loop] = []
    for dim, size in enumerate(move.shape):
        stride = prod(move.shape[dim + 1 :])
        for loop in left:
            if loop.size == size and (size == 1 or nest.step(store, loop) == stride):
                order.append(loop)
                left.remove(loop)
                break
        else:
            return None
    return None if left else order


def _check_parameters(sch: Any, block: Any, move: Move) -> None:
    """Refuse buffers that the function allocates: passes fit those to what they see accessed."""
    root = sch.get_sref(block)
    while root.parent is not None:
        root = root.parent
    made: list[Any] = []
    look = (s_tir.SBlock, lambda node: made.extend(node.alloc_buffers))
    tvm_ffi.structural_walk(root.stmt, [look])
    for buffer in (move.source, move.target):
        if any(own.same_as(buffer) for own in made):
            raise ScheduleError(f"{buffer.name} is no parameter of the function")
