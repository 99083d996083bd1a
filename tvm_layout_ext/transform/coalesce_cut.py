"""Count a mapped block as it will run: vectors that a condition cuts go element by element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import tvm_ffi
from tvm import tirx

from ..analysis.access import Access, read_nest
from ..analysis.conditions import conjuncts
from ..analysis.sectors import Traffic, count_requests, sample_warps, vector_width, warps_of
from ..analysis.tir import depends_on
from .coalesce_parts import (
    MOST_WARPS,
    Part,
    Store,
    Vector,
    has_choices,
    is_branched,
    is_plain,
    is_several,
    read_part,
)
from .guard_vectors import at_end

__all__ = ["Count", "count_as_run", "count_results"]


@dataclass(frozen=True)
class Count:
    """Global accesses of a block, or of its parts.

    Attributes
    ----------
    traffic : tuple of Traffic
        In the order of the accesses.
    is_exact : bool
        Whether every warp was counted, not some that were drawn, and no loaded value decides what
        is loaded.
    """

    traffic: tuple[Traffic, ...]
    is_exact: bool


def count_as_run(
    sch: Any, blocks: Sequence[Any], iterations: int | None = None, *, always: bool = False
) -> Count | None:
    """Count the global accesses of a mapped block with its choices and cut vectors as lowered.

    A vector whose elements differ in a condition is done element by element (``GuardVectors``), and
    so is each vector under a condition that this pass leaves to TVM. A load in a choice counts only
    where it is done, or everywhere if loaded values decide.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
    blocks : sequence of SBlockRV
        The block, its loops bound, or the parts that now access global memory.
    iterations : int, optional
        Iterations of the block that the parts serve; by default those of a part are its own.
    always : bool
        Also count more warps than ``MOST_WARPS`` where no vector can be cut.

    Returns
    -------
    Count or None
        None where a size is symbolic, a body with ``let`` statements reduces to one result, or an
        ``if`` cuts a vector; where there are more warps than ``MOST_WARPS``, no condition cuts a
        vector and nothing is chosen, as a few warps tell as much then.
    """
    nests = [read_nest(sch, block) for block in blocks]
    known = all(loop.size is not None for nest in nests for loop in nest.loops)
    if not known or not all(is_plain(n) or is_several(n) or is_branched(n) for n in nests):
        return None
    is_small = all(warps_of(nest.loops) <= MOST_WARPS for nest in nests)
    pairs = zip(blocks, nests, strict=True)
    parts = [read_part(sch, block, nest) for block, nest in pairs if nest.of_scope("global")]
    chooses = any(map(has_choices, nests)) or any(part.is_cut for part in parts)
    if not (always or is_small or chooses):
        return None
    counted = (traffic for part in parts for traffic in _count_part(part, iterations))
    return Count(tuple(counted), is_small and not any(part.asks_values for part in parts))


def count_results(sch: Any, block: Any, iterations: int) -> Count | None:
    """Count the stores of a mapped reduction's results: once each, by the first lane of its row.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
    block : SBlockRV
        The reduction; what it sums in registers, other blocks store, one a result.
    iterations : int
        Iterations of the reduction before it was mapped.

    Returns
    -------
    Count or None
        None where a size is symbolic, or the body has ``let`` statements for one result.
    """
    consumers = sch.get_consumers(block)
    kept = read_nest(sch, block).of_scope("local")
    writers = consumers if consumers and any(a.kind == "store" for a in kept) else [block]
    counts = [_count_writer(sch, writer, iterations) for writer in writers]
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        return None
    traffic = tuple(one for count in known for one in count.traffic)
    return Count(traffic, all(count.is_exact for count in known))


def _count_writer(sch: Any, writer: Any, iterations: int) -> Count | None:
    """Count what a block stores of results."""
    nest = read_nest(sch, writer)
    is_known = is_plain(nest) or is_several(nest)
    if not is_known or any(loop.size is None for loop in nest.loops):
        return None
    sums = [loop for loop in nest.loops if loop.is_reduction]
    serial = {loop.var: np.zeros((1, 1), np.int64) for loop in sums if "Idx" not in loop.kind}
    once = [loop for loop in nest.loops if not loop.is_reduction or "Idx" in loop.kind]
    env, lanes = sample_warps(once, MOST_WARPS)
    env |= serial
    active = reduce(np.logical_and, (env[loop.var] == 0 for loop in sums), lanes >= 0)
    vector = Vector(None, 1, env, active)
    guard = vector.holds(read_part(sch, writer, nest).guard)[0]
    warps = warps_of(once)
    counted: list[Traffic] = []
    for access in nest.of_scope("global"):
        if access.kind == "store":
            asked = [(vector.offsets(access)[0], 1, active & guard)]
            found = _traffic(access, asked, iterations * len(active) / warps)
            counted += [found] if found is not None else []
    return Count(tuple(counted), warps <= MOST_WARPS)


def _is_kept(part: Part, conditions: Sequence[Any], stores: Sequence[Store]) -> bool:
    """Whether ``GuardVectors`` keeps the vectors that no condition cuts."""
    vector = part.vector
    extent = tirx.IntImm(vector.var.ty.dtype, vector.lanes)
    zero = tirx.Evaluate(0)
    loop = tirx.For(vector.var, extent * 0, extent, tirx.ForKind.VECTORIZED, zero)
    if any(at_end(one, loop) is None for whole in conditions for one in conjuncts(whole)):
        return False
    # Shared tiles get their layout when the program is lowered.
    accesses = [a for store in stores for a, _ in store.accesses if "shared" not in a.scope]
    moved = [access for access in accesses if depends_on(access.offset, vector.var)]
    try:
        return all(not (vector.offsets(a)[0] % vector.lanes).any() for a in moved)
    except KeyError:
        return False


def _kinds(part: Part, store: Store, held: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Lanes that do whole vectors together, in one or two forms, and those that do elements."""
    vector = part.vector
    every = np.ones_like(vector.active)
    choices = [one for one in store.choices if vector.cuts(one)]
    is_guarded = vector.cuts(part.guard)
    if not choices and not is_guarded:
        return [every], ~every
    kept = all(tvm_ffi.structural_equal(choices[0], one) for one in choices)
    kept = kept and (not is_guarded or _is_kept(part, [part.guard], part.stores))
    if not kept or not _is_kept(part, choices[:1], [store]):
        return [], every
    inside = np.asarray(held.all(0))
    if not choices:
        return [inside], ~inside
    taken = vector.holds(choices[0])
    kinds = [np.asarray(inside & both) for both in (taken.all(0), ~taken.any(0))]
    return kinds, ~(kinds[0] | kinds[1])


