"""The modelled cost by which the simulated runner ranks candidates; it is no time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

__all__ = ["FORMULA", "Counters", "Terms", "modelled_terms"]

#: Of an H200, for which the model is written.
MULTIPROCESSORS = 132
#: 4.8 TB/s at 1.83 GHz are 2640 bytes a cycle for the whole GPU, or 82 sectors of 32 bytes.
SECTORS_PER_CYCLE = 82
#: One multiprocessor alone takes 64 bytes a cycle.
CYCLES_PER_OWN_SECTOR = 0.5
#: A multiprocessor finishes 128 single-precision multiply-adds a cycle.
FLOPS_PER_CYCLE = 256
#: Of a __syncthreads: latency that the other resident blocks hide only in part.
CYCLES_PER_BARRIER = 10
#: Share of the smaller terms that does not hide behind the largest.
EXPOSED = 0.2

FORMULA = (
    "cost = max(g, l, f) + 0.2 * (the other two) + 10 * barriers, in modelled cycles of the "
    "busiest multiprocessor, which runs ceil(blocks / 132) blocks: over these, l = shared "
    "wavefronts + global requests, f = flops / 256, g = max(global sectors / 2, sectors of all "
    "blocks / 82). A model, not a time."
)


@dataclass(frozen=True)
class Counters:
    """What the simulated GPU counted, for the whole grid.

    Attributes
    ----------
    blocks : int
        Thread blocks of the grid.
    sampled : int
        Those that were run; the counts are theirs, scaled up to the grid.
    requests, sectors, ideal_sectors : int
        Of global memory: warp-wide accesses, 32-byte sectors moved, and the least possible.
    wavefronts, bank_conflicts : int
        Of shared memory; their difference is the least possible.
    barriers : int
        Summed over blocks.
    """

    blocks: int
    sampled: int
    requests: int
    sectors: int
    ideal_sectors: int
    wavefronts: int
    bank_conflicts: int
    barriers: int

    @property
    def sectors_per_request(self) -> float:
        """Sectors of an average global access."""
        return self.sectors / self.requests if self.requests else 0.0

    def to_json(self) -> dict[str, Any]:
        """The counters by name, with sectors a request."""
        return asdict(self) | {"sectors_per_request": round(self.sectors_per_request, 3)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Counters:
        """Read :meth:`to_json`'s form; other entries are left."""
        return cls(**{f.name: int(data[f.name]) for f in fields(cls)})


@dataclass(frozen=True)
class Terms:
    """What the modelled cost is made of, in modelled cycles of the busiest multiprocessor.

    Attributes
    ----------
    memory : float
        Global sectors through the memory's bandwidth.
    pipe : float
        Shared wavefronts and global requests, of which the load-store unit takes one a cycle.
    arithmetic : float
        Single-precision multiply-adds.
    barriers : float
        Waiting at ``__syncthreads``.
    """

    memory: float
    pipe: float
    arithmetic: float
    barriers: float

    @property
    def cost(self) -> float:
        """The longest of the first three, a fifth of the other two, and the barriers."""
        overlapping = (self.memory, self.pipe, self.arithmetic)
        longest = max(overlapping)
        return longest + EXPOSED * (sum(overlapping) - longest) + self.barriers


def modelled_terms(counters: Counters, flops: int) -> Terms:
    """Model what a kernel costs. Modelled cycles, not a time.

    ``cost = max(g, l, f) + 0.2 * (the other two) + 10 * barriers`` of the multiprocessor that runs
    the most blocks, ``ceil(blocks / 132)``. Over these, ``l = shared wavefronts + global requests``
    (the load-store unit takes one a cycle), ``f = flops / 256`` (float32 multiply-adds), and ``g``
    is the larger of ``global sectors / 2`` (what one multiprocessor can take) and ``sectors of all
    blocks / 82`` (what the memory gives to all).

    Bank conflicts enter through the wavefronts, uncoalesced access through the sectors. Latency,
    occupancy, registers and caches are not in it.

    Parameters
    ----------
    counters : Counters
        Of the whole grid.
    flops : int
        Arithmetic operations of the whole grid.
    """
    blocks = max(counters.blocks, 1)
    share = math.ceil(blocks / MULTIPROCESSORS) / blocks
    return Terms(
        memory=counters.sectors * max(share * CYCLES_PER_OWN_SECTOR, 1 / SECTORS_PER_CYCLE),
        pipe=share * (counters.wavefronts + counters.requests),
        arithmetic=share * flops / FLOPS_PER_CYCLE,
        barriers=share * CYCLES_PER_BARRIER * counters.barriers,
    )
