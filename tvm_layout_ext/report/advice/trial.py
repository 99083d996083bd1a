"""A program that somebody asks advice for, and what becomes of it if something is changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tvm
from tvm import s_tir, tirx

from ... import decisions
from ...errors import LayoutExtError
from ...ir.queries import blocks_in
from ...simulate.report import Report
from ...simulation import simulate
from ..limit import Limit, longest, read_limits


@dataclass(frozen=True)
class Advice:
    """Something to do about a kernel.

    ``text`` says what is wrong, with names and numbers, and ``line`` is the schedule to paste.
    ``seconds`` is how much less time the model gives the program then; an estimate where the
    change comes before all else in the schedule, so that it was not ``tried``.
    """

    text: str
    line: str
    seconds: float
    tried: bool = True

    def __str__(self) -> str:
        how = "modelled" if self.tried else "estimated"
        saved = f" ({how}: {1e6 * self.seconds:.2f} us less)" if self.seconds else ""
        lines = self.line.replace("\n", "\n    ")
        return f"{self.text}{saved}:\n    {lines}"


@dataclass(frozen=True)
class Attempt:
    """A program that was run on the simulated GPU, and its modelled time."""

    mod: tvm.IRModule
    report: Report
    limits: Sequence[Limit]

    @property
    def seconds(self) -> float:
        """Of all its kernels, as modelled."""
        return sum(limit.seconds for limit in self.limits)

    @property
    def limit(self) -> Limit | None:
        """Of the kernel that takes the longest."""
        return longest(self.limits)

    def grid(self, count: int, kernel: str) -> int:
        """A count of the blocks that were run, for the whole grid of their kernel."""
        launches = [one for one in self.report.launches if one.kernel == kernel]
        sampled = sum(one.sampled for one in launches)
        return round(count * sum(one.blocks for one in launches) / max(1, sampled))

    def conflicts(self, buffer: str) -> int:
        """Wavefronts over the least, of a buffer's accesses by the whole grid."""
        sites = [a for a in self.report.accesses if a.buffer == buffer]
        return sum(self.grid(a.bank_conflicts, a.kernel) for a in sites)

    def requests(self) -> int:
        """Requests to global memory by the whole grid."""
        sites = [a for a in self.report.accesses if a.scope == "global"]
        return sum(self.grid(a.requests, a.kernel) for a in sites)


def only_function(mod: tvm.IRModule) -> tuple[str, tirx.PrimFunc]:
    """Name and value of a module's only function; ValueError if it has several, or none."""
    ((var, func),) = ((g, f) for g, f in mod.functions.items() if isinstance(f, tirx.PrimFunc))
    return str(var.name_hint), func


@dataclass(frozen=True)
class Question:
    """What is asked about: a scheduled module, and the arrays to run it on.

    ``widest`` has the bytes of the widest access that each tensor of global memory allows, and
    ``is_te`` says in which face's words a line of schedule is written.
    """

    mod: tvm.IRModule
    report: Report
    arrays: Sequence[Any]
    target: Any
    widest: dict[str, int]
    grid_sample: int | None = None
    is_te: bool = False

    @cached_property
    def now(self) -> Attempt:
        """The program as it is."""
        return Attempt(self.mod, self.report, read_limits(self.mod, self.target, self.report))

    @cached_property
    def blocks(self) -> dict[str, s_tir.SBlock]:
        """The blocks of the module's only function by name, without the root."""
        functions = [f for f in self.mod.functions.values() if isinstance(f, tirx.PrimFunc)]
        root = functions[0].body
        if len(functions) != 1 or not isinstance(root, s_tir.SBlockRealize):
            return {}
        inner = [block for block in blocks_in(root) if not block.same_as(root.block)]
        return {str(block.name_hint): block for block in inner}

    def schedule(self) -> s_tir.Schedule:
        """A schedule of a copy, at work on the module's only function."""
        sch = s_tir.Schedule(self.mod)
        sch.work_on(only_function(self.mod)[0])
        return sch

    def attempt(self, change: Callable[[s_tir.Schedule], tvm.IRModule | None]) -> Attempt | None:
        """Run a copy that was changed; None where that is not legal, or gives a hazard.

        ``change`` takes a schedule, and may give another module in its place.
        """
        sch = self.schedule()
        try:
            with decisions.collect():
                mod = change(sch) or sch.mod
                report = simulate(
                    mod,
                    *self.arrays,
                    target=self.target,
                    grid_sample=self.grid_sample,
                    progress=False,
                )
                limits = read_limits(mod, self.target, report)
        except (LayoutExtError, RuntimeError, ValueError, TypeError, IndexError, AttributeError):
            return None
        is_sound = not report.hazards or bool(self.report.hazards)
        return Attempt(mod, report, limits) if limits and is_sound else None

    def saved(self, trial: Attempt | None) -> float:
        """Modelled seconds by which a trial is faster; 0 where it is not, or hardly."""
        if trial is None:
            return 0.0
        less = self.now.seconds - trial.seconds
        return less if less > 0.01 * self.now.seconds else 0.0

    def stage(self, block: str) -> str:
        """A block, or the stage of it, as its schedule is written."""
        return f's["{block}"]' if self.is_te else f'sch.get_sblock("{block}")'
