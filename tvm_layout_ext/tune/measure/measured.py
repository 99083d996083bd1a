"""The measuring backend: TVM's CUDA code generation, and devices here or behind a tracker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tvm.s_tir.meta_schedule.runner import RunnerInput

from ...errors import NotModelled
from ..space.knobs import Config
from ..space.task import Task
from .backend import ReportedError, config_key, try_one
from .builder.builder import INFO, CubinBuilder
from .measurement import Measurement
from .protocol import Measured, Timing, interleaved
from .simulated import count

#: How often each finalist is timed again, taking turns.
ROUNDS = 5


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
        self._task = task
        self._artifacts: dict[tuple[Any, ...], str] = {}
        self._building: dict[str, Future[str | None]] = {}

    def serves(self, task: Task) -> bool:
        """Whether another task is for the architecture that the processes build for."""
        return task.architecture == self._task.architecture

    def take(self, task: Task) -> None:
        """Go on with another task for the same architecture, in the same processes."""
        self._task = task
        self._artifacts.clear()
        self.builder.clear()
        self.runner.take(task)

    def build(self, inputs: Sequence[Any]) -> list[str]:
        """Begin to build, in as many processes as there are cores."""
        begun = self.builder.begin(inputs)
        self._building.update(begun)
        return [folder for folder, _ in begun]

    def run(self, artifacts: Sequence[str]) -> list[Any]:
        """Measure each candidate as soon as it is built, while others are."""
        inputs = [RunnerInput(artifact, "cuda", []) for artifact in artifacts]
        futures: list[Any] = self.runner.begin(inputs, [self._building.pop(a) for a in artifacts])
        return futures

    def read(self, artifact: str, config: Config) -> Measurement:
        """What compiler and device said of a candidate; the best so far goes to the runner."""
        self._artifacts[config_key(config)] = artifact
        measured = Measured.read(artifact)
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
        """Time finalists in turns on one device; build processes simulate them meanwhile."""
        artifacts = [self._artifact(config) for config in configs]
        models = [self.builder.apart(modelled, self._task, config) for config in configs]
        times = interleaved(self.runner, artifacts, ROUNDS)
        return [
            self._finalist(artifact, self._model(begun, config), tuple(seconds))
            if seconds
            else None
            for artifact, config, begun, seconds in zip(
                artifacts, configs, models, times, strict=True
            )
        ]

    def close(self) -> None:
        """End all processes and remove their files."""
        self.runner.close()
        self.builder.close()

    def _model(self, begun: Future[dict[str, Any] | None], config: Config) -> dict[str, Any] | None:
        try:
            return begun.result()
        except Exception:
            # A user's schedule may be nothing that can be sent to a process, or take it too long.
            return modelled(self._task, config)

    def _finalist(
        self, artifact: str, model: dict[str, Any] | None, times: tuple[float, ...]
    ) -> Measurement:
        measurement = self._measurement(artifact, Measured.read(artifact), times)
        return replace(measurement, conflict_model=model)

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
        known = self._artifacts.get(config_key(config))
        return try_one(self, self._task, config)[0] if known is None else known
