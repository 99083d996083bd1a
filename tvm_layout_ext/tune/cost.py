"""The modelled cost by which the simulated runner ranks candidates; it is no time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

__all__ = ["FORMULA", "Counters", "Terms", "modelled_terms"]

#: Of an H200, for which the model is written.
MULTIPROCESSORS = 132
#: 4.8 TB/s over 132 multiprocessors at 1.83 GHz are 20 bytes, so a 32-byte sector costs 1.6 cycles.
CYCLES_PER_SECTOR = 1.6
#: A multiprocessor finishes 128 single-precision multiply-adds a cycle.
FLOPS_PER_CYCLE = 256
#: Of a __syncthreads: latency that the other resident blocks hide only in part.
CYCLES_PER_BARRIER = 10
#: Share of the smaller terms that does not hide behind the largest.
EXPOSED = 0.2

FORMULA = (
    "cost = rounds * (max(g, l, f) + 0.2 * (the other two) + 10 * barriers), in modelled cycles of "
    "the busiest multiprocessor, with, per block: g = 1.6 * global sectors, l = shared wavefronts "
    "+ global requests, f = flops / 256; rounds = ceil(blocks / 132). A model, not a time."
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

    ``cost = rounds * (max(g, l, f) + 0.2 * (the other two) + 10 * barriers)`` where, per block,
    ``g = 1.6 * global sectors`` (memory bandwidth), ``l = shared wavefronts + global requests``
    (the load-store unit takes one a cycle), ``f = flops / 256`` (float32 multiply-adds), and
    ``rounds = ceil(blocks / 132)``: how many blocks the busiest multiprocessor runs.

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
        memory=share * CYCLES_PER_SECTOR * counters.sectors,
        pipe=share * (counters.wavefronts + counters.requests),
        arithmetic=share * flops / FLOPS_PER_CYCLE,
        barriers=share * CYCLES_PER_BARRIER * counters.barriers,
    )
