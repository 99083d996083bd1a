"""How long a kernel that moves or reduces data takes, from counts: a model, in seconds.

A kernel is bound by whatever takes longest: its bytes through device memory, its sectors through
the second-level cache, its requests and wavefronts through the load-store units, its instructions
through the schedulers, or its threads' loads one after the other, which only other warps hide. All
of these but the first two are those of the busiest multiprocessor, so that few blocks cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from .hardware import MULTIPROCESSORS, SECTOR_BYTES
from .measured import H200, GpuSpeeds


@dataclass(frozen=True)
class AccessWork:
    """What an access asks of a GPU, summed over a whole grid."""

    name: str  #: The buffer's
    kind: str  #: ``load``, ``store`` or ``atomic``
    scope: str  #: ``global`` or ``shared``
    bytes: int  #: That a lane moves in a request
    requests: float  #: Instructions of warps that have an active lane
    sectors: float = 0.0  #: Of global memory, touched by requests
    least: float = 0.0  #: Those that the same bytes would fill
    lines: float = 0.0  #: Lines of 128 bytes touched, by requests
    #: Sectors that leave the multiprocessor: what its cache has of them already is not among them.
    through: float = 0.0
    torn: float = 0.0  #: Of these, sectors in lines of which the block then takes only a part
    memory: float = 0.0  #: Sectors from or to device memory: each of the buffer's once
    #: Sectors of which a block stores only a part, where blocks store tiles.
    partial: float = 0.0
    wavefronts: float = 0.0  #: Of shared memory
    rounds: float = 0.0  #: Times that a thread waits for such loads one after the other


@dataclass(frozen=True)
class KernelWork:
    """What a kernel asks of a GPU."""

    blocks: int  #: Of the grid
    threads: int  #: Of a block
    resident: int  #: Blocks that a multiprocessor holds at a time
    accesses: tuple[AccessWork, ...]
    instructions: float = 0.0  #: Of warps, beside accesses
    #: Of warps, shuffles and passes through shared memory by which threads combine results.
    combines: float = 0.0
    barriers: float = 0.0  #: That a block waits at

    def total(self, what: str, kind: str = "", scope: str = "") -> float:
        """Sum of a count over the accesses of a kind and a scope."""
        chosen = (a for a in self.accesses if kind in ("", a.kind) and scope in ("", a.scope))
        return float(sum(getattr(access, what) for access in chosen))

    def to_json(self) -> dict[str, Any]:
        """The facts by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KernelWork:
        """Read :meth:`to_json`'s form."""
        accesses = tuple(AccessWork(**access) for access in data["accesses"])
        return cls(**{**data, "accesses": accesses})


def kernel_terms(work: KernelWork, gpu: GpuSpeeds = H200) -> dict[str, float]:
    """Seconds that each part of the GPU would take if it were alone."""
    # Whole blocks go to a multiprocessor; of thousands the rest hardly counts.
    share = max(1, ceil(work.blocks / MULTIPROCESSORS)) / max(1, work.blocks)
    loads, stores = (work.total("through", kind) for kind in ("load", "store"))
    atomics = work.total("through", "atomic")
    torn = gpu.torn * work.total("torn", "load")
    memory = work.total("memory")
    partial = gpu.partial * work.total("partial", "store")
    through = loads + torn + gpu.store_cost * (stores + 2 * atomics)
    scale = memory / max(loads + stores + atomics, 1.0)
    pipe = (
        work.total("wavefronts")
        + gpu.line_cycles * work.total("lines", scope="global")
        + work.total("requests")
    )
    busy = work.instructions + gpu.combine_cycles * work.combines + work.total("requests")
    waves = work.blocks / (MULTIPROCESSORS * work.resident)
    waits = (_wait(access, gpu) for access in work.accesses if access.rounds)
    wait = gpu.block_latency + max(waits, default=0.0) + work.barriers * gpu.barrier
    return {
        "memory": (memory + partial + torn * scale) * SECTOR_BYTES / gpu.memory,
        "l2": through / gpu.l2_sectors / gpu.clock,
        "own": share * through * SECTOR_BYTES / gpu.own / gpu.clock,
        "pipe": share * pipe / gpu.wavefronts / gpu.clock,
        "issue": share * busy / gpu.issue / gpu.clock,
        "latency": _waves(waves) * wait / gpu.clock,
        "blocks": work.blocks * gpu.block,
    }


def _wait(access: AccessWork, gpu: GpuSpeeds) -> float:
    """Cycles that a thread waits for a load; what the multiprocessor's cache has comes soon."""
    fresh = access.through / access.sectors if access.sectors else 1.0
    return access.rounds * (gpu.shared_latency + min(1.0, fresh) * gpu.load_latency)


def _waves(waves: float) -> float:
    """Turns that the blocks take; beyond a few, blocks begin as others end."""
    return max(1.0, ceil(waves) if waves < 3 else waves + 0.5)


def kernel_seconds(work: KernelWork, gpu: GpuSpeeds = H200) -> float:
    """Modelled seconds of a kernel.

    What is not the longest part hides behind it the better the shorter it is: the parts are joined
    by a norm, in which two equal ones cost a fifth more than one for ``gpu.overlap`` = 4.
    """
    parts = kernel_terms(work, gpu).values()
    longest = max(parts)
    joined = sum((part / longest) ** gpu.overlap for part in parts) ** (1 / gpu.overlap)
    return gpu.launch + longest * joined


def modelled_seconds(kernels: Sequence[KernelWork], gpu: GpuSpeeds = H200) -> float:
    """Modelled seconds of kernels one after the other; infinite if there are none."""
    if not kernels:
        return float("inf")
    earlier = (len(kernels) - 1) * (gpu.launch - gpu.next_launch)
    return sum(kernel_seconds(kernel, gpu) for kernel in kernels) - earlier
