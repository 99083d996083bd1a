"""The modelled cost by which the simulated runner ranks candidates; it is no time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from ...gpu.hardware import MULTIPROCESSORS, SECTOR_BYTES
from ...gpu.measured import H200
from ...gpu.requests import sectors_per_request

#: Where a record does not tell how many blocks are resident.
USUAL_RESIDENT = 3
#: Share of the smaller terms that does not hide behind the largest.
EXPOSED = 0.1

FORMULA = (
    "cost = max(g, l, f, w) + 0.1 * (g, l and f, but for the largest) + 30 * barriers / resident "
    "blocks, in modelled cycles of the busiest multiprocessor, which runs ceil(blocks / 132) "
    "blocks. Over these, l = shared wavefronts + global requests, f = flops / 256 + tensor-core "
    "flops / 2800, those of tf32 counting twice and of 8-bit integers half. g = max(sectors / 2, "
    "(sectors of all blocks + t) / 165, (sectors of memory + t) / 82 * (1 + 0.5 / max(1, waves * "
    "steps))), where t = 0.3 of the sectors loaded from torn "
    "lines. w = max(1.13 * all blocks, waves * latency of a block's steps). A model, not a time."
)


@dataclass(frozen=True)
class Counters:
    """What the simulated GPU counted, for whole grids, and what is known of the kernel.

    Of several kernels, as a split sum has, counts are those of all, each scaled up by its own grid;
    what is no count is of the kernel that moves the most.
    """

    blocks: int  #: Of the grid
    sampled: int  #: Those of all kernels that were run
    requests: int  #: Warp-wide accesses of global memory
    sectors: int  #: 32-byte sectors moved
    ideal_sectors: int  #: The least possible
    wavefronts: int  #: Of shared memory
    bank_conflicts: int  #: Those over the least possible
    barriers: int  #: Summed over blocks
    #: Loaded sectors in 128-byte lines of which a request takes only a part. This and what follows
    #: are worked out in closed form, and 0 in older records.
    torn: int = 0
    memory: int = 0  #: Sectors that leave the device's memory at least; 0 if unknown
    resident: int = 0  #: Blocks that a multiprocessor holds
    steps: int = 0  #: Iterations along which one streams
    products: int = 0  #: Operations of tensor cores
    chain: int = 0  #: Cycles of a block alone
    halves: int = 0  #: Products in half precision that would take as long

    @property
    def sectors_per_request(self) -> float:
        """Sectors of an average global access."""
        return sectors_per_request(self.sectors, self.requests)

    def to_json(self) -> dict[str, Any]:
        """The counters by name, with sectors a request."""
        return asdict(self) | {"sectors_per_request": round(self.sectors_per_request, 3)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Counters:
        """Read :meth:`to_json`'s form; other entries are left."""
        return cls(
            **{f.name: int(data[f.name]) for f in fields(cls) if f.name in data or f.name in _OLD}
        )


#: Counters of every record; the others came later.
_OLD = {f.name for f in fields(Counters) if f.default is MISSING}


@dataclass(frozen=True)
class CostTerms:
    """What limits a multiprocessor, in modelled cycles."""

    memory: float  #: Global sectors through its bandwidth, the L2 cache's, the memory's
    pipe: float  #: Shared wavefronts and global requests through the load-store unit
    arithmetic: float  #: Single-precision multiply-adds, and products of tensor cores
    latency: float  #: Of blocks whose every step waits for what it needs
    barriers: float = 0.0
    issue: float = 0.0  #: Instructions, where they are told apart from arithmetic
    exposed: float = EXPOSED  #: Share of the smaller terms that does not hide behind the largest

    @property
    def cycles(self) -> float:
        """The longest, a share of what else is throughput, and the barriers."""
        busy = (self.memory, self.pipe, self.arithmetic, self.issue)
        hidden = sum(busy) - max(busy)
        return max(*busy, self.latency) + self.exposed * hidden + self.barriers


def modelled_terms(counters: Counters, flops: int) -> CostTerms:
    """Model what a kernel costs, as :data:`FORMULA` says: modelled cycles, not a time.

    ``flops`` are those of the whole grid. What a record does not tell costs nothing.
    """
    blocks = max(counters.blocks, 1)
    share = math.ceil(blocks / MULTIPROCESSORS) / blocks
    resident = counters.resident or USUAL_RESIDENT
    waves = blocks / (MULTIPROCESSORS * resident)
    plain = max(0, flops - counters.products) / H200.fma
    tensor = counters.halves or counters.products
    return CostTerms(
        memory=_memory(counters, share, waves),
        pipe=share * (counters.wavefronts + counters.requests),
        arithmetic=share * (plain + tensor / H200.tensor),
        barriers=share * H200.barrier * counters.barriers / resident,
        latency=max(math.ceil(waves) * counters.chain, H200.block_cycles * counters.blocks),
    )


def _memory(counters: Counters, share: float, waves: float) -> float:
    torn = H200.torn * counters.torn
    least = counters.memory or counters.sectors
    tail = H200.tail / max(1.0, waves * counters.steps) if counters.steps else 0.0
    return max(
        share * counters.sectors * SECTOR_BYTES / H200.own,
        (counters.sectors + torn) / H200.l2_sectors,
        (least + torn * least / max(counters.sectors, 1)) / H200.memory_sectors * (1 + tail),
    )
