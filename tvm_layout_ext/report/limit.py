"""What limits a kernel: the modelled time of each part of the GPU that it keeps busy.

Counted by :mod:`..coalesce.cost` and timed by :mod:`..gpu.kernel_time`, which choose the maps of
``auto_coalesce``, too. Wavefronts are those that the simulated GPU counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tvm
from tvm import tirx

from .._compat import pass_name
from ..analysis.kernel_facts import KernelFacts, read_kernels
from ..coalesce.cost import count_kernels
from ..gpu.hardware import MULTIPROCESSORS
from ..gpu.kernel_time import KernelWork, kernel_terms, modelled_seconds
from ..gpu.measured import H200
from ..pipeline import lowering_passes
from ..simulate.report import Report

#: From here on, blocks are no more what a schedule made of them.
_LOWERED_FROM = "s_tir.CanonicalizeLoop"
_WORDS = {
    "memory": "bytes",
    "l2": "L2 sectors",
    "own": "sectors of a multiprocessor",
    "pipe": "wavefronts and requests",
    "issue": "instructions",
    "latency": "latency",
    "blocks": "starting blocks",
    "products": "tensor-core products",
}
#: Those which more blocks would share, or hide.
_OF_BUSIEST = ("own", "pipe", "issue", "latency", "products")
#: Share of the whole time below which a part is not told.
_TOLD = 0.05


@dataclass(frozen=True)
class Limit:
    """The modelled time of a kernel, in seconds, and of each part of the GPU alone.

    ``work`` is what was counted; ``terms`` has the parts by the keys of ``kernel_terms``, and
    ``products`` where there are tensor-core products.
    """

    work: KernelWork = field(repr=False)
    terms: Mapping[str, float]
    seconds: float

    @property
    def longest(self) -> str:
        """Key of the part that takes the longest."""
        return max(self.terms, key=lambda key: self.terms[key])

    @property
    def is_unspread(self) -> bool:
        """Whether it is the lack of blocks that limits: half of the GPU, or more, is idle."""
        return 2 * self.work.blocks <= MULTIPROCESSORS and self.longest in _OF_BUSIEST

    @property
    def name(self) -> str:
        """What limits, in words."""
        return "parallelism" if self.is_unspread else _WORDS[self.longest]

    def __str__(self) -> str:
        parts = sorted(self.terms.items(), key=lambda term: -term[1])
        told = ", ".join(
            f"{_WORDS[key]} {1e6 * time:.2f}" for key, time in parts if time > _TOLD * self.seconds
        )
        idle = (
            f" ({self.work.blocks} of {MULTIPROCESSORS} multiprocessors work)"
            if self.is_unspread
            else ""
        )
        total = f"{1e6 * self.seconds:.2f} us modelled on an H200"
        return f"Limit: {self.name}{idle}; {total}, of which, each alone: {told}."


def read_limits(
    mod: tvm.IRModule,
    target: Any,
    report: Report | None = None,
    counted: tvm.IRModule | None = None,
) -> list[Limit]:
    """Model each kernel of a scheduled module; empty where nothing can be counted.

    That is so of a module that ``lower`` gave, and of kernels of warpgroups. ``counted`` is what
    the report is of, where that is the same schedule of a smaller shape.
    """
    facts = [one for func in _functions(mod) for one in read_kernels(func)]
    try:
        works = _works(mod, target)
        run = works if counted is None else _works(counted, target)
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError):
        return []
    if report is not None and len(report.launches) == len(works) == len(run):
        scales = [_conflicts(work, report, n) for n, work in enumerate(run)]
        works = [_scaled(work, scale) for work, scale in zip(works, scales, strict=True)]
    known = facts if len(facts) == len(works) else [None] * len(works)
    return [_limit(work, fact) for work, fact in zip(works, known, strict=True)]


def longest(limits: Sequence[Limit]) -> Limit | None:
    """The kernel that takes most of the time."""
    return max(limits, key=lambda limit: limit.seconds, default=None)


def _functions(mod: tvm.IRModule) -> list[Any]:
    return [func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc)]


def _mapped(mod: tvm.IRModule) -> tvm.IRModule:
    """Let the passes that map blocks run, and no more."""
    for stage in lowering_passes()[0]:
        if pass_name(stage) == _LOWERED_FROM:
            break
        mod = stage(mod)
    return mod


def _works(mod: tvm.IRModule, target: Any) -> list[KernelWork]:
    mapped = _mapped(tirx.transform.BindTarget(target)(mod))
    return [work for func in _functions(mapped) for work in count_kernels(func)]


def _conflicts(work: KernelWork, report: Report, position: int) -> float:
    """Wavefronts counted over those modelled: the model takes swizzles for free of conflicts."""
    launch = report.launches[position]
    counted = sum(a.wavefronts for a in report.accesses if a.kernel == launch.kernel)
    modelled = work.total("wavefronts")
    if not modelled or not launch.sampled:
        return 1.0
    return counted * launch.blocks / launch.sampled / modelled


def _scaled(work: KernelWork, scale: float) -> KernelWork:
    accesses = (replace(a, wavefronts=a.wavefronts * scale) for a in work.accesses)
    return replace(work, accesses=tuple(accesses))


def _limit(work: KernelWork, facts: KernelFacts | None) -> Limit:
    stages = 1 if facts is None else facts.stages
    if stages > 1:
        ahead = (replace(a, rounds=a.rounds / (stages - 1)) for a in work.accesses)
        work = replace(work, accesses=tuple(ahead))
    terms = kernel_terms(work)
    seconds = modelled_seconds([work])
    if facts is not None and facts.half_flops:
        share = -(-work.blocks // MULTIPROCESSORS)
        terms["products"] = facts.half_flops * share / H200.tensor / H200.clock
        seconds = max(seconds, H200.launch + terms["products"])
    return Limit(work, terms, seconds)
