"""Share out a move whose rows lie askew, so that both sides take whole vectors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm_ffi
from tvm import s_tir

from ...analysis.nest import Loop, Nest
from ...errors import ScheduleError
from ...gpu.hardware import WARP_SIZE
from ...ir.annotations import SHIFTED
from ..choose import Strategy
from ..comparison import SAME, sectors_per_iteration
from ..direct import schedule_direct
from ..mapping import Mapping
from ..sectors import Traffic, estimate
from .move import Move, read_move, vector_of, why_not
from .traffic import shifted_traffic


def shifted_way(
    nest: Nest, free: Sequence[Loop], mapping: Mapping, vector_bytes: int, num_threads: int | None
) -> Strategy | None:
    """Offer vectors that are shifted into place, to a move that has none otherwise.

    ::

        for i, j in T.grid(64, 65):             for block in T.thread_binding(...):
            B[i, j] = A[i + 1, j + 1]               for thread in T.thread_binding(128):
                                                        for v in T.vectorized(4):
                                                            with T.sblock("B"):
                                                                # layout_ext.shifted = 4

    Parameters
    ----------
    nest : Nest
        The block, its loops free.
    free : sequence of Loop
        Its loops.
    mapping : Mapping
        What would be done with it otherwise.
    vector_bytes : int
        Bytes of the widest access wanted.
    num_threads : int, optional
        Threads of a block.

    Returns
    -------
    Way or None
        None where the block is no move, or can have whole vectors by itself. A way that is not
        possible refuses, with the reason, when it is tried.
    """
    try:
        move = read_move(nest.block)
    except ScheduleError as error:
        return _refusal(str(error)) if mapping.vector == 1 else None
    if move is None:
        return None
    vector = vector_of(move, vector_bytes)
    if mapping.vector >= vector:
        return None
    order = _order(nest, free, move)
    if order is None:
        return _refusal("its loops are not those of the result")
    if nest.is_guarded:
        return _refusal(f"it runs only where {nest.predicate} holds")
    reason = why_not(move, vector)
    if reason:
        return _refusal(reason)
    counts = shifted_traffic(move, vector)
    loss = _no_gain(nest, order, counts, move)
    if loss:
        return _refusal(loss)
    shares = Mapping(tuple(order), len(order), vector, ())

    def shifted(sch: Any, block: Any) -> tuple[str, list[Any]]:
        _check_parameters(sch, block, move)
        schedule_direct(sch, block, nest, shares, num_threads)
        sch.annotate(block, SHIFTED, vector)
        return f"direct, vectors of {vector} shifted into place", [block]

    return Strategy("shifted", shifted, counted=counts)


def _refusal(reason: str) -> Strategy:
    def shifted(sch: Any, block: Any) -> tuple[str, list[Any]]:
        raise ScheduleError(reason)

    return Strategy("shifted", shifted)


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


def _no_gain(nest: Nest, order: Sequence[Loop], counts: Sequence[Traffic], move: Move) -> str:
    """Say that elements one by one are as good, with the numbers, or nothing.

    Requests are those that are done: a warp that lies in the border loads nothing, so 1x55 elements
    in a border load by 3 requests, not 4. Sectors are of all lanes: where those that are done are
    as many, vectors still save requests.
    """
    for after, before in zip(counts, shifted_traffic(move, 1), strict=True):
        if after.iterations < before.iterations:
            return (
                f"rows of {move.columns} are too short, requests of the {after.kind} would serve "
                f"{after.iterations:.3g} iterations, not {before.iterations:.3g}"
            )
    plain = [estimate(access, order, 1) for access in nest.of_scope("global")]
    whole = [traffic for traffic in plain if traffic is not None]
    now, was = (WARP_SIZE * sectors_per_iteration(t) for t in (counts, whole))
    if now * SAME >= was:
        return (
            f"rows of {move.columns} are too short, {now:.3g} sectors for {WARP_SIZE} iterations "
            f"would not be fewer than {was:.3g}"
        )
    return ""


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
