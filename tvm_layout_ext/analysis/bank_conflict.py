"""Bank conflicts of a function's shared-memory accesses, counted without running it.

A request (:mod:`.bank_requests`) is counted by the rules that were measured on an H200
(:mod:`.banks`). ``ldmatrix`` and ``stmatrix`` move a matrix of 8 rows of 16
bytes at a time, whose addresses 8 neighbouring lanes give. ``cp.async`` goes by rules of its own
(:mod:`.copies`), which depend on the global addresses, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..gpu.banks import request_wavefronts
from ..gpu.copies import copy_wavefronts, distinct_requests, fewest_wavefronts
from ..gpu.hardware import BANK_BYTES, MAX_ACCESS_BYTES, NUM_BANKS, WARP_SIZE
from ..ir.pointers import strides_of
from ..layout.placement import Placement, Strided
from .accesses import AccessSite, read_shared_accesses
from .bank_requests import Requests, read_requests

#: What a lane copies by one ``cp.async`` (PTX ISA, "cp.async").
COPY_BYTES = (4, 8, 16)


@dataclass(frozen=True)
class Conflict:
    """What an access costs."""

    buffer: str
    kind: str
    block: str
    vector_bytes: int  #: Bytes that a lane moves in one instruction
    requests: int  #: Instructions of warps that were counted
    wavefronts: int  #: Of these requests: needed, and needed if nothing conflicted
    least: int
    is_exact: bool  #: All requests were counted; else a sample of them
    #: Byte offset of each lane in the worst request, -1 for an idle lane.
    addresses: tuple[int, ...]

    @property
    def degree(self) -> float:
        """Wavefronts over the least possible: 1 is free of conflicts."""
        return self.wavefronts / self.least if self.least else 1.0

    @property
    def banks(self) -> tuple[int, ...]:
        """Bank at which each lane's part of the worst request begins; -1 for an idle lane."""
        return tuple(a // BANK_BYTES % NUM_BANKS if a >= 0 else -1 for a in self.addresses)

    def __str__(self) -> str:
        counted = "" if self.is_exact else " (sampled)"
        found = self.wavefronts / max(1, self.requests)
        return (
            f"{self.kind} of {self.buffer}: {self.vector_bytes} bytes a lane, {found:.3g} "
            f"wavefront{'s' if found != 1 else ''} a request "
            f"(least {self.least / max(1, self.requests):.3g}){counted}"
        )


def bank_conflicts(func: Any) -> list[Conflict]:
    """Count every shared-memory access of a function as its buffers lie now.

    ``func`` has opaque blocks, or is a final device function. Conflicts are in the order of the
    program; accesses whose indices hold loads are left out.
    """
    found: list[Conflict] = []
    for access in read_shared_accesses(func):
        placement = placement_of(access.buffer)
        requests = read_requests(access) if placement is not None else None
        if placement is not None and requests is not None:
            found.append(count(requests, placement))
    return found


def placement_of(buffer: Any) -> Strided | None:
    """Strides of a buffer, or None where they are symbolic."""
    try:
        return Strided(tuple(int(stride) for stride in strides_of(buffer)))
    except (TypeError, ValueError):
        return None


def count(requests: Requests, placement: Placement) -> Conflict:
    """Count requests as if the buffer lay by a placement."""
    access = requests.access
    size = access.size
    offsets = placement.offsets(requests.indices) * size
    width = access.bytes or size
    if access.bytes is None and _is_vector(offsets, requests.active, size):
        width, offsets = size * offsets.shape[2], offsets[:, :, :1]
    # One instruction for each element of a torn vector, and for each 16 bytes of a long one.
    steps = range(0, width, MAX_ACCESS_BYTES)
    places = [(k, step) for k in range(offsets.shape[2]) for step in steps]
    rows = np.concatenate([offsets[:, :, k] + step for k, step in places])
    active = np.concatenate([requests.active] * len(places))
    live = active.any(axis=1)
    rows, active = rows[live], active[live]
    width = min(width, MAX_ACCESS_BYTES)
    waves = least = np.zeros(0)
    shown = np.full(WARP_SIZE, -1)
    if len(rows):
        if access.kind == "cp.async" and requests.sources is not None and width in COPY_BYTES:
            read = np.concatenate([requests.sources[:, :, k] + step for k, step in places])[live]
            waves, least = _copies(read, rows, active, width, access)
        else:
            is_plain_read = access.kind == "load"
            waves, least = request_wavefronts(rows, active, width, joins=is_plain_read)
        worst = int(np.argmax(waves - least))
        shown = np.where(active[worst], rows[worst], -1)
    return Conflict(
        str(access.buffer.name),
        access.kind,
        access.context.block,
        width,
        len(waves),
        int(np.sum(waves)),
        int(np.sum(least)),
        requests.is_exact,
        tuple(map(int, shown)),
    )


def _copies(
    sources: np.ndarray, rows: np.ndarray, active: np.ndarray, width: int, access: AccessSite
) -> tuple[np.ndarray, np.ndarray]:
    """Wavefronts of asynchronous copies, and what the lines that they read need at least."""
    fills = access.source is not None and access.source.fills
    read, written, index, back = distinct_requests(sources, rows, active)
    cached = width < MAX_ACCESS_BYTES
    waves = copy_wavefronts(read, written, active[index], width, through_cache=cached, fills=fills)
    least = fewest_wavefronts(read, active[index], width, fills=fills)
    return waves[back], np.minimum(least, waves)[back]


def _is_vector(offsets: np.ndarray, active: np.ndarray, size: int) -> bool:
    """Whether the elements of every active lane are an aligned group of neighbours."""
    count = offsets.shape[2]
    if count == 1:
        return True
    if count & (count - 1):
        return False
    groups = offsets.reshape(-1, count) if active.all() else offsets[active]
    follow = (np.diff(groups, axis=1) == size).all()
    return bool(follow and (groups[:, 0] % min(count * size, MAX_ACCESS_BYTES) == 0).all())
