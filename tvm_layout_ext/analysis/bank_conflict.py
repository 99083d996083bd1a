"""Bank conflicts of a function's shared-memory accesses, counted without running it.

Every access says which elements the lanes of a warp touch together. Warps and loop iterations are
enumerated, lane by lane, where they are few, else drawn at random; for index expressions made of
sums and XORs all requests of an access are mostly alike. A request is then counted by the rules
that were measured on an H200 (:mod:`tvm_layout_ext.layout.requests`). ``ldmatrix`` and ``stmatrix``
move a matrix of 8 rows of 16 bytes at a time, whose addresses 8 neighbouring lanes give.
``cp.async`` goes by rules of its own (:mod:`tvm_layout_ext.layout.copy_wavefronts`), which depend
on the global addresses, too: buffers count as beginning with a line, and loops and blocks that move
nothing but the source stand at their first iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from tvm import tirx

from ..hardware import BANK_BYTES, MAX_ACCESS_BYTES, NUM_BANKS, WARP_SIZE
from ..layout.copy_wavefronts import copy_wavefronts, distinct_requests, fewest_wavefronts
from ..layout.placement import Placement, Strided
from ..layout.requests import request_wavefronts
from .access import element_bytes
from .pointers import strides_of
from .sectors import evaluate, stand_in
from .shared_access import (
    LoopVar,
    SharedAccess,
    access_bytes,
    loops_in_use,
    read_shared_accesses,
)

__all__ = ["Conflict", "Requests", "bank_conflicts", "count", "placement_of", "read_requests"]

#: What a lane copies by one ``cp.async`` (PTX ISA, "cp.async").
COPY_BYTES = (4, 8, 16)
#: Elements of at least a byte that are whole lines of 128 bytes.
_WHOLE_LINES = 128
#: Requests up to which an access is enumerated whole; a square tile of 256 KiB has fewer.
MOST_REQUESTS = 4096
_SEED = 0


@dataclass(frozen=True)
class Requests:
    """Requests of one access: which elements each lane touches.

    Attributes
    ----------
    access : SharedAccess
    indices : tuple of array of int, [requests, 32, elements]
        One for each dim of the buffer.
    active : array of bool, [requests, 32]
        Lanes that take part.
    sources : array of int, [requests, 32, elements], or None
        Byte address, in its buffer, of the global element that goes to each; None where the access
        copies nothing, or the addresses are not arithmetic.
    total : int
        Requests that the kernel's block makes in all; more than are here, if they are a sample.
    is_exact : bool
        Nothing was drawn or left out, and no condition was unknown.
    """

    access: SharedAccess
    indices: tuple[np.ndarray, ...]
    active: np.ndarray
    total: int
    is_exact: bool
    sources: np.ndarray | None = None


@dataclass(frozen=True)
class Conflict:
    """What an access costs.

    Attributes
    ----------
    buffer, kind, block : str
        See :class:`.SharedAccess`.
    vector_bytes : int
        Bytes that a lane moves in one instruction.
    requests : int
        Instructions of warps that were counted.
    wavefronts, least : int
        Of these requests: needed, and needed if nothing conflicted.
    is_exact : bool
        All requests were counted; else a sample of them.
    addresses : tuple of int
        Byte offset of each lane in the worst request, -1 for an idle lane.
    """

    buffer: str
    kind: str
    block: str
    vector_bytes: int
    requests: int
    wavefronts: int
    least: int
    is_exact: bool
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
        return (
            f"{self.kind} of {self.buffer}: {self.vector_bytes} bytes a lane, "
            f"{self.wavefronts / max(1, self.requests):.3g} wavefronts a request "
            f"(least {self.least / max(1, self.requests):.3g}){counted}"
        )


def bank_conflicts(func: Any) -> list[Conflict]:
    """Count every shared-memory access of a function as its buffers lie now.

    Parameters
    ----------
    func : PrimFunc
        A function of opaque blocks, or a final device function.

    Returns
    -------
    list of Conflict
        In the order of the program; accesses whose indices hold loads are left out.

    Examples
    --------
    >>> for conflict in bank_conflicts(kernel):    # doctest: +SKIP
    ...     print(conflict)
    store of A_shared: 4 bytes a lane, 1 wavefronts a request (least 1)
    load of A_shared: 4 bytes a lane, 32 wavefronts a request (least 1)
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


