"""Run records again, to see whether they give what was recorded, and whether winners still win."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..._compat import has_gpu
from ...errors import RecordError, ScheduleError
from ...target import cuda_target
from ..measure.backend import Backend, Measurement, ReportedError, failure_text, try_one
from ..measure.backend_pool import make_backend
from ..measure.reference.problem import WrongResultError
from ..measure.simulated import count
from ..records.log import Record
from ..records.record import MODELLED, NOISE, best_first
from ..space.knobs import Config
from ..space.operator import Operator, find_operator
from ..space.task import Task, make_task


@dataclass(frozen=True)
class Replay:
    """A record and what its configuration gave this time, by which runner, verified on what."""

    record: Record
    runner: str
    measurement: Measurement
    verified_on: str

    @property
    def same_counters(self) -> bool | None:
        """Whether the counters are those recorded, the cost aside; None if either has none."""
        old, new = self.record.conflict_model, self.measurement.conflict_model
        if old is None or new is None:
            return None
        return all(new.get(name) == old[name] for name in old if name != "cost")


def best_records(records: Sequence[Record]) -> list[Record]:
    """The best record of each workload, runner, device and architecture, in order of appearance.

    Where finalists were timed in turns, it is one of them: other times are of other moments. Of
    several versions of TVM or of this package only those of the latest record count.
    """
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        if record.score is not None:
            key = (record.workload.hash, record.runner, record.device, record.arch)
            groups.setdefault(key, []).append(record)
    return [_best_of_latest(group) for group in groups.values()]


def _best_of_latest(group: Sequence[Record]) -> Record:
    wanted = max(group, key=lambda record: record.time).code_versions
    latest = [record for record in group if record.code_versions == wanted]
    finalists = [record for record in latest if record.kind == "finalist"]
    return best_first(finalists or latest)[0]


def find_record(records: Sequence[Record], prefix: str) -> Record:
    """The record whose id starts with ``prefix``.

    RecordError if there is none, or more than one.
    """
    found = [record for record in records if record.id.startswith(prefix)]
    if len(found) != 1:
        count = f"{len(found)} records have ids" if found else "no record has an id"
        raise RecordError(f"In this log {count} starting with {prefix!r}; it holds {len(records)}.")
    return found[0]


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


def replay(record: Record, runner: str = "auto", operator: Operator | None = None) -> Replay:
    """Build a record's configuration again, run it and verify its output.

    ``runner`` is as of :func:`tune`; ``"auto"`` is the simulator for a modelled record. RecordError
    or WrongResultError if the operator has other knobs now, or the output is wrong. ``operator`` is
    by default the ready one of that name; :meth:`.Programs.operator` has others.
    """
    found, task, backend = _again(record, runner, operator)
    try:
        found.check_config(record.config)
        measurement = try_one(backend, task, record.config)
        if measurement.conflict_model is None and record.conflict_model is not None:
            measurement = replace(measurement, conflict_model=count(task, record.config)[1])
        return Replay(record, backend.name, measurement, backend.verify(record.config))
    except ScheduleError as error:
        raise RecordError(f"Record {record.id} cannot be replayed: {error}") from None
    except ReportedError as error:
        kind, _, sentence = str(error).partition(": ")
        # A wrong result is one, wherever it was found.
        raise WrongResultError(sentence) if kind == WrongResultError.__name__ else error from None
    finally:
        backend.close()


def check(record: Record, runner: str = "auto", operator: Operator | None = None) -> Checked:
    """Run a stored winner and its workload's default schedule, in turns, and verify the winner.

    Parameters are as of :func:`replay`.
    """
    found, task, backend = _again(record, runner, operator)
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


def _again(
    record: Record, runner: str, operator: Operator | None
) -> tuple[Operator, Task, Backend]:
    """A record's task: on the simulator for its own architecture, else for the GPU there is."""
    found = operator or find_operator(record.workload.operator)
    chosen = MODELLED if runner == "auto" and not record.measured else runner
    simulated = chosen == MODELLED or (chosen == "auto" and not has_gpu())
    target, workload = cuda_target(record.arch) if simulated else None, record.workload
    task = make_task(found, workload.shape, workload.dtype, record.seed, target)
    return found, task, make_backend(chosen, task)
