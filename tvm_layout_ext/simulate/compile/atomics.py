"""Atomic read-modify-writes, performed in the order of the threads' numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..memory.access import AccessInstruction
from ..model.code import VARYING, Code

Update = Callable[[Any, Any], Any]


#: CUDA function -> new value from the old one and the operand.
NAMES: dict[str, Update] = {
    "atomicAdd": np.add,
    "atomicSub": np.subtract,
    "atomicMin": np.minimum,
    "atomicMax": np.maximum,
    "atomicAnd": np.bitwise_and,
    "atomicOr": np.bitwise_or,
    "atomicXor": np.bitwise_xor,
    "atomicExch": lambda old, new: np.broadcast_to(new, old.shape),
    "atomicInc": lambda old, limit: np.where(old >= limit, 0, old + 1).astype(old.dtype),
    "atomicDec": lambda old, limit: np.where((old == 0) | (old > limit), limit, old - 1),
}


def atomic(access: AccessInstruction, update: Update, operands: list[Code]) -> Code:
    """Compile an atomic; its value is what was in memory before."""
    pairs = [code.pair for code in operands]

    def run(s: Any, m: Any) -> tuple[Any, Any]:
        batch = s.batch
        address = access.locate(s, m)
        if address is None:
            return access.place.dtype.type(0), None
        access.tally(s, address)
        chosen = batch.threads(address.mask)
        values = []
        for pair in pairs:
            value, poison = pair(s, m)
            if poison is not None:
                access.report_stored_poison(batch, poison, address.mask)
            values.append(np.broadcast_to(value, (batch.size,))[chosen])
        old, codes = _perform(access, batch, address.flat[chosen], chosen, values, update)
        whole = np.zeros(batch.size, access.place.dtype)
        whole[chosen] = old
        if codes is None:
            return whole, None
        spread = np.zeros(batch.size, np.int64)
        spread[chosen] = codes
        return whole, spread

    return Code(run, VARYING, True)


def _perform(
    access: AccessInstruction,
    batch: Any,
    elements: Any,
    lanes: Any,
    values: list[Any],
    update: Update,
) -> tuple[Any, Any]:
    memory = access.memory(batch)
    view = memory.view(access.place.dtype)
    before = None if memory.poison is None else memory.poison[access.cells(memory, elements)]
    old = np.empty(len(elements), access.place.dtype)
    for turn in _turns(elements):
        at = elements[turn]
        old[turn] = view[at]
        view[at] = update(old[turn], *[value[turn] for value in values])
    result = view[elements]
    access.write(batch, memory, elements, lanes, result, before)
    return old, before


def _turns(elements: Any) -> list[Any]:
    """Positions in groups without a repeated element: first the first of each, and so on."""
    order = np.argsort(elements, kind="stable")
    ordered = elements[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    rank = np.arange(len(ordered)) - np.repeat(starts, np.diff(np.r_[starts, len(ordered)]))
    by_rank = np.argsort(rank, kind="stable")
    edges = np.flatnonzero(np.r_[True, np.diff(rank[by_rank]) != 0])
    return [order[part] for part in np.split(by_rank, edges[1:])]
