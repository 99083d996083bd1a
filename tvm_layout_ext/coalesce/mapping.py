"""Which loop order and which vector width suit all accesses of a block, or which do not agree.

A warp does 32 neighbouring groups of iterations at a time, so the innermost loops decide which
bytes it touches together. Every access has the order that it would like best: its loops by falling
step. The order of the store wins, unless another moves fewer sectors in all; a load that would
waste sectors in it, and would not in its own, disagrees and is better staged through shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from ..analysis.nest import Access, Loop, Nest
from ..gpu.hardware import WARP_SIZE
from ..ir.conditions import same_at_ends
from ..ir.evaluate import evaluate, placeholder_extent
from .sectors import estimate

#: Sectors over the least possible from which on an access counts as badly walked.
_WASTEFUL = 1.3
#: Iterations up to which any waste counts: the last request, which is not full, is much of them.
_FEW = 1024
#: Iterations below which a kernel's launch takes longer than its loads, however narrow.
_SHORT_RUN = 1 << 16
#: Values of a guard that are looked at.
_MOST_GUARDS = 1 << 20


@dataclass(frozen=True)
class Mapping:
    """How the iterations of a block follow each other."""

    order: tuple[Loop, ...]  #: The loops, the innermost last
    run: int  #: How many of the innermost loops walk on contiguously in every access, as one
    vector: int  #: Neighbouring iterations of that run that a thread does at once
    #: Loads that waste sectors in this order, but would not in their own.
    disagreeing: tuple[Access, ...]

    @property
    def inner(self) -> tuple[Loop, ...]:
        """The loops of the run."""
        return self.order[len(self.order) - self.run :]


def choose_mapping(nest: Nest, loops: Sequence[Loop], most_bytes: int) -> Mapping:
    """Choose order and vector for the free loops of a block.

    ``most_bytes`` are those of the widest instruction wanted.
    """
    accesses = nest.of_scope("global") or list(nest.accesses)
    orders = _candidates(nest, accesses, loops)
    return _mapping(nest, loops, min(orders, key=lambda o: _cost(accesses, o)), most_bytes)


def store_mapping(nest: Nest, loops: Sequence[Loop], most_bytes: int) -> Mapping:
    """Choose the order that the store would like best, and the loads that disagree with it."""
    store = next(access for access in nest.accesses if access.kind != "load")
    return _mapping(nest, loops, own_order(store, nest, loops), most_bytes)


def _mapping(nest: Nest, loops: Sequence[Loop], order: list[Loop], most_bytes: int) -> Mapping:
    accesses = nest.of_scope("global")
    run = merged_run(nest.accesses, nest.loops, order)
    conditions = [*nest.conditions, *nest.choices]
    guards = [*([nest.predicate] if nest.is_guarded else []), *conditions]
    for guard in guards:
        run = _unguarded_run(guard, order[len(order) - run :])
    inner = order[len(order) - run :]
    vector = min(widest_vector(nest, inner, most_bytes), _iterations(loops) // WARP_SIZE)
    vector = _power_of_two_up_to(vector)
    while vector > 1 and not (
        (not nest.is_guarded or _one_guard(nest.predicate, nest, inner, vector))
        and all(_is_whole(condition, nest, inner, vector) for condition in conditions)
    ):
        vector //= 2
    if run == len(order):
        vector = _without_rest(vector, inner)
    bad = [a for a in accesses if a.kind == "load" and _disagrees(a, nest, loops, order)]
    return Mapping(tuple(order), run, vector, tuple(bad))


def _unguarded_run(guard: Any, run: Sequence[Loop]) -> int:
    """Count the innermost loops of a run that a guard names none of, but at least one."""
    named = tirx.analysis.undefined_vars(guard)
    free = 0
    for loop in reversed(run):
        if any(loop.var.same_as(var) for var in named):
            break
        free += 1
    return max(1, free)


def _one_guard(guard: Any, nest: Nest, run: Sequence[Loop], vector: int) -> bool:
    """Whether a guard of a block, or in it, holds for all elements of a vector or for none.

    A vector that it cuts goes element by element, with gaps between the lanes.
    """
    named = tirx.analysis.undefined_vars(guard)
    last = run[-1]
    if not any(last.var.same_as(var) for var in named):
        return True
    loops = [loop for loop in nest.loops if any(loop.var.same_as(var) for var in named)]
    sizes = [loop.size or 0 for loop in loops]
    if not 0 < prod(sizes) <= _MOST_GUARDS or (last.size or 0) % vector:
        return False
    values = dict(zip((loop.var for loop in loops), np.indices(sizes), strict=True))
    try:
        holds = np.broadcast_to(evaluate(guard, values), sizes)
    except KeyError:
        return False
    along = next(i for i, loop in enumerate(loops) if loop is last)
    vectors = np.moveaxis(holds, along, -1).reshape(-1, vector)
    return bool((vectors == vectors[:, :1]).all())


def _is_whole(condition: Any, nest: Nest, run: Sequence[Loop], vector: int) -> bool:
    """Whether the condition of an ``if`` holds for all elements of a vector or for none.

    Of a symbolic bound that is not known, whatever it would be for the number it counts as.
    """
    last, named = run[-1], tirx.analysis.undefined_vars(condition)
    if not any(last.var.same_as(var) for var in named):
        return True
    if (last.size or 0) % vector == 0 and same_at_ends(condition, last.var, vector):
        return True
    own = [loop.var for loop in nest.loops]
    known = all(any(var.same_as(one) for one in own) for var in named)
    return known and _one_guard(condition, nest, run, vector)


def _without_rest(vector: int, run: Sequence[Loop]) -> int:
    """Narrow a vector to fit a short run, whose rest would go element by element."""
    total = _iterations(run)
    while vector > 1 and total % vector and total < _SHORT_RUN and all(loop.size for loop in run):
        vector //= 2
    return vector


def _iterations(loops: Sequence[Loop]) -> int:
    return prod(placeholder_extent(loop.extent) for loop in loops)


def _power_of_two_up_to(value: int) -> int:
    return 1 << max(0, value.bit_length() - 1)


def own_order(access: Access, nest: Nest, loops: Sequence[Loop]) -> list[Loop]:
    """Loops by falling step; those along which the access stays or jumps about come first."""

    def key(loop: Loop) -> tuple[int, int]:
        step = nest.step(access, loop)
        size = 0 if step is None else abs(placeholder_extent(step))
        return (0, 0) if size == 0 or loop.size == 1 else (1, -size)

    return sorted(loops, key=key)


def _candidates(nest: Nest, accesses: list[Access], loops: Sequence[Loop]) -> list[list[Loop]]:
    stores = [a for a in accesses if a.kind != "load"]
    voters = [*stores, *(a for a in accesses if a.kind == "load")]
    orders = [own_order(a, nest, loops) for a in voters if _walks(a, nest, loops)]
    return orders or [list(loops)]


def _walks(access: Access, nest: Nest, loops: Sequence[Loop]) -> bool:
    """Whether some loop walks the access contiguously."""
    return any(nest.step(access, loop) == 1 and loop.size != 1 for loop in loops)


def _cost(accesses: list[Access], order: list[Loop]) -> float:
    counts = (estimate(access, order) for access in accesses)
    return round(sum(count.sectors for count in counts if count is not None), 3)


def _disagrees(access: Access, nest: Nest, loops: Sequence[Loop], order: Sequence[Loop]) -> bool:
    here = estimate(access, order)
    own = estimate(access, own_order(access, nest, loops))
    if here is None or own is None or not _walks(access, nest, loops):
        return False
    wasteful = 1 if _iterations(loops) <= _FEW else _WASTEFUL
    return here.sectors > wasteful * own.sectors and here.waste > wasteful


def merged_run(accesses: Sequence[Access], all_loops: Sequence[Loop], order: Sequence[Loop]) -> int:
    """Count the innermost loops that every access walks as if they were one loop."""
    where = [next(i for i, other in enumerate(all_loops) if other is loop) for loop in order]
    run = 1
    while run < len(order):
        outer, inner = where[-run - 1], where[-run]
        extent = all_loops[inner].extent
        if not all(_continues(a.steps[outer], a.steps[inner], extent) for a in accesses):
            break
        run += 1
    return run


def merged_groups(nest: Nest, mapping: Mapping) -> list[list[Loop]]:
    """Part loops into runs that every access walks as one loop, the outermost run first."""
    groups: list[list[Loop]] = []
    rest = list(mapping.order)
    while rest:
        run = merged_run(nest.accesses, nest.loops, rest)
        groups.insert(0, rest[len(rest) - run :])
        rest = rest[: len(rest) - run]
    return groups


def _continues(outer: Any, inner: Any, extent: Any) -> bool:
    if outer is None or inner is None:
        return False
    return bool(tvm.sym.Analyzer().can_prove_equal(outer, inner * extent))


def widest_vector(nest: Nest, run: Sequence[Loop], most_bytes: int) -> int:
    """Find the neighbours along a run that all accesses can take in one instruction each.

    An access that stays at one element does not mind; one with gaps, or that jumps about, is best
    left to single elements, so that neighbouring lanes take neighbouring ones. One that goes on in
    groups, as the heads of ``b[c // 64, s, c % 64]``, or stays in each, takes no more than a group.

    A store thereby never exceeds its own width, nor does a load. Triton lets a float32 load beside
    a float16 store take 8 elements a thread, as two instructions; here each of the two would touch
    half of every sector, 32 sectors for 512 bytes instead of 16, so both take 4. An atomic takes
    one: TVM's calls of atomics have one element, although sm_90 could add 16 bytes at once.
    """
    widths = []
    for access in nest.accesses:
        if access.kind == "atomic":
            return 1
        step = nest.step(access, run[-1])
        walks, stays = nest.groups(access, run[-1]) if step is None else (1, 1)
        if step == 1 or walks > 1:
            width = access.vector(run, most_bytes)
            widths.append(width if step == 1 else min(walks, width))
        elif step != 0:
            widths.append(stays)
    return min([*widths, _power_of_two_up_to(_iterations(run))])
