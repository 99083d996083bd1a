"""Share out a move whose rows lie askew, so that both sides take whole vectors."""

from __future__ import annotations

from typing import Any

from ...errors import ScheduleError
from ...ir.annotations import SHIFTED
from ..mapping import Mapping
from ..shifted.legal import check_parameters, order_of
from ..shifted.move import read_move, vector_of, why_not
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

    Raises ScheduleError if it is a move in a form that goes by no shifted vectors.
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
    order = order_of(nest, subject.free, move)
    if nest.is_guarded:
        raise ScheduleError(f"it runs only where {nest.predicate} holds")
    reason = why_not(move, vector)
    if reason:
        raise ScheduleError(reason)
    check_parameters(subject.sch, subject.block, (move.source, move.target))
    plain = flat_map(subject, Mapping(tuple(order), len(order), vector, ()))

    def apply(sch: Any, block: Any) -> str:
        text = plain.apply(sch, block)
        sch.annotate(block, SHIFTED, vector)
        return f"{text}, shifted into place"

    return [Strategy("shifted", apply)]
