"""How many threads a block has, and how many vectors each of them takes, where accesses agree."""

from __future__ import annotations

from math import prod

from ..analysis.nest import Access, Nest
from ..gpu.hardware import MAX_ACCESS_BYTES, WARP_SIZE
from ..ir.evaluate import placeholder_extent
from .mapping import Mapping

#: Threads of a block whose accesses agree. On an H200 a copy of 16384^2 halves ran at 4.26 TB/s so,
#: 4.24 with 256 and 4.22 with 512; two vectors a thread took it to 4.24, four of 1 GiB from 251.7
#: to 263 us.
_THREADS = 128
#: Bytes that a thread moves where accesses are narrower than full vectors, or go where another load
#: tells: both wait less for two at once (a gather of rows took 128.8 us, one vector 132).
_THREAD_BYTES = 32
#: Most accesses of a thread that are on their way together, however narrow.
_STEPS = 4
#: Results for an element that is loaded, from which on they count as written only. Blocks of 128
#: vectors would then be handed out more slowly than memory takes them: 438 MB of one float went in
#: 132 us, 0.62 ns a block, and take 98.6 us by 256 threads of 4 vectors (108 by 128).
_REPEATED = 4
#: Blocks below which more of them matter more than steps a thread.
_MANY_BLOCKS = 512


def groups_of(mapping: Mapping) -> int:
    """Vectors in all."""
    run = prod(placeholder_extent(loop.extent) for loop in mapping.inner)
    outer = prod(placeholder_extent(loop.extent) for loop in mapping.order[: -mapping.run])
    return outer * -(-run // mapping.vector)


def threads_for(nest: Nest, mapping: Mapping, asked: int | None) -> int:
    """Threads of a block, if none are asked for; less than usual where there is less to do."""
    enough = WARP_SIZE * max(1, -(-groups_of(mapping) // WARP_SIZE))
    return asked or min(_THREADS * (2 if _is_repeated(nest) else 1), enough)


def lanes_of(threads: int) -> int:
    """Lanes of a warp: 32, or as many as fill warps of fewer alike."""
    return min(WARP_SIZE, threads & -threads)


def steps_of(nest: Nest, mapping: Mapping, threads: int) -> int:
    """Vectors of a thread, less where there are not blocks enough."""
    steps = _steps(nest, mapping)
    while steps > 1 and groups_of(mapping) < steps * threads * _MANY_BLOCKS:
        steps //= 2
    return steps


def _steps(nest: Nest, mapping: Mapping) -> int:
    """Accesses that a thread does one after the other, by the widest that memory takes."""
    if _is_repeated(nest):
        return _STEPS
    widest = widest_access(nest, mapping.vector)
    is_affine = all(access.is_affine() for access in nest.of_scope("global"))
    if widest >= MAX_ACCESS_BYTES and is_affine:
        return 1
    return max(1, min(_STEPS, _THREAD_BYTES // widest))


def widest_access(nest: Nest, vector: int) -> int:
    """Bytes of the widest access of so many elements that memory takes.

    What is loaded again and again comes out of caches: two volumes of 96 x 96 x 96, by factors of
    32 channels of four bytes each, took 134 us while these counted, 50 since (H200).
    """
    accesses = nest.of_scope("global")
    fresh = [one for one in accesses if one.kind != "load" or _times(nest, one) < _REPEATED]
    return vector * max((access.bytes for access in fresh or accesses), default=1)


def _is_repeated(nest: Nest) -> bool:
    """Whether all that is loaded is stored several times, so that loads take no time."""
    return all(_times(nest, access) >= _REPEATED for access in nest.global_loads())


def _times(nest: Nest, access: Access) -> float:
    """How often an element is accessed."""
    again = (
        placeholder_extent(loop.extent)
        for loop, step in zip(nest.loops, access.steps, strict=True)
        if step is not None and placeholder_extent(step) == 0
    )
    return prod(again)
