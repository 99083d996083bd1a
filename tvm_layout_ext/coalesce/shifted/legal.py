"""Whether the loops and buffers of a move suit shifted vectors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm_ffi
from tvm import s_tir

from ...analysis.nest import Loop, Nest
from ...errors import ScheduleError
from .move import Move


def order_of(nest: Nest, free: Sequence[Loop], move: Move) -> list[Loop]:
    """Loops of the dims of the result, in their order.

    Raises ScheduleError if they are others.
    """
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
    if left or len(order) < len(move.shape):
        raise ScheduleError("its loops are not those of the result")
    return order


def check_parameters(sch: Any, block: Any, buffers: Sequence[Any]) -> None:
    """Refuse buffers that the function allocates: passes fit those to what they see accessed."""
    root = sch.get_sref(block)
    while root.parent is not None:
        root = root.parent
    made: list[Any] = []
    look = (s_tir.SBlock, lambda node: made.extend(node.alloc_buffers))
    tvm_ffi.structural_walk(root.stmt, [look])
    for buffer in buffers:
        if any(own.same_as(buffer) for own in made):
            raise ScheduleError(f"{buffer.name} is no parameter of the function")
