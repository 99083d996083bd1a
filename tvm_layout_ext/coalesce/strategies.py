"""The ways in which a block can be mapped, in the order in which equally good ones are taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from ..analysis.nest import Loop, Nest
from ..errors import ScheduleError
from ..ir.block_body import one_element
from ..ir.queries import loads_in
from .blocked import schedule_blocked, spread
from .checks import threads_of
from .choose import Strategy
from .direct import schedule_copy, schedule_direct, threads_for
from .guarded_loads import guarded_outside
from .mapping import Mapping, choose_mapping, merged_groups, store_mapping
from .reduction.propose import propose_reduction
from .request import Request
from .shifted.apply import shifted_way
from .staging.apply import UnboundedTileError, schedule_staged
from .store_policy import evict_last_stores

#: What applies a mapping to a block of a schedule.
_Apply = Callable[[Any, Any, Mapping], None]
#: Threads of a block to try where TVM does not find the bound of a tile with those asked for.
_FEWER_THREADS = (512, 256, 128, 64, 32)


def identity_mapping(free: Sequence[Loop]) -> Mapping:
    """Loops in their order, one element a lane."""
    return Mapping(tuple(free), 1, 1, ())


def list_strategies(
    nest: Nest, free: Sequence[Loop], kernel: dict[str, int] | None, request: Request
) -> list[Strategy]:
    """List the ways to try for a block.

    Parameters
    ----------
    nest : Nest
        The block.
    free : sequence of Loop
        Its loops that may be mapped.
    kernel : dict of str to int, optional
        Thread axes of the kernel around it.
    request : Request
    """
    mapping = choose_mapping(nest, free, request.vector_bytes)
    if kernel is not None:
        share_out = _sums if any(loop.is_reduction for loop in nest.loops) else _copies
        return share_out(nest, free, mapping, threads_of(nest, kernel, request))
    if any(loop.is_reduction for loop in nest.loops):
        return propose_reduction(nest, request)
    direct = _direct(nest, free, mapping, request.num_threads)
    shifted = shifted_way(nest, free, mapping, request.vector_bytes, request.num_threads)
    if shifted is not None:
        direct.append(shifted)
    staged = _staged(nest, free, request)
    if request.stage == "none" or staged is None:
        return direct
    return [staged] if request.stage == "shared" else [*direct, staged]


def _elements(nest: Nest, mapping: Mapping) -> str:
    if any(access.kind == "atomic" for access in nest.accesses):
        return "one element a lane as atomics take"
    return f"vectors of {mapping.vector}"


def _copies(
    nest: Nest, free: Sequence[Loop], mapping: Mapping, threads: dict[str, int]
) -> list[Strategy]:
    """Spread a block over the threads that its kernel has.

    Shared memory on either side keeps its layout: which swizzle suits it is for the accesses of
    its other users to say, whose loops may not be bound yet.
    """

    def flat(sch: Any, block: Any, mapping: Mapping) -> None:
        schedule_copy(sch, block, nest, mapping, threads)

    what = "spread over the kernel's threads"
    ways = [
        _way("copy", f"{what}, {_elements(nest, mapping)}", flat, mapping),
        _way("copy", f"{what} in the order of the loops", flat, identity_mapping(free)),
    ]
    return [*ways, *_blocked("copy", nest, mapping, prod(threads.values()), threads)]


def _sums(
    nest: Nest, free: Sequence[Loop], mapping: Mapping, threads: dict[str, int]
) -> list[Strategy]:
    """Spread the results of a reduction over the threads of its kernel; each sums its own."""
    data = [loop for loop in free if not loop.is_reduction]
    best = [loop for loop in mapping.order if not loop.is_reduction]

    def run(sch: Any, block: Any, mapping: Mapping) -> None:
        if not data:
            raise ScheduleError("there is one result, which one thread alone would sum")
        schedule_copy(sch, block, nest, mapping, threads)

    what = "a thread of the kernel for each result"
    return [
        _way("copy", what, run, identity_mapping(best)),
        _way("copy", f"{what} in the order of the loops", run, identity_mapping(data)),
    ]


def _direct(
    nest: Nest, free: Sequence[Loop], mapping: Mapping, num_threads: int | None
) -> list[Strategy]:
    """Bind the block's own loops."""

    def flat(sch: Any, block: Any, mapping: Mapping) -> None:
        schedule_direct(sch, block, nest, mapping, num_threads)

    wide = _way("direct", f"direct, {_elements(nest, mapping)}", flat, mapping)
    plain = _way("direct", "direct, in the order of the loops", flat, identity_mapping(free))
    blocked = _blocked("direct", nest, mapping, threads_for(mapping, num_threads), None)
    return [
        evict_last_stores(wide, nest, mapping),
        plain,
        *(evict_last_stores(w, nest, mapping) for w in blocked),
    ]


