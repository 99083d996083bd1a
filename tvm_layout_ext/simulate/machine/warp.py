"""Warp-wide operations: shuffles, votes, and the mask of active threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...gpu import hardware
from ...ir import ops
from ..findings import SHUFFLED
from ..model.code import VARYING, Code, lift
from ..model.values import either

_WARP = hardware.WARP_SIZE


def _from_index(lane: Any, operand: Any, width: Any) -> tuple[Any, Any]:
    start = lane // width * width
    return start + operand % width, np.ones_like(lane, bool)


def _from_below(lane: Any, operand: Any, width: Any) -> tuple[Any, Any]:
    source = lane - operand
    return source, source >= lane // width * width


def _from_above(lane: Any, operand: Any, width: Any) -> tuple[Any, Any]:
    source = lane + operand
    return source, source < lane // width * width + width


def _from_xor(lane: Any, operand: Any, width: Any) -> tuple[Any, Any]:
    source = lane ^ operand
    return source, source < lane // width * width + width


#: Op name -> (lane, operand, width) -> source lane, and whether it is in range.
SHUFFLES: dict[str, Callable[[Any, Any, Any], tuple[Any, Any]]] = {
    ops.CUDA___SHFL_SYNC: _from_index,
    ops.CUDA___SHFL_UP_SYNC: _from_below,
    ops.CUDA___SHFL_DOWN_SYNC: _from_above,
    ops.CUDA___SHFL_XOR_SYNC: _from_xor,
    ops.TVM_WARP_SHUFFLE: _from_index,
    ops.TVM_WARP_SHUFFLE_UP: _from_below,
    ops.TVM_WARP_SHUFFLE_DOWN: _from_above,
    ops.TVM_WARP_SHUFFLE_XOR: _from_xor,
}


def shuffle(name: str, value: Code, operand: Code, width: Code) -> Code:
    """Compile a shuffle.

    A thread whose source is out of range keeps its own value. A source thread that does not take
    part gives poison: the hardware's result is undefined.
    """
    pick = SHUFFLES[name]

    def run(s: Any, m: Any) -> Any:
        batch = s.batch
        x, p = value.pair(s, m)
        by, q = operand.pair(s, m)
        lane = batch.lane % _WARP
        source, inside = pick(lane, np.asarray(by).astype(np.int64), int(width.value(s, m)))
        inside = inside & (source >= 0) & (source < _WARP)
        source = np.where(inside, batch.lane - lane + source, batch.lane)
        taken = np.broadcast_to(x, (batch.size,))[source]
        codes = None if p is None else np.broadcast_to(p, (batch.size,))[source]
        mask = batch.mask(m)
        if mask is not None and not mask[source].all():
            codes = either(codes, np.where(mask[source], 0, SHUFFLED))
        return taken, either(codes, q)

    return Code(run, VARYING, True)


def active_mask() -> Code:
    """Compile ``__activemask()``."""
    return Code(lambda s, m: _ballot(s.batch, m, np.True_), VARYING)


def _ballot(batch: Any, mask: Any, predicate: Any) -> Any:
    mask = batch.mask(mask)
    votes = np.broadcast_to(predicate, (batch.size,)) & batch.active(mask)
    weights = np.left_shift(np.uint64(1), np.arange(_WARP, dtype=np.uint64))
    ballots = (votes.reshape(-1, _WARP) * weights).sum(axis=1).astype(np.uint32)
    return np.repeat(ballots, _WARP)


def ballot(predicate: Code) -> Code:
    """Compile ``__ballot_sync``; poison of any thread of a warp is poison of the warp's vote."""
    pair = predicate.pair

    def run(s: Any, m: Any) -> Any:
        x, codes = pair(s, m)
        if codes is not None:
            rows = np.broadcast_to(codes, (s.batch.size,)).reshape(-1, _WARP)
            codes = np.repeat(rows.max(axis=1), _WARP)
        return _ballot(s.batch, m, x), codes

    return Code(run, VARYING, True)


def vote_any(predicate: Code) -> Code:
    """Compile ``__any_sync``."""
    return lift(lambda votes: (votes != 0).astype(np.int32), ballot(predicate))
