"""Where candidates are tried: a builder and a runner as TVM's tuner knows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from ...errors import LayoutExtError
from ...target import cuda_target
from ..space.candidate import config_of, traced
from ..space.knobs import Config
from ..space.task import Task
from .measurement import Measurement, Runner


class ReportedError(LayoutExtError):
    """A failure in another process; its text is that of :func:`failure_text` there."""


def config_key(config: Config) -> tuple[Any, ...]:
    """A configuration as a key of dictionaries."""
    return tuple(sorted(config.items()))


def failure_text(error: BaseException) -> str:
    """Write an error as builders and runners hand it on: its class, a colon, and its text."""
    if isinstance(error, ReportedError):
        return str(error)
    return f"{type(error).__name__}: {str(error).strip() or 'no text'}"


class Backend(Protocol):
    """Tries the candidates of one task.

    Attributes
    ----------
    name : str
        The ``runner`` of its records.
    device : str
        Name of the GPU.
    """

    name: str
    device: str

    def build(self, inputs: Sequence[Any]) -> list[str]:
        """Begin to build ``BuilderInput`` s, and give the paths that stand for the artifacts."""

    def run(self, artifacts: Sequence[str]) -> list[Any]:
        """Begin to run what was built, or is about to be; give futures as TVM's runners do.

        A failure's text, to build or to run, is ``"<error class>: <sentence>"``.
        """

    def read(self, artifact: str, config: Config) -> Measurement:
        """What was learnt about a candidate that ran, by the path that the builder gave it."""

    def verify(self, config: Config) -> str:
        """Compare a candidate's output with the reference on fresh inputs; say on what shape."""

    def remeasure(self, configs: Sequence[Config]) -> list[Measurement | None]:
        """Time finalists again, taking turns; None for each where there is nothing to add."""

    def close(self) -> None:
        """Stop processes and remove files."""


def try_one(backend: Backend, task: Task, config: Config) -> tuple[str, Measurement]:
    """Build and run one candidate outside of a search; its artifact and what was learnt.

    Raises
    ------
    ReportedError
        If it failed.
    """
    target = cuda_target(task.architecture.name)
    given = ms.builder.BuilderInput(traced(task, config).mod, target)
    (artifact,) = backend.build([given])
    (future,) = backend.run([artifact])
    result = future.result()
    if result.error_msg is not None:
        raise ReportedError(str(result.error_msg))
    return artifact, backend.read(artifact, config)


class InProcess:
    """A backend of a runner that tries one configuration at a time in this process.

    Parameters
    ----------
    task : Task
    runner : Runner
    """

    def __init__(self, task: Task, runner: Runner) -> None:
        self.name, self.device = runner.name, runner.device
        self._task, self._runner = task, runner
        self._configs: list[dict[str, Any]] = []
        self._measured: dict[str, Measurement] = {}

    def build(self, inputs: Sequence[Any]) -> list[str]:
        """Build nothing: who runs a candidate does that."""
        return [self._keep(given.mod) for given in inputs]

    def run(self, artifacts: Sequence[str]) -> list[Any]:
        """Hand candidates to the runner one by one, each when it is asked for."""
        return [_Later(self, artifact) for artifact in artifacts]

    def _keep(self, module: tvm.IRModule) -> str:
        """Put a candidate aside until it is run; return the path that stands for it."""
        self._configs.append(config_of(module, self._task.operator.knobs))
        return str(len(self._configs) - 1)

    def measure(self, artifact: str) -> float:
        """Run a candidate that was put aside; return its score."""
        measured = self._runner.run(self._task, self._configs[int(artifact)])
        self._measured[artifact] = measured
        return measured.score

    def read(self, artifact: str, _config: Config) -> Measurement:
        """What was learnt about a candidate that ran."""
        return self._measured[artifact]

    def verify(self, config: Config) -> str:
        """Compare its output with the reference on fresh inputs."""
        return self._runner.verify(self._task, config)

    def remeasure(self, configs: Sequence[Config]) -> list[Measurement | None]:
        """Nothing: a count is the same each time."""
        return [None] * len(configs)

    def close(self) -> None:
        """Nothing is held."""


@derived_object
class _Later(ms.runner.PyRunnerFuture):
    """Runs a candidate when it is asked for: what is done before Ctrl-C is then kept."""

    def __init__(self, owner: InProcess, artifact: str) -> None:
        super().__init__()
        self.owner, self.artifact = owner, artifact
        self._result: Any = None

    def done(self) -> bool:
        return self._result is not None

    def result(self) -> Any:
        if self._result is None:
            self._result = self._run()
        return self._result

    def _run(self) -> Any:
        try:
            return ms.runner.RunnerResult([self.owner.measure(self.artifact)], None)
        except Exception as error:
            return ms.runner.RunnerResult(None, failure_text(error))