def read_requests(access: SharedAccess, most: int = MOST_REQUESTS) -> Requests | None:
    """Evaluate the indices of an access for all warps and iterations, or a sample of them.

    Parameters
    ----------
    access : SharedAccess
    most : int
        Requests beyond which a sample is drawn, by a fixed seed.

    Returns
    -------
    Requests or None
        None where an index holds something that is not arithmetic, such as a load.
    """
    loops = list(loops_in_use(access))
    free = [loop for loop in loops if loop.kind not in _THREAD_TAGS and loop.kind != "vectorized"]
    threads = prod(access.context.threads.values())
    counts = [-(-threads // WARP_SIZE), *(max(1, stand_in(loop.extent)) for loop in free)]
    total = prod(counts)
    numbers = _numbers(total, most)
    warps, *values = np.unravel_index(numbers, counts)
    lanes = warps[:, None] * WARP_SIZE + np.arange(WARP_SIZE)
    chosen = dict(zip(map(id, free), values, strict=True))
    env = _values(access, loops, lanes, chosen)
    unknown = _bind(env, access.context.lets)
    try:
        indices = tuple(_known(index, env, unknown) for index in access.indices)
    except KeyError:
        return None
    active, known = _active(access, env, unknown, lanes < threads)
    shape = np.broadcast_shapes((len(lanes), WARP_SIZE, 1), *(i.shape for i in indices))
    return Requests(
        access,
        tuple(np.broadcast_to(index, shape) for index in indices),
        active,
        total * _repeats(access, loops),
        known and len(numbers) == total and _is_closed(access, env),
        _source_addresses(
            access, loops, lanes, dict(zip(map(id, free), values, strict=True)), shape
        ),
    )


def _source_addresses(
    access: SharedAccess,
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
    unknown = _bind(env, access.context.lets)
    try:
        indices = [_known(index, env, unknown) for index in source.indices]
    except KeyError:
        return None
    steps = map(_step, strides_of(source.buffer))
    flat = sum(index * step for index, step in zip(indices, steps, strict=True))
    return np.broadcast_to(flat * element_bytes(source.buffer), shape)


def _step(stride: Any) -> int:
    """Elements between rows; of a length that is not known, they begin with a line."""
    if _is_constant(stride):
        return int(stride)
    return -(-stand_in(stride) // _WHOLE_LINES) * _WHOLE_LINES


_THREAD_TAGS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")


def _numbers(total: int, most: int) -> np.ndarray:
    if total <= most:
        return np.arange(total)
    drawn = np.random.default_rng(_SEED).integers(0, total, most)
    drawn[0] = 0
    return drawn


def _repeats(access: SharedAccess, used: Sequence[LoopVar]) -> int:
    """How often loops repeat the access that its indices do not mention."""
    repeats = 1
    for loop in access.context.loops:
        mentioned = any(loop is other for other in used)
        if not mentioned and not loop.kind.startswith(("threadIdx", "blockIdx", "vectorized")):
            repeats *= max(1, stand_in(loop.extent)) if _is_constant(loop.extent) else 1
    return repeats


def _is_constant(extent: Any) -> bool:
    return isinstance(extent, int) or hasattr(extent, "value")


def _values(
    access: SharedAccess, loops: Sequence[LoopVar], lanes: np.ndarray, free: dict[int, Any]
) -> dict[Any, np.ndarray]:
    """Values of the loop variables: arrays of (request, lane, element)."""
    rest, thread = lanes, {}
    for tag in _THREAD_TAGS:
        extent = access.context.threads.get(tag, 1)
        thread[tag] = rest % extent
        rest = rest // extent
    env: dict[Any, np.ndarray] = {}
    for loop in loops:
        if loop.kind == "vectorized":
            value = np.arange(stand_in(loop.extent))[None, None, :]
        elif loop.kind in thread:
            value = thread[loop.kind][:, :, None]
        else:
            value = free[id(loop)][:, None, None]
        env[loop.var] = value + evaluate(loop.start, env)
    return env


def _bind(env: dict[Any, np.ndarray], lets: Sequence[tuple[Any, Any]]) -> list[Any]:
    """Add let variables; gives those whose values are not arithmetic."""
    unknown: list[Any] = []
    for var, value in lets:
        try:
            env[var] = _known(value, env, unknown)
        except KeyError:
            unknown.append(var)
    return unknown


def _known(expr: Any, env: dict[Any, np.ndarray], unknown: Sequence[Any]) -> np.ndarray:
    """Evaluate an expression of known variables; raises KeyError for others."""
    if unknown:
        for var in tirx.analysis.undefined_vars(expr):
            if any(var.same_as(other) for other in unknown):
                raise KeyError(var.name)
    return evaluate(expr, env)


def _is_closed(access: SharedAccess, env: dict[Any, np.ndarray]) -> bool:
    """Whether every variable has a value of its own, not that of a symbolic size."""
    used = [var for index in access.indices for var in tirx.analysis.undefined_vars(index)]
    return all(any(var.same_as(known) for known in env) for var in used)


def _active(
    access: SharedAccess,
    env: dict[Any, np.ndarray],
    unknown: Sequence[Any],
    exists: np.ndarray,
) -> tuple[np.ndarray, bool]:
    active, known = exists, True
    for condition in access.context.conditions:
        try:
            holds = _known(condition, env, unknown) != 0
        except KeyError:
            known = False
            continue
        holds = holds.any(axis=2) if holds.ndim == 3 else holds
        active = active & np.broadcast_to(holds, exists.shape)
    return active, known


def count(requests: Requests, placement: Placement) -> Conflict:
    """Count requests as if the buffer lay by a placement.

    Parameters
    ----------
    requests : Requests
    placement : Strided or Xor
    """
    access = requests.access
    size = access_bytes(access)
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
    if not len(rows):
        nobody = (-1,) * WARP_SIZE
        return _conflict(requests, width, np.zeros(0), np.zeros(0), nobody)
    if access.kind == "cp.async" and requests.sources is not None and width in COPY_BYTES:
        read = np.concatenate([requests.sources[:, :, k] + step for k, step in places])[live]
        waves, least = _copies(read, rows, active, width, access)
    else:
        is_plain_read = access.kind == "load"
        waves, least = request_wavefronts(rows, active, width, joins=is_plain_read)
    worst = int(np.argmax(waves - least))
    shown = np.where(active[worst], rows[worst], -1)
    return _conflict(requests, width, waves, least, tuple(map(int, shown)))


def _copies(
    sources: np.ndarray, rows: np.ndarray, active: np.ndarray, width: int, access: SharedAccess
) -> tuple[np.ndarray, np.ndarray]:
    """Wavefronts of asynchronous copies, and what the lines that they read need at least."""
    fills = access.source is not None and access.source.fills
    read, written, index, back = distinct_requests(sources, rows, active)
    waves = copy_wavefronts(
        read,
        written,
        active[index],
        width,
        through_cache=width < MAX_ACCESS_BYTES,
        fills=fills,
    )
    least = fewest_wavefronts(read, active[index], width, fills=fills)
    return waves[back], np.minimum(least, waves)[back]


def _conflict(
    requests: Requests, width: int, waves: Any, least: Any, addresses: tuple[int, ...]
) -> Conflict:
    access = requests.access
    return Conflict(
        str(access.buffer.name),
        access.kind,
        access.context.block,
        width,
        len(waves),
        int(np.sum(waves)),
        int(np.sum(least)),
        requests.is_exact,
        addresses,
    )


def _is_vector(offsets: np.ndarray, active: np.ndarray, size: int) -> bool:
    """Whether the elements of every active lane are an aligned group of neighbours."""
    count = offsets.shape[2]
    if count & (count - 1):
        return False
    groups = offsets[active]
    follow = (np.diff(groups, axis=1) == size).all()
    return bool(follow and (groups[:, 0] % min(count * size, MAX_ACCESS_BYTES) == 0).all())
