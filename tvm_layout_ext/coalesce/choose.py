"""Which of the possible mappings of a block is the best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from ..analysis.nest import Nest, read_nest
from ..errors import ScheduleError
from ..ir.block_bindings import holder_of
from ..ir.evaluate import placeholder_extent
from .checks import why_none
from .comparison import served_traffic
from .cost import cost
from .privatize import PrivateBuffers
from .request import NAME
from .sectors import Traffic
from .split_reads import SplitReads


@dataclass(frozen=True)
class Outcome:
    """What was done with a block.

    Attributes
    ----------
    path : str
        ``direct``, ``shifted``, ``staged``, ``copy`` or ``reduction``.
    text : str
        One sentence.
    before, after : tuple of Traffic
        Sectors of each global access, of sampled warps and whole vectors; ``before`` with one
        element a lane in the order of the loops.
    """

    path: str
    text: str
    before: tuple[Traffic, ...]
    after: tuple[Traffic, ...]


@dataclass(frozen=True)
class Strategy:
    """One way to map a block: what it is called, and what applies it.

    ``apply`` returns a text for the report and the blocks that then access global memory.

    Attributes
    ----------
    path : str
    apply : callable
    parted : SplitReads, optional
        The program that it is for, where that is not the schedule's own, and what ``apply`` leaves
        to be inlined there.
    before : sequence of Traffic, optional
        The block in this program.
    counted : tuple of Traffic, optional
        What it moves, where a pass makes other accesses of it than the blocks show.
    lent : PrivateBuffers, optional
        The program in which the block has buffers of its own, where it has not in the schedule's.
    is_last : bool
        Whether it is only taken where all others move more than twice the sectors of before: of a
        long sum a thread for each result, which leaves most of a GPU idle where results are few.
    """

    path: str
    apply: Callable[[Any, Any], tuple[str, list[Any]]]
    parted: SplitReads | None = None
    before: Sequence[Traffic] | None = None
    counted: tuple[Traffic, ...] | None = None
    lent: PrivateBuffers | None = None
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

    ``names`` is what buffers are called in the text.
    """

    way: Strategy
    text: str
    before: Sequence[Traffic]
    after: Sequence[Traffic]
    names: dict[str, str]
    cost: float

    def outcome(self, text: str) -> Outcome:
        """Tell what was done, by the names of the user."""
        before, after = (
            tuple(replace(t, buffer=self.names.get(t.buffer, t.buffer)) for t in side)
            for side in (self.before, self.after)
        )
        return Outcome(self.way.path, _sentence(text, before, after), before, after)


def choose(
    sch: Any, block: Any, nest: Nest, before: Sequence[Traffic], ways: Sequence[Strategy]
) -> tuple[Outcome, Strategy]:
    """Try the ways on copies of the schedule; keep the one that moves the fewest sectors.

    Sectors are counted over all accesses, at a few warps, and with whole vectors. Of equally good
    ways the first wins.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
    block : SBlockRV
    nest : Nest
        The block as it is.
    before : sequence of Traffic
        Of its loops fused over the threads, one element a lane.
    ways : sequence of Strategy

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
    best = min(trials, key=lambda trial: trial.cost)
    return best.outcome("; ".join([best.text, *refusals])), best.way


def _try(
    sch: Any, block: Any, nest: Nest, before: Sequence[Traffic], ways: Sequence[Strategy]
) -> tuple[list[_Trial], list[str]]:
    """Apply each way to a copy of the schedule: what came of it, and why some are not possible."""
    trials: list[_Trial] = []
    refusals: list[str] = []
    iterations = prod(placeholder_extent(loop.extent) for loop in nest.loops)
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
        except (RuntimeError, IndexError, ValueError) as error:
            refusals.append(f"{way.path} is not possible: {_first_line(error)}")
            continue
        was = (way.before if parted else None) or before
        function = holder_of(trial.mod, trial.get(own))[1]
        trials.append(_Trial(way, text, was, after, names, cost(function)))
    return trials, refusals


def _first_line(error: Exception) -> str:
    text = str(error)
    if "Error message:" in text:
        text = text.rpartition("Error message:")[2].strip().removeprefix("ScheduleError: ")
        text = "TensorIR refuses it, " + text
    return (text.strip().splitlines() or [type(error).__name__])[0].strip().rstrip(".:")


def _sentence(what: str, before: Sequence[Traffic], after: Sequence[Traffic]) -> str:
    old = "; ".join(map(str, before)) or "not counted"
    new = "; ".join(map(str, after)) or "no access to global memory is counted"
    return f"{what}; {new}; before {old}."
