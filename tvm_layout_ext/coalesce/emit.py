"""From a thread map to a schedule, by TVM's traced primitives: split, reorder, fuse, bind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod
from typing import Any

from ..analysis.assumptions import NO_ASSUMPTIONS, Assumptions, Prover
from ..analysis.nest import Loop, Nest
from .thread_map import ThreadMap

DEFAULT_THREADS = 256


@dataclass(frozen=True)
class Iterator:
    """Loops that a thread map takes as one."""

    loops: tuple[Loop, ...]  #: Outermost first
    run: int  #: How many of the innermost walk on contiguously; a vector goes along these alone

    @property
    def name(self) -> str:
        """The loops' names, the outermost first."""
        return "*".join(str(loop.var.name) for loop in self.loops)


@dataclass(frozen=True)
class Spread:
    """Loops of a block that was spread by a thread map."""

    grid: Any  #: None where the map has no blocks
    thread: Any
    registers: list[Any]
    vectors: list[Any]


def in_order(sch: Any, block: Any, nest: Nest, order: Sequence[Loop]) -> list[Any]:
    """Reorder the loops of a block and return their random variables, outermost first."""
    refs = sch.get_loops(block)
    chosen = [refs[nest.position(loop)] for loop in order]
    if len(chosen) > 1:
        sch.reorder(*chosen)
    return chosen


def fuse(sch: Any, loops: Sequence[Any]) -> Any:
    """Fuse loops; a single one stays."""
    return loops[0] if len(loops) == 1 else sch.fuse(*loops)


def split_whole(
    sch: Any, loop: Any, factors: Sequence[int | None], assumptions: Assumptions
) -> list[Any]:
    """Split a loop, without a guard where the function promises that the factors divide it."""
    extent = sch.get(loop).extent
    inner = prod(factor or 1 for factor in factors)
    whole = bool(assumptions.conditions) and Prover(assumptions.conditions).is_multiple(
        extent, inner
    )
    return list(sch.split(loop, list(factors), disable_predication=whole))


def schedule_map(
    sch: Any,
    block: Any,
    nest: Nest,
    iterators: Sequence[Iterator],
    threads: ThreadMap,
    kernel: dict[str, int] | None = None,
) -> None:
    """Bind a nest as a thread map says; the loops of a reduction stay inside.

    ::

        for i in range(64):              # vector j 4, lane j 8 i 4, warp i 8, block i rest
            for j in range(32):          for block in T.thread_binding(2):
                B[i, j] = A[i, j + 4]        for thread in T.thread_binding(256):
                                                 for v in T.vectorized(4): ...

    ``iterators`` have all free loops, by the iterators of the map. ``kernel`` has the thread axes
    of the kernel around the block; None binds ``blockIdx.x`` and ``threadIdx.x``.
    """
    order = [loop for iterator in iterators for loop in iterator.loops]
    sums = [loop for loop in nest.loops if loop.is_reduction and loop.is_perfect]
    refs = in_order(
        sch, block, nest, [*order, *(s for s in sums if all(s is not o for o in order))]
    )
    fused, vectors = [], []
    rest = ThreadMap(threads.names, tuple(p for p in threads.parts if p.level != "vector"))
    for at, iterator in enumerate(iterators):
        own = [refs.pop(0) for _ in iterator.loops]
        outer, run = own[: -iterator.run], fuse(sch, own[-iterator.run :])
        width = prod(p.count or 1 for p in threads.of_iterator(at) if p.level == "vector")
        if width > 1:
            run, vector = split_whole(sch, run, [None, width], nest.assumptions)
            vectors.append(vector)
        fused.append(fuse(sch, [*outer, run]))
    bind(sch, replace(spread(sch, fused, rest, nest.assumptions), vectors=vectors), kernel)


def spread(
    sch: Any,
    loops: Sequence[Any],
    threads: ThreadMap,
    assumptions: Assumptions = NO_ASSUMPTIONS,
    *,
    in_turns: bool = False,
) -> Spread:
    """Split loops, one an iterator, into a map's digits, and nest these by level.

    The digits of blocks become one loop, and so do those of warps and lanes. With ``in_turns``
    registers outside of these are part of that loop until threads are split off: else TVM 0.27
    finds no bound for a tile of symbolic size.
    """
    parts = _merged(threads)
    digits: dict[int, Any] = {}
    for at, loop in enumerate(loops):
        own = [i for i, (_, iterator, _) in enumerate(parts) if iterator == at]
        counts = [parts[i][2] for i in reversed(own)]
        split = [loop]
        if len(own) > 1:
            split = split_whole(sch, loop, [None, *counts[1:]], assumptions)
        digits |= dict(zip(reversed(own), split, strict=False))
    nested = [(parts[i][0], digits[i]) for i in sorted(digits, reverse=True)]
    if len(loops) > 1:
        sch.reorder(*(loop for _, loop in nested))
    levels: dict[str, list[Any]] = {}
    for level, group in groupby(nested, key=lambda pair: pair[0]):
        found = [loop for _, loop in group]
        if level == "thread" and in_turns:
            turns = levels.pop("register", [])
            turn, *found = sch.split(fuse(sch, [*turns, *found]), [None, threads.threads])
            levels["register"] = [turn]
        elif level in ("block", "thread"):
            found = [fuse(sch, found)]
        levels.setdefault(level, []).extend(found)
    grid, thread = (levels.get(level, [None])[0] for level in ("block", "thread"))
    return Spread(grid, thread, levels.get("register", []), levels.get("vector", []))


def _merged(threads: ThreadMap) -> list[tuple[str, int, int | None]]:
    """Level, iterator and count of the loops that a map needs: lanes and warps are threads.

    Digits of an iterator that follow each other on one of these levels are one loop.
    """
    found: list[tuple[str, int, int | None]] = []
    for part in threads.parts:
        level = "thread" if part.level in ("lane", "warp") else part.level
        last = found[-1] if found else None
        if last is not None and last[:2] == (level, part.iterator) and last[2] and part.count:
            found[-1] = (level, part.iterator, last[2] * part.count)
        else:
            found.append((level, part.iterator, part.count))
    return found


def bind(sch: Any, loops: Spread, kernel: dict[str, int] | None = None) -> None:
    """Bind the loops of a spread block, unroll those of its registers, and make its vectors."""
    if loops.grid is not None:
        sch.bind(loops.grid, "blockIdx.x")
    if kernel is None:
        sch.bind(loops.thread, "threadIdx.x")
    else:
        _bind_kernel(sch, loops.thread, kernel)
    for loop in loops.registers:
        sch.unroll(loop)
    for loop in loops.vectors:
        sch.vectorize(loop)


def _bind_kernel(sch: Any, thread: Any, threads: dict[str, int]) -> None:
    """Bind a loop over all threads of a kernel to its thread axes, ``threadIdx.x`` innermost."""
    axes = sorted(threads, reverse=True)
    parts = [thread]
    if len(axes) > 1:
        parts = sch.split(thread, [threads[axis] for axis in axes])
    for loop, axis in zip(parts, axes, strict=True):
        sch.bind(loop, axis)
