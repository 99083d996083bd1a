"""What the lanes of a warp touch together at each shared-memory access of a function.

Warps and loop iterations are enumerated, lane by lane, where they are few, else drawn at random;
for index expressions made of sums and XORs all requests of an access are mostly alike. Where a copy
reads global memory counts, too: buffers there begin with a line, and loops and blocks that move
nothing but the source stand at their first iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from tvm import tirx

from ..gpu.hardware import LINE_BYTES, WARP_SIZE
from ..ir.evaluate import bind_lets, evaluate, known_value, placeholder_extent
from ..ir.pointers import strides_of
from ..ir.walk import THREADS, LoopVar, axis_indices
from .accesses import AccessSite, loops_in_use
from .nest import element_bytes

#: Requests up to which an access is enumerated whole; a square tile of 256 KiB has fewer.
MOST_REQUESTS = 4096
_SEED = 0


@dataclass(frozen=True)
class Requests:
    """Requests of one access: which elements each lane touches."""

    access: AccessSite
    indices: tuple[np.ndarray, ...]  #: One for each dim of the buffer
    active: np.ndarray  #: Lanes that take part
    #: Requests that the kernel's block makes in all; more than are here, if they are a sample.
    total: int
    is_exact: bool  #: Nothing was drawn or left out, and no condition was unknown
    #: Byte address, in its buffer, of the global element that goes to each; None where the access
    #: copies nothing, or the addresses are not arithmetic.
    sources: np.ndarray | None = None


def read_requests(access: AccessSite, most: int = MOST_REQUESTS) -> Requests | None:
    """Indices for all warps and iterations, or ``most`` of them; None if one is loaded."""
    loops = list(loops_in_use(access))
    free = [loop for loop in loops if loop.kind not in THREADS and loop.kind != "vectorized"]
    threads = prod(access.context.threads.values())
    counts = [-(-threads // WARP_SIZE), *(max(1, placeholder_extent(loop.extent)) for loop in free)]
    total = prod(counts)
    numbers = _numbers(total, most)
    warps, *values = np.unravel_index(numbers, counts)
    lanes = warps[:, None] * WARP_SIZE + np.arange(WARP_SIZE)
    chosen = dict(zip(map(id, free), values, strict=True))
    env = _values(access, loops, lanes, chosen)
    bind_lets(env, access.context.lets)
    try:
        indices = tuple(evaluate(index, env) for index in access.indices)
    except KeyError:
        return None
    active, known = _active(access, env, lanes < threads)
    shape = np.broadcast_shapes((len(lanes), WARP_SIZE, 1), *(i.shape for i in indices))
    return Requests(
        access,
        tuple(np.broadcast_to(index, shape) for index in indices),
        active,
        total * _repeats(access, loops),
        known and len(numbers) == total and _is_closed(access, env),
        _source_addresses(access, loops, lanes, chosen, shape),
    )


def _source_addresses(
    access: AccessSite,
    used: Sequence[LoopVar],
    lanes: np.ndarray,
    free: dict[int, Any],
    shape: Sequence[int],
) -> np.ndarray | None:
    """Where a copy reads; loops that move nothing but the source are at their start."""
    source = access.source
    if source is None:
        return None
    others = [
        loop
        for loop in access.context.loops
        if loop.kind != "vectorized" and not any(loop is other for other in used)
    ]
    still = {id(loop): np.zeros(len(lanes), np.int64) for loop in others}
    env = _values(access, [*others, *used], lanes, free | still)
    bind_lets(env, access.context.lets)
    try:
        indices = [evaluate(index, env) for index in source.indices]
    except KeyError:
        return None
    steps = map(_step, strides_of(source.buffer))
    flat = sum(index * step for index, step in zip(indices, steps, strict=True))
    return np.broadcast_to(flat * element_bytes(source.buffer), shape)


def _step(stride: Any) -> int:
    """Elements between rows; of a length that is not known, they begin with a line."""
    if isinstance(stride, int) or hasattr(stride, "value"):
        return int(stride)
    # So many elements are whole lines, whatever bytes one has.
    return -(-placeholder_extent(stride) // LINE_BYTES) * LINE_BYTES


def _numbers(total: int, most: int) -> np.ndarray:
    if total <= most:
        return np.arange(total)
    drawn = np.random.default_rng(_SEED).integers(0, total, most)
    drawn[0] = 0
    return drawn


def _repeats(access: AccessSite, used: Sequence[LoopVar]) -> int:
    """How often loops repeat the access that its indices do not mention."""
    others = [loop for loop in access.loops if not any(loop is other for other in used)]
    at_once = (loop.is_thread or loop.is_grid or loop.kind == "vectorized" for loop in others)
    return prod(1 if a else max(1, loop.count) for loop, a in zip(others, at_once, strict=True))


def _values(
    access: AccessSite, loops: Sequence[LoopVar], lanes: np.ndarray, free: dict[int, Any]
) -> dict[Any, np.ndarray]:
    """Values of the loop variables: arrays of (request, lane, element)."""
    thread = axis_indices(lanes, {tag: access.context.threads.get(tag, 1) for tag in THREADS})
    env: dict[Any, np.ndarray] = {}
    for loop in loops:
        if loop.kind == "vectorized":
            value = np.arange(placeholder_extent(loop.extent))[None, None, :]
        elif loop.kind in thread:
            value = thread[loop.kind][:, :, None]
        else:
            value = free[id(loop)][:, None, None]
        env[loop.var] = value + evaluate(loop.start, env)
    return env


def _is_closed(access: AccessSite, env: dict[Any, np.ndarray]) -> bool:
    """Whether every variable has a value of its own, not that of a symbolic size."""
    used = [var for index in access.indices for var in tirx.analysis.undefined_vars(index)]
    return all(any(var.same_as(known) for known in env) for var in used)


def _active(
    access: AccessSite, env: dict[Any, np.ndarray], exists: np.ndarray
) -> tuple[np.ndarray, bool]:
    active, known = exists, True
    for condition in access.context.conditions:
        value = known_value(condition, env)
        if value is None:
            known = False
            continue
        holds = value != 0
        holds = holds.any(axis=2) if holds.ndim == 3 else holds
        active = active & np.broadcast_to(holds, exists.shape)
    return active, known
