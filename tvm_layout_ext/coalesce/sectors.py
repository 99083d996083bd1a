"""How many sectors an access would move in some order of its loops, before anything is scheduled.

A few warps spread over the iterations are enough: their offsets are evaluated, lane by lane. Loads
inside an index are not known: such an access has no count. A condition on indices leaves lanes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ..analysis.nest import Access, Loop
from ..gpu.hardware import SECTOR_BYTES, WARP_SIZE
from ..gpu.requests import request_sectors
from ..ir.evaluate import evaluate, known_value, placeholder_extent

_SAMPLES = 64
#: The same where conditions may hold in a few of the warps only.
_MANY_SAMPLES = 4096
_SEED = 0


@dataclass(frozen=True)
class Estimate:
    """Sectors of a warp's request, one element a lane, on average."""

    sectors: float
    least: float  #: Sectors that the same bytes would fill

    @property
    def waste(self) -> float:
        """How many times the least possible sectors are moved."""
        return self.sectors / self.least


def estimate(access: Access, order: Sequence[Loop]) -> Estimate | None:
    """Count an access if neighbouring lanes took neighbouring iterations.

    ``order`` has the loops as they would be nested. None where the offset has something that cannot
    be counted.
    """
    sizes = [placeholder_extent(loop.extent) for loop in order]
    most = _MANY_SAMPLES if access.conditions else _SAMPLES
    warps = max(1, prod(sizes) // WARP_SIZE)
    if warps > most:  # Up to 267 million of two symbolic sizes and 8192
        chosen = np.random.default_rng(_SEED).integers(0, warps, most)
        chosen[0] = 0
    else:
        chosen = np.arange(warps)
    flat = chosen[:, None] * WARP_SIZE + np.arange(WARP_SIZE)
    active = flat < prod(sizes)
    env: dict[Any, np.ndarray] = {}
    for loop, size in zip(reversed(order), reversed(sizes), strict=True):
        env[loop.var] = flat % size
        flat = flat // size
    for condition in access.conditions:
        holds = known_value(condition, env)
        if holds is not None:
            active = active & holds.astype(bool)
    try:
        first = np.broadcast_to(evaluate(access.offset, env), active.shape)
    except KeyError:
        return None
    asking = active.any(axis=1)
    if not asking.any():
        return None
    # A base pointer that is less aligned than a sector lies as badly as it may.
    start = first[asking] * access.bytes + access.alignment % SECTOR_BYTES
    # Offsets of which not all conditions are known may begin before the buffer.
    start = start - min(0, int(start.min()) // SECTOR_BYTES * SECTOR_BYTES)
    sectors, least = request_sectors(start, active[asking], access.bytes)
    return Estimate(float(sectors.mean()), float(least.mean()))
