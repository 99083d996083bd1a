"""The threads that run together: a batch of whole blocks, and the paths its threads split into."""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Any

import numpy as np

from ...gpu import hardware
from ..races import Clocks

#: Innermost first, as CUDA numbers threads and blocks.
AXES = ("x", "y", "z")
#: Begins the names of the axes of a block within its cluster.
CLUSTER_AXIS = "clusterCtaIdx."
_WARP = hardware.WARP_SIZE


@dataclass(frozen=True)
class Geometry:
    """Extents of a launch."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    #: Neighbours along x that are a cluster.
    cluster: int = 1

    @property
    def extents(self) -> dict[str, int]:
        """Extents by thread tag."""
        pairs = (("blockIdx", self.grid), ("threadIdx", self.block))
        return {f"{unit}.{dim}": n for unit, ns in pairs for dim, n in zip("xyz", ns, strict=True)}

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return int(np.prod(self.grid, dtype=np.int64))

    @property
    def threads(self) -> int:
        """Threads a block."""
        return int(np.prod(self.block, dtype=np.int64))

    @property
    def warps(self) -> int:
        """Warps a block, the last one perhaps not full."""
        return -(-self.threads // _WARP)

    @property
    def lanes(self) -> int:
        """Lanes a block: threads, and the idle lanes of its last warp."""
        return self.warps * _WARP


def _coordinates(linear: Any, extents: tuple[int, int, int]) -> tuple[Any, Any, Any]:
    x, y, _ = extents
    return linear % x, linear // x % y, linear // (x * y)


@dataclass(eq=False)
class WarpBatch:
    """Blocks that run in lockstep, a NumPy lane a thread; a mask of None means all lanes.

    ``cache`` keeps what is computed once; ``full`` is the mask of the lanes that are threads.
    """

    launch: Any
    geometry: Geometry
    blocks: Any
    memories: list[Any]
    clocks: Clocks
    caches: InitVar[int]

    def __post_init__(self, caches: int) -> None:
        geometry = self.geometry
        self.size = len(self.blocks) * geometry.lanes
        self.lane = np.arange(self.size, dtype=np.int64)
        self.block_of = self.lane // geometry.lanes
        thread = self.lane % geometry.lanes
        self.full = None if geometry.lanes == geometry.threads else thread < geometry.threads
        self.cache: list[Any] = [None] * caches
        self.masks: dict[tuple[int, int], tuple[Any, Any, Any]] = {}
        self.pending_copies: list[Any] = []
        #: Groups of asynchronous copies that each thread has committed.
        self.groups = np.zeros(self.size, np.int64)
        #: Hopper's asynchronous units, once a kernel uses them.
        self.units: Any = None
        #: Loop variables, by slot, of the path that runs.
        self.slots: list[Any] = []
        self.index = self._thread_indices(np.minimum(thread, geometry.threads - 1))

    def _thread_indices(self, thread: Any) -> dict[str, Any]:
        inside = _coordinates(thread, self.geometry.block)
        outside = _coordinates(self.blocks, self.geometry.grid)
        found = {f"threadIdx.{a}": i.astype(np.int32) for a, i in zip(AXES, inside, strict=True)}
        for axis, index in zip(AXES, outside, strict=True):
            found[f"blockIdx.{axis}"] = np.repeat(index.astype(np.int32), self.geometry.lanes)
        return found

    def active(self, mask: Any) -> Any:
        """Mask as an array of bool."""
        mask = self.mask(mask)
        return np.ones(self.size, bool) if mask is None else mask

    def mask(self, mask: Any) -> Any:
        """Mask without the idle lanes of a block's last warp; None if it has none."""
        return self.full if mask is None else mask

    def threads(self, mask: Any) -> Any:
        """Numbers of the lanes of a mask."""
        mask = self.mask(mask)
        return self.lane if mask is None else np.flatnonzero(mask)

    def poisoned(self, site: Any, mask: Any, poison: Any, what: str) -> Any:
        """Report threads of a mask that have poison, in any element; None if there are none."""
        bad = poison != 0 if np.ndim(poison) < 2 else (poison != 0).any(axis=0)
        bad = bad & self.active(mask)
        if not bad.any():
            return None
        self.launch.findings.poison_at(site, self, poison, bad, what)
        return bad

    def defined(self, site: Any, mask: Any, condition: Any, poison: Any) -> Any:
        """Report poison, if there is any, in a condition, which then is false for its threads."""
        bad = None if poison is None else self.poisoned(site, mask, poison, "decides a branch")
        return condition if bad is None else np.broadcast_to(condition, (self.size,)) & ~bad

    def thread_name(self, lane: int) -> str:
        """How a report names a thread: block and thread coordinates."""
        at = [int(self.index[f"threadIdx.{a}"][lane]) for a in AXES]
        block = [int(self.index[f"blockIdx.{a}"][lane]) for a in AXES]
        return f"thread ({at[0]},{at[1]},{at[2]}) of block ({block[0]},{block[1]},{block[2]})"


@dataclass
class DivergentPath:
    """Threads at one point of the program, with loop variables and lets in ``slots``.

    ``turns`` counts backward jumps, so that others may pass one that spins.
    """

    batch: WarpBatch
    mask: Any
    slots: list[Any]
    pc: int = 0
    waiting: Any = None
    turns: int = 0

    def split(self, mask: Any, pc: int) -> DivergentPath:
        """Make a path of some of its threads that goes on elsewhere."""
        return DivergentPath(self.batch, mask, list(self.slots), pc, None, self.turns)
