"""Measure a sweep's candidates on one GPU, in a process of its own that may be lost.

The inputs of a workload are made once and stay on the GPU, in enough copies that together they are
twice its L2 cache; launches go through them in turn, so that none finds its inputs in the cache.
Before a candidate is timed, its output is poisoned and then compared with the reference, all on the
GPU. Launches of a repeat wait behind a pause of the GPU until all of them are queued, so that the
host's own time is not measured.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, ClassVar

import tvm

from tvm_layout_ext.tune.measure.builder.builder import LIBRARY
from tvm_layout_ext.tune.measure.protocol import TRIALS
from tvm_layout_ext.tune.measure.reference.problem import Problem, WrongResultError
from tvm_layout_ext.tune.space.task import make_task

__all__ = ["PROTOCOL", "REPEATS", "Job", "measure", "prepare"]

REPEATS = 7
#: Milliseconds of a repeat.
REPEAT_MS = 1.0
#: Cycles for which the GPU pauses while a repeat is queued.
PAUSE = 150_000
_MOST_COPIES = 64
PROTOCOL = {
    "warm_up": 1,
    "repeats": REPEATS,
    "repeat_ms": REPEAT_MS,
    "timer": "CUDA events, behind a pause",
    "l2": "rotated",
    "verified": "all elements, before timing, output poisoned",
}
Job = tuple[str, tuple[int, ...], str]


@dataclass
class _Bench:
    """Arguments of a workload on the GPU, and its reference."""

    copies: list[list[Any]]
    want: Any
    tolerance: Any
    views: list[list[Any]]

    known: ClassVar[dict[Job, _Bench]] = {}

    @classmethod
    def of(cls, job: Job) -> _Bench:
        if job not in cls.known:
            cls.known[job] = cls.draw(job)
        return cls.known[job]

    @classmethod
    def draw(cls, job: Job) -> _Bench:
        import torch

        task = make_task(*job)
        problem = Problem.draw(task, TRIALS)
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        count = min(max(2, math.ceil(2 * cache / problem.bytes)), _MOST_COPIES)
        inputs = [torch.from_numpy(array).cuda() for array in problem.inputs]
        output = torch.from_numpy(problem.poisoned()).cuda()
        copies = [[*(x.clone() for x in inputs), output.clone()] for _ in range(count)]
        want = torch.from_numpy(task.operator.reference(*problem.inputs)).cuda()
        views = [[tvm.runtime.from_dlpack(x) for x in copy] for copy in copies]
        return cls(copies, want, problem.tolerance, views)

    def require_right(self, run: Any) -> None:
        """Run once on a poisoned output, and compare all of it with the reference."""
        import torch

        got = self.copies[0][-1]
        if got.is_floating_point():
            got.fill_(float("nan"))
        else:
            got.view(torch.uint8).fill_(0x5A)
        run(*self.views[0])
        torch.cuda.synchronize()
        want = self.want.float()
        off = (got.float() - want).abs()
        bad = ~(off <= self.tolerance.atol + self.tolerance.rtol * want.abs())
        count = int(bad.sum())
        if count:
            raise WrongResultError(f"{count:,} of {got.numel():,} elements differ from NumPy's.")


def prepare(job: Job) -> str:
    """Put a workload's arguments on the GPU; return the GPU's name."""
    import torch

    name = str(torch.cuda.get_device_name(0))
    _Bench.of(job)
    return name


def measure(job: Job, folder: str) -> list[float] | str:
    """Seconds of each repeat of a library, or ``<ErrorClass>: <sentence>``."""
    try:
        library = tvm.runtime.load_module(os.path.join(folder, LIBRARY))
        run = library["main"]
        bench = _Bench.of(job)
        bench.require_right(run)
        return _times(run, bench)
    except Exception as error:
        text = (str(error).strip() or "no text").splitlines()[0]
        return f"{type(error).__name__}: {text}"


def _times(run: Any, bench: _Bench) -> list[float]:
    first = _repeat(run, bench, len(bench.views))
    launches = max(len(bench.views), math.ceil(REPEAT_MS / 1e3 / max(first, 1e-6)))
    return [_repeat(run, bench, launches) for _ in range(REPEATS)]


def _repeat(run: Any, bench: _Bench, launches: int) -> float:
    """Seconds a launch."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(PAUSE)
    begin.record()
    for number in range(launches):
        run(*bench.views[number % len(bench.views)])
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / launches
