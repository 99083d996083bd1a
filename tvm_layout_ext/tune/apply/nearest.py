"""The configuration recorded for an operator's own shape, or for the one nearest to it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from tvm import tirx

from ...build import check_fits, lower
from ...errors import LayoutExtError
from ...gpu import hardware
from ...target import cuda_target
from ..measure.environment import code_versions
from ..records.record import Record, best_first
from ..space.functions import digest_of
from ..space.operator import Shape, operator_of
from ..space.recognise import recognise
from ..space.task import Task

#: Relatives that are tried before a function is left as it was.
_ATTEMPTS = 8


@dataclass(frozen=True)
class Found:
    """A record that gives a schedule to a function: the operator's task at the function's shape.

    ``distance`` between that and the record's shape is 0 if they are one, see :func:`distance`.
    """

    record: Record
    task: Task
    distance: float

    def is_legal(self) -> bool:
        """Whether the record's configuration is legal at the function's shape."""
        task, config = self.task, self.record.config
        try:
            task.operator.check_config(config)
        except LayoutExtError:
            return False
        return task.operator.check(task.shape, task.dtype, config, task.architecture) is None

    def scheduled(self) -> tirx.PrimFunc:
        """The function scheduled by the record's configuration.

        LayoutExtError or RuntimeError if that cannot be, or the GPU cannot hold the kernel.
        """
        self.task.operator.check_config(self.record.config)
        module = self.task.module(self.record.config)
        target = cuda_target(self.task.architecture.name)
        if self.distance:
            # Nobody has ever built it.
            check_fits(lower(module, target=target), target)
        return module["main"]


def distance(one: Shape, other: Shape) -> float:
    """How far two shapes are apart: the Euclidean distance of the logarithms of their extents."""
    return math.dist([math.log2(n) for n in one], [math.log2(n) for n in other])


@dataclass(frozen=True)
class Nearest:
    """The best records of each workload on one architecture, measured ones first.

    ``foreign`` counts those of another architecture or other versions, which were left out.
    """

    arch: str
    records: list[Record]
    foreign: int = 0

    @classmethod
    def of(cls, records: Sequence[Record], arch: str) -> Nearest:
        """Choose from a log what was made by the installed versions."""
        wanted = code_versions()
        own = [one for one in records if one.arch == arch and one.code_versions == wanted]
        groups: dict[tuple[str, bool], list[Record]] = {}
        for one in own:
            # The knobs of a user's schedule say nothing without it; the database has its trace.
            if one.score is not None and one.program is None:
                groups.setdefault((one.workload.hash, one.measured), []).append(one)
        best = [best_first(group)[0] for group in groups.values()]
        best.sort(key=lambda one: not one.measured)
        return cls(arch, best, len(records) - len(own))

    def of_function(self, func: tirx.PrimFunc) -> Iterator[Found]:
        """The record of a function's own workload, then those of other shapes, nearest first.

        Of others only those whose configuration is legal at the function's shape.
        """
        found: list[Found] = []
        for name in dict.fromkeys(one.workload.operator for one in self.records):
            if task := self._task(func, name):
                found += self.of_task(task)
        found.sort(key=lambda one: one.distance)
        yield from (one for one in found[:1] if not one.distance)
        legal = (one for one in found if one.distance and one.is_legal())
        yield from islice(legal, _ATTEMPTS)

    def of_task(self, task: Task) -> list[Found]:
        """Records of a task's operator and element type, nearest first, legal or not."""
        work = (task.operator.name, task.dtype)
        own = [r for r in self.records if (r.workload.operator, r.workload.dtype) == work]
        found = [Found(r, task, distance(r.workload.shape, task.shape)) for r in own]
        return sorted(found, key=lambda one: one.distance)

    def _task(self, func: tirx.PrimFunc, name: str) -> Task | None:
        architecture = hardware.architecture(self.arch)
        if known := recognise(func, name):
            return Task(*known, architecture, 0)
        if name.endswith(f"-{digest_of(func)}"):
            operator = replace(operator_of(func), name=name)
            return Task(operator, (), operator.dtypes[0], architecture, 0)
        return None
