"""Counting the 32-byte sectors that the requests of a block move, from its indices alone.

A block as it is scheduled says which elements the lanes of a warp touch together. A few warps
spread over the launch and over the serial loops are enough: they are evaluated, lane by lane. Loads
inside an index are not known: such an access has no count. A condition on indices leaves lanes out;
one on what was loaded is taken to hold in all, so that either branch counts at its widest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ..analysis.nest import Access, Loop, Nest
from ..gpu.hardware import SECTOR_BYTES, WARP_SIZE
from ..gpu.requests import NOTHING, distinct
from ..gpu.sectors import request_sectors
from ..ir.evaluate import evaluate, placeholder_extent

_SAMPLES = 64
#: The same where conditions may hold in a few of the warps only.
_MANY_SAMPLES = 4096
#: Iterations by which it is told how often a condition holds.
_CHOICES = 1 << 16
_SEED = 0


@dataclass(frozen=True)
class Traffic:
    """Sectors that an access moves for each warp request, on average.

    Attributes
    ----------
    buffer : str
    kind : str
        ``load``, ``store`` or ``atomic``.
    iterations : float
        Iterations of the block that a request serves, on average; of those alone in which the
        conditions around the access hold.
    vector_bytes : int
        Bytes that a lane moves in one request.
    sectors : float
        Sectors of a request.
    least : float
        Sectors that the same bytes would fill.
    share : float
        Part of the block's iterations in which the conditions around the access hold; 1 where that
        is not known.
    """

    buffer: str
    kind: str
    iterations: float
    vector_bytes: int
    sectors: float
    least: float
    share: float = 1.0

    @property
    def waste(self) -> float:
        """How many times the least possible sectors are moved."""
        return self.sectors / self.least

    def __str__(self) -> str:
        return (
            f"{self.kind} of {self.buffer}: {self.vector_bytes} bytes a lane, "
            f"{self.sectors:.3g} sectors a request (least {self.least:.3g})"
        )


def count_traffic(nest: Nest) -> list[Traffic]:
    """Count the global accesses of a scheduled block.

    Parameters
    ----------
    nest : Nest
        A block whose loops are bound; where none is, it is taken to run on one thread.

    Examples
    --------
    >>> for traffic in count_traffic(read_nest(sch, "B")):    # doctest: +SKIP
    ...     print(traffic)
    load of A: 4 bytes a lane, 32 sectors a request (least 4)
    store of B: 16 bytes a lane, 16 sectors a request (least 16)
    """
    env, lanes = _sample_warps(nest.loops, _MANY_SAMPLES if nest.conditions else _SAMPLES)
    active = (lanes >= 0) & _active(nest.predicate, env, lanes.shape)
    counted = (
        _count(access, *_vector_width(access, nest.loops, env), env, _holding(access, env, active))
        for access in nest.of_scope("global")
    )
    return [traffic for traffic in counted if traffic is not None]


def estimate(access: Access, order: Sequence[Loop], vector: int) -> Traffic | None:
    """Count an access if neighbouring lanes took neighbouring groups of iterations.

    Parameters
    ----------
    access : Access
    order : sequence of Loop
        The loops as they would be nested, the innermost last.
    vector : int
        Iterations of the innermost loop that a lane does at once.

    Returns
    -------
    Traffic or None
        None where the offset has something that cannot be counted.
    """
    sizes = [placeholder_extent(loop.extent) for loop in order]
    most = _MANY_SAMPLES if access.conditions else _SAMPLES
    (starts,) = _draw([max(1, prod(sizes) // (WARP_SIZE * vector))], most)
    flat = (starts * WARP_SIZE + np.arange(WARP_SIZE)) * vector
    active = flat < prod(sizes)
    env: dict[Any, np.ndarray] = {}
    for loop, size in zip(reversed(order), reversed(sizes), strict=True):
        env[loop.var] = flat % size
        flat = flat // size
    runs = bool(order) and _moves_by(1, access, order[-1].var, env)
    active = _holding(access, env, active)
    return _count(access, vector if runs else 1, vector if runs else 1, env, active)


def _moves_by(
    step: int, access: Access, var: Any, env: dict[Any, np.ndarray], steps: int = 2
) -> bool:
    """Whether the offset goes up by as much, 0 or 1, at each of some steps of a variable."""
    try:
        start = evaluate(access.offset, env)
        ahead = ({**env, var: env[var] + by} for by in range(1, steps))
        moved = (evaluate(access.offset, values) - start for values in ahead)
        return all(bool((step * by == far).all()) for by, far in enumerate(moved, start=1))
    except KeyError:
        return False


def _sample_warps(
    loops: Sequence[Loop], most: int = _SAMPLES
) -> tuple[dict[Any, np.ndarray], np.ndarray]:
    """Values of every loop variable for the lanes of some warps: arrays of (warp, lane).

    Up to ``most`` warps; the second array is the lane in its block, or -1 past the last thread.
    """
    sizes, free, ranges = _ranges(loops)
    threads = prod(sizes.values())
    warps, *drawn = _draw(ranges, most)
    lanes = np.arange(WARP_SIZE)[None, :] + WARP_SIZE * warps
    values: dict[str, np.ndarray] = {}
    rest = lanes
    for axis in (f"threadIdx.{dim}" for dim in "xyz"):
        values[axis] = rest % sizes.get(axis, 1)
        rest = rest // sizes.get(axis, 1)
    env: dict[Any, np.ndarray] = {}
    for loop, value in zip(free, drawn, strict=True):
        spread = np.broadcast_to(value, lanes.shape)
        shared = loop.kind.startswith("blockIdx")
        env[loop.var] = values.setdefault(loop.kind, spread) if shared else spread
    env |= {loop.var: values[loop.kind] for loop in loops if loop.kind.startswith("threadIdx")}
    return env, np.where(lanes < threads, lanes, -1)


def _ranges(loops: Sequence[Loop]) -> tuple[dict[str, int], list[Loop], list[int]]:
    """Extents of the thread axes, the other loops, and of how many values warps and these are."""
    bound = [loop for loop in loops if loop.kind.startswith("threadIdx")]
    sizes = {loop.kind: placeholder_extent(loop.extent) for loop in bound}
    free = [loop for loop in loops if not loop.kind.startswith("threadIdx")]
    own = (_own_values(loop, free[:i]) for i, loop in enumerate(free))
    return sizes, free, [-(-prod(sizes.values()) // WARP_SIZE), *own]


def _own_values(loop: Loop, before: Sequence[Loop]) -> int:
    """Values that a loop takes by itself: lanes of vectors go together, and so do blocks."""
    bound = loop.kind.startswith("blockIdx") and any(loop.kind == one.kind for one in before)
    return 1 if bound or loop.kind == "vectorized" else max(1, placeholder_extent(loop.extent))


def _draw(sizes: Sequence[int], most: int = _SAMPLES) -> list[np.ndarray]:
    """Values below each size, as columns: all of their combinations if they are few.

    Where many are drawn, each of the first size is as often as another: of 8 warps that sum 5
    results in 320 steps one has work, and drawn freely it came a tenth too seldom.
    """
    if prod(sizes) <= most:
        return [column.reshape(-1, 1) for column in np.indices(sizes)]
    rng = np.random.default_rng(_SEED)
    if most > _SAMPLES:
        flat = (np.arange(most) + rng.random(most)) * (prod(sizes) / most)
        places = np.unravel_index(np.minimum(flat.astype(np.int64), prod(sizes) - 1), sizes)
        return [np.asarray(column).reshape(-1, 1) for column in places]
    drawn = [rng.integers(0, size, (most, 1)) for size in sizes]
    drawn[0][0] = 0
    return drawn


def _active(predicate: Any, env: dict[Any, np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    try:
        return np.broadcast_to(evaluate(predicate, env) != 0, shape)
    except KeyError:
        return np.ones(shape, bool)


def _holding(access: Access, env: dict[Any, np.ndarray], lanes: np.ndarray) -> np.ndarray:
    """Lanes, of some, in which the conditions around an access hold; those that are known."""
    holds = np.array(lanes)
    for condition in access.conditions:
        holds &= _active(condition, env, lanes.shape)
    return holds


def _share(access: Access) -> float:
    """Part of the iterations in which an access is done, the same however its block is mapped."""
    if not access.own_conditions:
        return 1.0
    sizes = [max(1, placeholder_extent(axis.dom.extent)) for axis in access.axes]
    if prod(sizes) <= _CHOICES:
        drawn = list(np.indices(sizes).reshape(len(sizes), -1))
    else:
        rng = np.random.default_rng(_SEED)
        drawn = [rng.integers(0, size, _CHOICES) for size in sizes]
    env = {axis.var: value for axis, value in zip(access.axes, drawn, strict=True)}
    holds = np.ones(len(drawn[0]), bool)
    for condition in access.own_conditions:
        holds &= _active(condition, env, holds.shape)
    return float(holds.mean())


def _count(
    access: Access, width: int, served: int, env: dict[Any, np.ndarray], active: np.ndarray
) -> Traffic | None:
    """Count requests of ``width`` elements a lane that serve ``served`` iterations each.

    A base pointer that is less aligned than a sector lies as badly as it may. Lanes whose atomics
    meet at one element take turns, so each after the first counts as a sector of its own.
    """
    try:
        first = np.broadcast_to(evaluate(access.offset, env), active.shape)
    except KeyError:
        return None
    requests, sectors, least = _count_requests(access, first, width, active)
    if not requests:
        return None
    return Traffic(
        access.name,
        access.kind,
        served * int(active.sum()) / requests,
        width * access.bytes,
        float(sectors / requests),
        float(least / requests),
        _share(access),
    )


def _count_requests(
    access: Access, first: np.ndarray, width: int, active: np.ndarray
) -> tuple[int, int, int]:
    """Count requests, their sectors, and those that the same bytes would fill.

    Parameters
    ----------
    access : Access
    first : array
        Element where each lane begins, of (warp, lane).
    width : int
        Elements of a lane.
    active : array of bool
        Lanes that take part.
    """
    asking = active.any(axis=1)
    first, active = first[asking], active[asking]
    start = first * access.bytes + access.alignment % SECTOR_BYTES
    # Offsets of which not all conditions are known may begin before the buffer.
    start -= min(0, int(start.min(initial=0)) // SECTOR_BYTES * SECTOR_BYTES)
    sectors, least = request_sectors(start, active, width * access.bytes)
    moved = int(sectors.sum())
    if access.kind == "atomic":
        begins = distinct(np.where(active, start, NOTHING))
        moved += int((active.sum(axis=1) - begins).sum())
    return len(first), moved, int(least.sum())


def _vector_width(
    access: Access, loops: Sequence[Loop], env: dict[Any, np.ndarray]
) -> tuple[int, int]:
    """Elements of one instruction, and iterations that it serves.

    They are those of the vectorized loop, if the access walks along it; one element serves them all
    if it stays where it is, and otherwise each takes an instruction of its own. What indices of
    fused loops hide from the analyser is seen at the sampled values.
    """
    for loop, step in zip(loops, access.steps, strict=True):
        if loop.kind == "vectorized":
            lanes = loop.size or 1
            if step is None:
                step = next((n for n in (0, 1) if _moves_by(n, access, loop.var, env, lanes)), None)
            return (lanes if step == 1 else 1), (lanes if step in (0, 1) else 1)
    return 1, 1
