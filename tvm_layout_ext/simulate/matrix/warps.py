"""Whether whole warps execute a warp-wide instruction, which ``.sync.aligned`` demands."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...gpu import hardware
from ..findings import TORN
from ..report import Hazard, Site

_WARP = hardware.WARP_SIZE


def torn_lanes(batch: Any, m: Any, site: Site, what: str) -> Any:
    """Threads of a mask whose warp is not all there, after a report; None if there are none."""
    mask = batch.mask(m)
    if mask is None:
        return None
    warps = mask.reshape(-1, _WARP)
    torn = warps.any(axis=1) & ~warps.all(axis=1)
    if not torn.any():
        return None
    start = int(np.argmax(torn)) * _WARP
    lane = start + int(np.argmax(mask[start : start + _WARP]))
    message = (
        f"{int(mask[start : start + _WARP].sum())} of the {_WARP} threads of a warp, among them "
        f"{batch.thread_name(lane)}, execute {what} at line {site.line}; its result is undefined "
        "unless all threads of a warp execute it together."
    )
    hazard = Hazard("divergent", site.buffer, -1, (batch.thread_name(lane),), (site,), message)
    batch.launch.findings.add_at(("divergent", site, what), hazard, int(torn.sum()), batch, lane)
    return mask & np.repeat(torn, _WARP)


def with_torn(codes: Any, torn: Any, rows: int) -> Any:
    """Poison ``[rows, threads]`` with what torn warps hold poisoned."""
    if torn is None:
        return codes
    own = np.where(torn, TORN, 0)
    return np.broadcast_to(own, (rows, len(own))) if codes is None else np.maximum(codes, own)