def _way(path: str, text: str, apply: _Apply, mapping: Mapping) -> Strategy:
    def run(sch: Any, block: Any) -> tuple[str, list[Any]]:
        apply(sch, block, mapping)
        return text, [block]

    return Strategy(path, run)


def _blocked(
    path: str, nest: Nest, mapping: Mapping, threads: int, kernel: dict[str, int] | None
) -> list[Strategy]:
    """Lanes and warps by dimension, where loops do not merge and the builder can tell."""
    groups = merged_groups(nest, mapping)
    layout = spread(groups, mapping.vector, threads)
    if layout is None:
        return []
    lanes = "x".join(map(str, layout.threads_per_warp))
    warps = "x".join(map(str, layout.warps_per_cta))

    def run(sch: Any, block: Any) -> tuple[str, list[Any]]:
        schedule_blocked(sch, block, nest, mapping, groups, layout, kernel)
        text = f"{path}, {lanes} lanes and {warps} warps, {_elements(nest, mapping)}"
        return text, [block]

    return [Strategy(path, run)]


def _staged(nest: Nest, free: Sequence[Loop], request: Request) -> Strategy | None:
    """Take the loads that disagree with the store through shared memory, if there are any."""
    if not any(access.kind == "store" for access in nest.accesses):
        return None
    mapping = store_mapping(nest, free, request.vector_bytes)
    if request.stage == "shared":
        loads = [access for access in nest.of_scope("global") if access.kind == "load"]
        mapping = replace(mapping, disagreeing=tuple(a for a in loads if a.is_affine()))
    if not mapping.disagreeing:
        return None

    written = [access.buffer for access in nest.accesses if access.kind != "load"]
    in_place = [
        access.name
        for access in mapping.disagreeing
        if any(access.buffer.same_as(buffer) for buffer in written)
    ]
    outside = guarded_outside(nest)
    doubtful = [a.name for a in mapping.disagreeing if any(map(loads_in, a.own_conditions))]

    def staged(sch: Any, block: Any) -> tuple[str, list[Any]]:
        if not one_element(nest.block.body):
            raise ScheduleError(
                f"Block {nest.block.name_hint} {_stores(nest)}, and what goes through registers is "
                "one element of each iteration"
            )
        if outside is not None:
            raise ScheduleError(
                f"Block {nest.block.name_hint} reads {outside} only where a condition holds, and "
                "a tile would be read outside of its shape without it"
            )
        if doubtful:
            raise ScheduleError(
                f"Block {nest.block.name_hint} reads {doubtful[0]} only where what it loads says "
                "so, and a tile would be read whole"
            )
        if in_place:
            # TVM 0.27's reindex_cache_read takes the process down on such a block.
            raise ScheduleError(
                f"Block {nest.block.name_hint} writes {in_place[0]} where it reads it"
            )
        threads = threads_of_tile(sch, block)
        return schedule_staged(sch, block, nest, mapping, threads, request.vector_bytes)

    tried: list[int | None] = []

    def threads_of_tile(sch: Any, block: Any) -> int | None:
        if not tried:
            tried.append(_bounded_threads(sch, block, nest, mapping, request))
        return tried[0]

    return Strategy("staged", staged)


def _stores(nest: Nest) -> str:
    """Say how many stores a block has that cannot all be one, or when it has one."""
    stores = [access for access in nest.accesses if access.kind == "store"]
    if len(stores) > 1:
        return f"has {len(stores)} stores"
    return f"stores {stores[0].name} only where a condition holds"


def _bounded_threads(
    sch: Any, block: Any, nest: Nest, mapping: Mapping, request: Request
) -> int | None:
    """Most threads, up to those asked for, with which TVM finds the tile of a symbolic size."""
    asked = request.num_threads
    if all(loop.size is not None for loop in nest.loops):
        return asked
    for threads in [asked, *(n for n in _FEWER_THREADS if asked is None or n < asked)]:
        try:
            schedule_staged(sch.copy(), block, nest, mapping, threads, request.vector_bytes)
        except UnboundedTileError:
            continue
        return threads
    return asked
