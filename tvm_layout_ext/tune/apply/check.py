"""Time stored winners against the default schedule again, to see whether they still win."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import RecordError
from ..measure.backend import Backend, Measurement, ReportedError, failure_text, try_one
from ..measure.backend_pool import make_backend
from ..records.log import Record
from ..records.record import NOISE
from ..space.knobs import Config
from ..space.operator import Operator, find_operator
from ..space.task import Task
from .replay import task_again


@dataclass(frozen=True)
class Checked:
    """A stored winner and the default schedule, run one after the other now.

    ``winner`` and ``default`` are None where one failed, or was not run; ``failure`` and
    ``default_failure`` then say why, as ``<ErrorClass>: <sentence>``.
    """

    record: Record
    runner: str
    winner: Measurement | None
    default: Measurement | None
    failure: str | None = None
    default_failure: str | None = None

    @property
    def ratio(self) -> float | None:
        """The winner's score over the default's; None if either failed."""
        if self.winner is None or self.default is None or not self.default.score:
            return None
        return self.winner.score / self.default.score

    @property
    def warning(self) -> str | None:
        """One sentence if the winner failed, or the default is faster beyond the noise."""
        name = f"{self.record.workload}, record {self.record.id}"
        if self.failure is not None:
            return f"{name} fails now: {self.failure}"
        ratio = self.ratio
        if ratio is None or ratio <= 1 + (NOISE if self.runner != "simulate" else 0.0):
            return None
        kind = "modelled cost" if self.runner == "simulate" else "time"
        return f"{name} no longer wins: its {kind} is {ratio:.3f} of the default's; tune it again."


def check(record: Record, runner: str = "auto", operator: Operator | None = None) -> Checked:
    """Run a stored winner and its workload's default schedule, in turns, and verify the winner.

    ``runner`` is as of :func:`tune`; ``"auto"`` is the simulator for a modelled record.
    ``operator`` is by default the ready one of that name; :meth:`.Programs.operator` has others.
    """
    found = operator or find_operator(record.workload.operator)
    chosen = "simulate" if runner == "auto" and not record.measured else runner
    task = task_again(record, found, chosen)
    backend = make_backend(chosen, task)
    try:
        found.check_config(record.config)
        winner = try_one(backend, task, record.config)
        backend.verify(record.config)
    except Exception as error:
        return Checked(record, backend.name, None, None, failure_text(error))
    else:
        return _against_default(record, backend, task, winner)
    finally:
        backend.close()


def _against_default(record: Record, backend: Backend, task: Task, winner: Measurement) -> Checked:
    config: Config = task.space.default()
    if all(knob.of(config) == knob.of(record.config) for knob in task.operator.knobs):
        return Checked(record, backend.name, winner, winner)
    try:
        default = try_one(backend, task, config)
    except (ReportedError, RecordError) as error:
        return Checked(record, backend.name, winner, None, default_failure=failure_text(error))
    again = backend.remeasure([record.config, config])
    return Checked(record, backend.name, again[0] or winner, again[1] or default)
