"""Which of the proposals for a block is the fastest."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from ..errors import ScheduleError
from ..gpu.hardware import MULTIPROCESSORS, SECTOR_BYTES
from ..gpu.kernel_time import AccessWork, KernelWork, modelled_seconds
from ..ir.block_bindings import holder_of
from ..ir.diagnostics import reason
from ..ir.walk import top_statements
from .checks import why_none
from .cost import count_kernels
from .propose import propose
from .propose.flat import flat_map, in_loop_order
from .propose.in_kernel import map_in_kernel
from .request import NAME
from .rows.write import write_chains
from .strategy import Strategy
from .subject import Subject
from .turned.write import write_tiles

_log = logging.getLogger("tvm_layout_ext")

#: Ratio of times, and of sectors, that counting cannot tell from equality.
_SAME = 1.02
#: Seconds by which two short kernels may differ from one measurement to the next.
_NOISE = 1e-6
#: Bytes of a program that few blocks are too few for.
_LARGE = 16 << 20


@dataclass(frozen=True)
class Traffic:
    """Requests of warps to a buffer of global memory, on average."""

    buffer: str
    kind: str  #: ``load``, ``store`` or ``atomic``
    vector_bytes: int  #: Bytes that a lane moves in one request
    sectors: float  #: Sectors of a request
    least: float  #: Sectors that the same bytes would fill

    @property
    def waste(self) -> float:
        """How many times the least possible sectors are moved."""
        return self.sectors / self.least

    def __str__(self) -> str:
        return (
            f"{self.kind} of {self.buffer}: {self.vector_bytes} bytes a lane, "
            f"{self.sectors:.3g} sectors a request (least {self.least:.3g})"
        )


@dataclass(frozen=True)
class Outcome:
    """What was done with a block."""

    path: str  #: ``direct``, ``shifted``, ``staged``, ``copy`` or ``reduction``
    text: str  #: Two sentences
    #: Of each global access; ``before`` with one element a lane in the order of the loops.
    before: tuple[Traffic, ...]
    after: tuple[Traffic, ...]
    #: Modelled times of the kernels; infinite where nothing could be counted.
    seconds_before: float
    seconds: float  #: Modelled times of the kernels; infinite where nothing could be counted
    lost: tuple[str, ...] = ()  #: The proposals that were slower, and those that are not possible

    @property
    def report(self) -> str:
        """The text, and what was not chosen."""
        return "\n".join([self.text, *(f"not {one}" for one in self.lost)])


@dataclass(frozen=True)
class _Trial:
    """A proposal that was tried on a copy of the schedule."""

    way: Strategy
    text: str
    work: Sequence[KernelWork]
    seconds: float

    @property
    def sectors(self) -> float:
        """Sectors of global memory that it asks for."""
        return sum(work.total("sectors", scope="global") for work in self.work)

    @property
    def blocks(self) -> float:
        """Blocks of the kernel that asks for most of these."""
        kernels = sorted(self.work, key=lambda one: one.total("sectors", scope="global"))
        return kernels[-1].blocks if kernels else 0

    def __str__(self) -> str:
        return f"{self.way.path}, {self.text}: {_micro(self.seconds)}"


def choose(subject: Subject) -> tuple[Outcome, Strategy]:
    """Try all proposals on copies of the schedule; keep the one that takes the least modelled time.

    Of those that take equally long, as all of a small block do, it is the one with the fewest
    sectors, and of equals the first.

    Raises ScheduleError if none is possible.
    """
    ways, refusals = propose(subject)
    trials: list[_Trial] = []
    for way in ways:
        try:
            trials.append(_try(subject, way))
        except (RuntimeError, IndexError, ValueError) as error:
            # Refusals are sentences; what else is raised is a defect, and would go unseen.
            is_refusal = isinstance(error, ScheduleError) or _is_of_tensorir(error)
            level = logging.INFO if is_refusal else logging.WARNING
            name = subject.nest.block.name_hint
            _log.log(level, "%s drops a map of %s, %s: %s", NAME, name, way.path, _why(error))
            refusals.append(f"{way.path} is not possible: {_why(error)}")
    if not trials:
        why = why_none(subject.sch, subject.block, subject.nest) or refusals[-1]
        raise ScheduleError(
            f"{NAME} finds no legal mapping of block {subject.nest.block.name_hint}: {why}."
        )
    best = _best(trials, is_symbolic=any(loop.size is None for loop in subject.nest.loops))
    lost = [str(trial) for trial in trials if trial is not best]
    return _outcome(subject, best, trials, [*lost, *refusals]), best.way


def _best(trials: Sequence[_Trial], *, is_symbolic: bool) -> _Trial:
    """Of the fastest those that fill the GPU, of these the one of the fewest sectors, or the first.

    A symbolic loop counts as 1021 iterations, which tells nothing of how full a GPU will be: there
    sectors go before time.
    """
    tests = (_fastest, _full, _fewest)
    for keep in reversed(tests) if is_symbolic else tests:
        trials = keep(trials)
    return trials[0]


def _fastest(trials: Sequence[_Trial]) -> list[_Trial]:
    least = min(trial.seconds for trial in trials)
    return [trial for trial in trials if trial.seconds <= max(_SAME * least, least + _NOISE)]


def _full(trials: Sequence[_Trial]) -> Sequence[_Trial]:
    """Those that put a third of the multiprocessors to work, if the leanest of all is large."""
    if min(one.sectors for one in trials) * SECTOR_BYTES <= _LARGE:
        return trials
    return [one for one in trials if one.blocks >= MULTIPROCESSORS / 3] or trials


def _fewest(trials: Sequence[_Trial]) -> list[_Trial]:
    least = min(trial.sectors for trial in trials)
    return [trial for trial in trials if trial.sectors <= _SAME * least]


def _try(subject: Subject, way: Strategy) -> _Trial:
    program = way.isolated or subject
    trial = program.sch.copy()
    held = holder_of(trial.mod, trial.get(program.block))
    assert held is not None
    name, func = held
    own = trial.get(trial.get_loops(program.block)[0])
    known = [] if subject.kernel is not None else [n for n in _kernels(func) if not n.same_as(own)]
    text = way.apply(trial, program.block)
    written, _ = write_tiles(write_chains(trial.mod[name])[0])
    work = count_kernels(written, known)
    return _Trial(way, text, work, modelled_seconds(work))


def _kernels(func: Any) -> list[Any]:
    """Outermost loops of a function."""
    return [nest for nest in top_statements(func) if isinstance(nest, tirx.For)]


def _outcome(
    subject: Subject, best: _Trial, trials: Sequence[_Trial], lost: Sequence[str]
) -> Outcome:
    """Tell what was done, by the names of the user."""
    work, seconds = _start(subject, trials)
    isolated = best.way.isolated or subject.isolated
    own = isolated.names if isolated else {}
    buffers = {access.name for access in subject.nest.accesses} if subject.kernel else None
    before, after = (_traffic(kernels, own, buffers) for kernels in (work, best.work))
    counts = "; ".join(map(str, after)) or "no access to global memory is counted"
    text = f"{best.text}; {counts}. Modelled {_micro(best.seconds)}"
    if work:
        text += f", before {_micro(seconds)} with {'; '.join(map(str, before))}"
        if best.seconds > _SAME * seconds:
            text += f"; within {_micro(_NOISE)} the fewest sectors are taken"
    path = best.way.path
    return Outcome(path, f"{path}, {text}.", before, after, seconds, best.seconds, tuple(lost))


def _start(subject: Subject, trials: Sequence[_Trial]) -> tuple[list[KernelWork], float]:
    """Count an unbound block as its loops would run if they were just fused over the threads.

    That is mostly a proposal, and counted. Loops of a reduction that stand around those of its
    results come inside of them. Nothing is counted where that is not possible.
    """
    data = [loop for loop in subject.free if not loop.is_reduction]
    if not data:
        return [], float("inf")
    plain_map = flat_map if subject.kernel is None else map_in_kernel
    try:
        way = plain_map(subject, in_loop_order(data))
        found = next((one for one in trials if one.way == way), None) or _try(subject, way)
    except (RuntimeError, ValueError):
        # TVM raises the latter where offsets of idle lanes do not fit into 32 bits.
        return [], float("inf")
    return list(found.work), found.seconds


def _traffic(
    kernels: Sequence[KernelWork], names: dict[str, str], buffers: set[str] | None
) -> tuple[Traffic, ...]:
    """Sum up the requests to each buffer of global memory, or to some."""
    found: dict[tuple[str, str, int], list[AccessWork]] = {}
    for work in kernels:
        for access in work.accesses:
            is_own = buffers is None or access.name in buffers
            if access.scope == "global" and access.requests and is_own:
                name = names.get(access.name, access.name)
                found.setdefault((name, access.kind, access.bytes), []).append(access)
    return tuple(
        Traffic(name, kind, width, *_mean(accesses))
        for (name, kind, width), accesses in found.items()
    )


def _mean(accesses: Sequence[AccessWork]) -> tuple[float, float]:
    requests = sum(access.requests for access in accesses)
    sectors, least = (sum(getattr(a, what) for a in accesses) for what in ("sectors", "least"))
    return sectors / requests, least / requests


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:,.3g} us" if seconds < 1 else f"{seconds:,.3g} s"


def _is_of_tensorir(error: Exception) -> bool:
    """Whether TensorIR refuses a step of a schedule, which it tells in a form of its own."""
    return "Error message:" in str(error)


def _why(error: Exception) -> str:
    refused = "TensorIR refuses it, " if _is_of_tensorir(error) else ""
    return f"{refused}{reason(error).rstrip('.')}"
