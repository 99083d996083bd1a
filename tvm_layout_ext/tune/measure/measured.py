"""The measuring backend: TVM's CUDA code generation, and devices here or behind a tracker."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import tvm

from ...errors import NotModelled
from ..space.knobs import Config
from ..space.task import Task
from .backend import Begun, Measurement, ReportedError, config_key, try_one
from .builder.builder import INFO, Building, CubinBuilder
from .protocol import Measured, Timing
from .simulated import count

#: How often each finalist is timed again, taking turns.
ROUNDS = 5
#: A finalist that the simulated GPU does not count in so many seconds has no counters: most take
#: one, and one by warpgroups of 6144 terms a sum takes 295.
COUNTING = 5.0


def modelled(task: Task, config: Config) -> dict[str, Any] | None:
    """What the simulated GPU counts of a candidate; None if it does not model the program."""
    try:
        return count(task, config)[1]
    except NotModelled:
        return None


class MeasuringBackend:
    """Builds candidates to machine code and times them by a runner, closed with the backend.

    ``name`` is the ``runner`` of the records, ``device`` the GPU's name.
    """

    def __init__(
        self, task: Task, runner: Any, name: str, device: str, workers: int | None = None
    ) -> None:
        self.name, self.device, self.runner = name, device, runner
        self.builder = CubinBuilder(task.architecture.name, workers)
        #: What processes of the builder find, or this one if it cannot be sent to them.
        self.asked = self.builder.asked
        runner.inputs.asked = self.asked
        self._task = task
        self._artifacts: dict[tuple[Any, ...], str] = {}
        #: Candidates of tasks to come that are built, and simulated.
        self._ahead: dict[tuple[Task, tuple[Any, ...]], Building] = {}
        self._counted: dict[tuple[Task, tuple[Any, ...]], Future[Any]] = {}

    def serves(self, task: Task) -> bool:
        """Whether another task is for the architecture that the processes build for."""
        return task.architecture == self._task.architecture

    def take(self, task: Task) -> None:
        """Go on with another task for the same architecture, in the same processes."""
        for folder in self._artifacts.values():
            shutil.rmtree(folder, ignore_errors=True)
        self._artifacts.clear()
        self._counted = {key: one for key, one in self._counted.items() if key[0] != self._task}
        self._task = task
        self.runner.take(task)

    def prepare(self, task: Task, config: Config, module: tvm.IRModule, is_final: bool) -> bool:
        """Begin to draw a task's inputs, and to build and count a candidate.

        What is of a task to come waits until nothing of the one at hand does.
        """
        self.runner.inputs.begin(task)
        key, later = (task, config_key(config)), task != self._task
        if key not in self._ahead:
            (self._ahead[key],) = self.builder.begin([module], later=later)
        if is_final and key not in self._counted:
            self._counted[key] = self._count(task, config, later)
        return True

    def foresee(self, configs: Sequence[Config]) -> None:
        """Begin to count candidates that will be timed again, most likely."""
        for config in configs:
            key = self._task, config_key(config)
            if key not in self._counted:
                self._counted[key] = self._count(self._task, config)

    def _count(self, task: Task, config: Config, later: bool = False) -> Future[Any]:
        return self.builder.apart(modelled, replace(task), config, timeout=COUNTING, later=later)

    def begin(self, candidates: Sequence[tuple[Config, tvm.IRModule]]) -> list[Begun]:
        """Build in as many processes as there are cores, and measure what is built meanwhile."""
        building = [self._building(config, mod) for config, mod in candidates]
        folders, built = zip(*building, strict=True)
        futures = self.runner.begin(folders, built)
        return [
            Begun(partial(self._read, config, folder, future), future.done)
            for (config, _), folder, future in zip(candidates, folders, futures, strict=True)
        ]

    def _building(self, config: Config, module: tvm.IRModule) -> Building:
        ahead = self._ahead.pop((self._task, config_key(config)), None)
        return ahead or self.builder.begin([module])[0]

    def _read(self, config: Config, artifact: str, future: Future[Measured]) -> Measurement:
        """What compiler and device said of a candidate; the best so far goes to the runner."""
        measured = future.result()
        if measured.error:
            raise ReportedError(measured.error)
        self._artifacts[config_key(config)] = artifact
        result = self._measurement(artifact, measured, tuple(measured.times))
        best = self.runner.best_so_far
        self.runner.best_so_far = result.score if best is None else min(best, result.score)
        return result

    def verify(self, config: Config) -> str:
        """Compare the output with the reference, as far as that goes, on fresh inputs."""
        measured = self.runner.verify(self._artifact(config))
        if measured.error:
            raise ReportedError(measured.error)
        return str(self._task.workload)

    def remeasure(self, configs: Sequence[Config]) -> list[Measurement | None]:
        """Time finalists in turns on one device; build processes simulate them meanwhile.

        Round by round, so that a drift of the clock meets all alike, without rounds that failed.
        """
        artifacts = [self._artifact(config) for config in configs]
        ahead = [self._counted.pop((self._task, config_key(one)), None) for one in configs]
        models = [
            one or self._count(self._task, config)
            for one, config in zip(ahead, configs, strict=True)
        ]
        measured = self.runner.in_turn(artifacts * ROUNDS)
        found: list[Measurement | None] = []
        for index, artifact in enumerate(artifacts):
            turns = [one for one in measured[index :: len(artifacts)] if one.times]
            if not turns:
                found.append(None)
                continue
            times = tuple(median(one.times) for one in turns)
            model = None if models[index].exception() else models[index].result()
            timed = self._measurement(artifact, turns[-1], times)
            found.append(replace(timed, conflict_model=model))
        return found

    def close(self) -> None:
        """End all processes and remove their files."""
        self.runner.close()
        self.builder.close()

    def _measurement(
        self, artifact: str, measured: Measured, times: tuple[float, ...]
    ) -> Measurement:
        info = json.loads((Path(artifact) / INFO).read_text())
        timing = asdict(getattr(self.runner, "timing", Timing()))
        protocol = {name: value for name, value in timing.items() if value is not None}
        return Measurement(
            smem_bytes=info["smem_bytes"],
            conflict_model=None,
            times=times,
            verified_on=str(self._task.workload) if measured.verified else None,
            registers=info["registers"],
            spill_bytes=info["spill_bytes"],
            l2=measured.l2,
            protocol=protocol | {"early_stop": int(measured.early_stop)},
            clock_mhz=measured.clock_mhz,
            server=measured.server,
            phases={"build": float(info["seconds"])} | measured.phases,
        )

    def _artifact(self, config: Config) -> str:
        """The folder of a candidate's library; a candidate from a log is built and run now."""
        if config_key(config) not in self._artifacts:
            try_one(self, self._task, config)
        return self._artifacts[config_key(config)]