def _count_part(part: Part, iterations: int | None) -> list[Traffic]:
    vector = part.vector
    held = vector.holds(part.guard) & vector.active
    served_by_all = float(held.sum())
    if iterations is not None:
        served_by_all = iterations * len(vector.active) / warps_of(part.nest.loops)
    counted: list[Traffic] = []
    for store in part.stores:
        kinds, cut = _kinds(part, store, held)
        for access, condition in store.accesses:
            if access.scope != "global":
                continue
            try:
                first = vector.offsets(access)
            except KeyError:
                continue
            done = held & vector.holds(condition)
            width, served = vector_width(access, part.nest.loops, vector.env)
            steps = [0] if width > 1 or served > 1 else range(vector.lanes)
            requests = [(first[v], width, kind & done[v]) for kind in kinds for v in steps]
            if cut.any():
                requests += [(first[v], 1, cut & done[v]) for v in range(vector.lanes)]
            found = _traffic(access, requests, served_by_all)
            if found is not None:
                counted.append(found)
    return counted


def _traffic(
    access: Access, requests: list[tuple[np.ndarray, int, np.ndarray]], iterations: float
) -> Traffic | None:
    """Count requests: first elements, elements a lane, and the lanes that ask."""
    number, sectors, least, widest = 0, 0, 0, 1
    for first, width, mask in requests:
        found = count_requests(access, first, width, mask)
        number, sectors, least = number + found[0], sectors + found[1], least + found[2]
        widest = max(widest, width if found[0] else 1)
    if not number:
        return None
    size = widest * access.bytes
    return Traffic(
        access.name, access.kind, iterations / number, size, sectors / number, least / number
    )
