"""Which of the possible mappings of a block is the best, and whether it is better than none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from ..analysis.access import Nest, read_nest
from ..analysis.comparison import (
    SAME,
    sectors_per_iteration,
    served_traffic,
    worsened,
)
from ..analysis.evaluate import stand_in
from ..analysis.sectors import Traffic
from ..errors import ScheduleError
from .coalesce_checks import why_none
from .coalesce_cut import Count, count_as_run, count_results
from .coalesce_request import NAME
from .lent_buffers import LentBuffers
from .part_reads import PartedReads

__all__ = ["Outcome", "Start", "Way", "choose"]

#: How many times fewer sectors in all are worth an access that moves more.
_WORTH_A_LOSS = 2
#: What a block without threads needs before a kernel is made of it.
_UNBOUND = (
    f"; its loops stay unbound: bind them, or call {NAME} with another stage or vector_bytes, "
    "before the program is built for a GPU"
)


@dataclass(frozen=True)
class Outcome:
    """What was done with a block.

    Attributes
    ----------
    path : str
        ``direct``, ``shifted``, ``staged``, ``copy``, ``reduction``, or ``alone`` if nothing was
        changed.
    text : str
        One sentence: what, or why not.
    before, after : tuple of Traffic
        Sectors of each global access; ``before`` with one element a lane in the order of the loops,
        where the block was not bound yet.
    is_exact : bool
        Whether every warp was counted on both sides; of large launches some are drawn.
    """

    path: str
    text: str
    before: tuple[Traffic, ...]
    after: tuple[Traffic, ...]
    is_exact: bool = False


@dataclass(frozen=True)
class Start:
    """A block before it is mapped, its loops fused over the threads, one element a lane.

    Attributes
    ----------
    traffic : tuple of Traffic
        Counted at some warps; nothing where the loops cannot be fused so.
    sch, block : Schedule and SBlockRV, optional
        Where it was counted.
    is_starved : bool
        Whether a few threads would do all the work so, which takes longer than any sectors.
    """

    traffic: tuple[Traffic, ...] = ()
    sch: Any = None
    block: Any = None
    is_starved: bool = False

    @cached_property
    def as_run(self) -> Count | None:
        """Counted at all warps, or at more of them."""
        if self.sch is None:
            return None
        return count_as_run(self.sch, [self.block], always=True)


@dataclass(frozen=True)
class Way:
    """One way to map a block: what it is called, and what applies it.

    ``apply`` returns a text for the report and the blocks that then access global memory.

    Attributes
    ----------
    path : str
    apply : callable
    parted : PartedReads, optional
        The program that it is for, where that is not the schedule's own, and what ``apply`` leaves
        to be inlined there.
    before : Start, optional
        The block in this program.
    counted : tuple of Traffic, optional
        What it moves, where a pass makes other accesses of it than the blocks show.
    lent : LentBuffers, optional
        The program in which the block has buffers of its own, where it has not in the schedule's.
    is_last : bool
        Whether it is only taken where no other is good, however few sectors it moves.
    """

    path: str
    apply: Callable[[Any, Any], tuple[str, list[Any]]]
    parted: PartedReads | None = None
    before: Start | None = None
    counted: tuple[Traffic, ...] | None = None
    lent: LentBuffers | None = None
    is_last: bool = False

    @property
    def is_late(self) -> bool:
        """Whether no traced primitives do it, so that it waits for the pass."""
        return self.parted is not None or self.lent is not None

    def run(self, sch: Any, block: Any) -> tuple[Any, Any]:
        """Map the block for good; return the schedule and the block in it."""
        if self.lent is not None:
            sch, block = self.lent.sch, self.lent.block
        if self.parted is not None:
            sch, block = self.parted.sch, self.parted.block
        self.apply(sch, block)
        if self.parted is not None:
            self.parted.inline(sch)
        if self.lent is not None:
            sch, block = self.lent.give_back(sch, block)
        return sch, block


@dataclass(frozen=True)
class _Trial:
    """A way that was tried on a copy of the schedule.

    ``sch``, ``block`` and ``parts`` are that copy, the block and those of it that access global
    memory, ``names`` what buffers are called in the text. ``counts`` are before and after as the
    way will run, once they were asked for and can be told.
    """

    way: Way
    text: str
    before: Start
    after: tuple[Traffic, ...]
    sch: Any
    block: Any
    parts: Sequence[Any]
    names: dict[str, str]
    iterations: int | None
    counts: tuple[Count, Count] | None = None
    is_counted: bool = False

    @cached_property
    def worse(self) -> list[str]:
        """Accesses that move more than before, with both counts, if that is what takes the time."""
        if self.before.is_starved and not self.way.is_last:
            return []
        if self.counts is None:
            return worsened(self.before.traffic, self.after, self.names)
        was, now = self.counts
        exact = was.is_exact and now.is_exact
        same = 1 if exact else SAME
        return worsened(was.traffic, now.traffic, self.names, same=same, is_whole=exact)

    @property
    def cost(self) -> float:
        now = self.after if self.counts is None else self.counts[1].traffic
        return sectors_per_iteration(now)

    @property
    def part(self) -> float:
        """Sectors in all for each that was moved before, both counted alike.

        A way that was counted as it runs may stand beside one that was not: a pad of 3x4097 bytes,
        element by element, is 1.67 sectors for 32 iterations so, and 3.03 with its choices whole.
        """
        was = self.before.traffic if self.counts is None else self.counts[0].traffic
        return self.cost / (sectors_per_iteration(was) or 1)

    @property
    def losses(self) -> str:
        """Accesses that move more than before, and both counts, as text."""
        return " and ".join(self.worse)

    def is_worth_its_losses(self, others: Sequence[_Trial]) -> bool:
        """Whether it halves what the best way without a loss moves in all, or the block did."""
        return self.part * _WORTH_A_LOSS <= min((trial.part for trial in others), default=1)

    def as_run(self) -> _Trial:
        """Count it as it will run, if that can be told."""
        now = self._after_as_run()
        was = self.before.as_run if now is not None else None
        counts = (was, now) if was is not None and now is not None else None
        return replace(self, counts=counts, is_counted=True)

    def _after_as_run(self) -> Count | None:
        if self.way.counted is not None:
            return Count(self.way.counted, is_exact=True)
        # What a reduction stores, and what lanes without a row load, no part of it shows by itself.
        reduces = self.way.path == "reduction"
        count = count_as_run(self.sch, self.parts, self.iterations, always=reduces)
        if count is None or self.iterations is None or not reduces:
            return count
        results = count_results(self.sch, self.block, self.iterations)
        if results is None:
            return count
        # Where threads combine a sum, its own accesses of the result are those of registers.
        stored = {traffic.buffer for traffic in results.traffic}
        operands = tuple(traffic for traffic in count.traffic if traffic.buffer not in stored)
        return Count(operands + results.traffic, count.is_exact and results.is_exact)

    def outcome(self, text: str) -> Outcome:
        """Tell what was done, with the best counts there are, by the names of the user."""
        was, now, exact = self.before.traffic, self.after, False
        if self.counts is not None:
            was, now = (count.traffic for count in self.counts)
            exact = all(count.is_exact for count in self.counts)
        before, after = (
            tuple(replace(t, buffer=self.names.get(t.buffer, t.buffer)) for t in side)
            for side in (was, now)
        )
        return Outcome(self.way.path, _sentence(text, before, after, exact), before, after, exact)


def choose(
    sch: Any,
    block: Any,
    nest: Nest,
    before: Start,
    ways: Sequence[Way],
    narrower: Callable[[Way], Iterable[Sequence[Way]]] = lambda _: (),
) -> tuple[Outcome, Way | None]:
    """Try the ways on copies of the schedule; keep the one that moves the fewest sectors.

    A way in which an access moves more sectors than before is out, and the block is rather left as
    it was. The one exception is a way that moves, over all accesses, at most half the sectors of
    the best way without a loss: it is taken, and each access that loses is told with both counts.
    So a transpose whose rows begin inside sectors is staged, although a row that is no longer
    walked into from the one before costs its requests a sector more. Of equally good ways the
    first wins. Where few threads would have all the work before, parallelism goes first: any way
    that shares it out is better than that.

    Ways are compared at a few warps, and with whole vectors. The best is then counted as it will
    run, vectors that a condition cuts element by element. If an access is worse so, ways of the
    path with narrower vectors take its place, and the comparison starts again. A way with a loss is
    taken, and a block left as it was, once all ways are counted so that can be.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
    block : SBlockRV
    nest : Nest
        The block as it is.
    before : Start
    ways : sequence of Way
    narrower : callable
        Gives, for a way, those of its path with ever narrower vectors.

    Raises
    ------
    ScheduleError
        If no way is possible.
    """
    trials, refusals = _try(sch, block, nest, before, ways)
    if not trials:
        raise ScheduleError(
            f"{NAME} finds no legal mapping of block {nest.block.name_hint}: "
            f"{why_none(sch, block, nest) or refusals[0]}."
        )
    while True:
        good = [trial for trial in trials if not trial.worse]
        good += [t for t in trials if t.worse and t.is_worth_its_losses(good)]
        best = _fewest([trial for trial in good if not trial.way.is_last] or good or trials)
        compared = [best, *trials] if best.worse else [best]
        tried = next((trial for trial in compared if not trial.is_counted), None)
        if tried is None:
            break
        at = next(i for i, trial in enumerate(trials) if trial is tried)
        trials[at] = tried.as_run()
        if trials[at].worse and not tried.worse:
            known = {trial.text for trial in trials}
            trials[at:at] = _narrow(sch, block, nest, before, narrower(tried.way), known)
    if not good:
        text = f"left as it was, because {best.text} moves more for {best.losses}"
        if not any("Idx" in loop.kind for loop in nest.loops):
            text += _UNBOUND
        alone = best.outcome(text)
        return replace(alone, path="alone", after=alone.before), None
    text = "; ".join([best.text, *_remarks(trials, best), *refusals])
    return best.outcome(text), best.way


def _narrow(
    sch: Any,
    block: Any,
    nest: Nest,
    before: Start,
    ways: Iterable[Sequence[Way]],
    known: set[str],
) -> list[_Trial]:
    """Try the next narrower ways that were not tried yet, if there are any."""
    for some in ways:
        trials, _ = _try(sch, block, nest, before, some)
        new = [trial for trial in trials if trial.text not in known]
        if new:
            return new
    return []


def _remarks(trials: Sequence[_Trial], best: _Trial) -> list[str]:
    """What the best way loses, and what a way that was passed over would have gained."""
    if best.worse:
        return [f"moves half or less in all, but more for {best.losses}"]
    first = _fewest([trial for trial in trials if not trial.way.is_last] or trials)
    if first is best or not first.worse or first.cost * SAME >= best.cost:
        return []
    return [f"{first.text} would move fewer in all, but more for {first.losses}"]


def _try(
    sch: Any, block: Any, nest: Nest, before: Start, ways: Sequence[Way]
) -> tuple[list[_Trial], list[str]]:
    """Apply each way to a copy of the schedule: what came of it, and why some are not possible."""
    trials: list[_Trial] = []
    refusals: list[str] = []
    iterations = prod(stand_in(loop.extent) for loop in nest.loops)
    for way in ways:
        parted = way.parted
        start, own, names = sch, block, {}
        if way.lent is not None:
            start, own = way.lent.sch, way.lent.block
        if parted is not None:
            start, own, names = parted.sch, parted.block, parted.originals
        trial = start.copy()
        try:
            text, touching = way.apply(trial, own)
            after = way.counted
            if after is None:
                parts = (read_nest(trial, part) for part in touching)
                after = tuple(t for part in parts for t in served_traffic(part, iterations))
        except (RuntimeError, IndexError, ScheduleError) as error:
            refusals.append(f"{way.path} is not possible: {_first_line(error)}")
            continue
        was = (way.before if parted else None) or before
        served = None if way.path in ("direct", "copy") else iterations
        trials.append(_Trial(way, text, was, after, trial, own, touching, names, served))
    return trials, refusals


def _fewest(trials: Sequence[_Trial]) -> _Trial:
    best = trials[0]
    for trial in trials[1:]:
        if trial.cost * SAME < best.cost:
            best = trial
    return best


def _first_line(error: Exception) -> str:
    text = str(error)
    if "Error message:" in text:
        text = text.rpartition("Error message:")[2].strip().removeprefix("ScheduleError: ")
        text = "TensorIR refuses it, " + text
    return (text.strip().splitlines() or [type(error).__name__])[0].strip().rstrip(".:")


def _sentence(
    what: str, before: Sequence[Traffic], after: Sequence[Traffic], is_exact: bool
) -> str:
    old = "; ".join(map(str, before)) or "not counted"
    new = "; ".join(map(str, after)) or "no access to global memory is counted"
    how = "" if is_exact or not after else ", sampled"
    return f"{what}; {new}; before {old}{how}."
