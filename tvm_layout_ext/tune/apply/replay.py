"""Run a record's configuration again, to see whether it still gives what was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..._compat import has_gpu
from ...errors import RecordError
from ...target import cuda_target
from ..measure.backend import Measurement, ReportedError, try_one
from ..measure.backend_pool import make_backend
from ..measure.reference.problem import WrongResultError
from ..measure.simulated import count
from ..records.log import Record
from ..records.record import MODELLED, best_first
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


def replay(record: Record, runner: str = "auto", operator: Operator | None = None) -> Replay:
    """Build a record's configuration again, run it and verify its output.

    ``runner="auto"`` is the record's own, or the simulator if that needs a GPU and there is none.
    RecordError or WrongResultError if the operator has other knobs now, or the output is wrong.
    """
    found = operator or find_operator(record.workload.operator)
    chosen = _runner_for(record) if runner == "auto" else runner
    task = task_again(record, found, chosen)
    try:
        found.check_config(record.config)
    except ValueError as error:
        raise RecordError(f"Record {record.id} cannot be replayed: {error}") from None
    backend = make_backend(chosen, task)
    try:
        measurement = try_one(backend, task, record.config)
        if measurement.conflict_model is None and record.conflict_model is not None:
            measurement = replace(measurement, conflict_model=count(task, record.config)[1])
        return Replay(record, backend.name, measurement, backend.verify(record.config))
    except ReportedError as error:
        kind, _, sentence = str(error).partition(": ")
        # A wrong result is one, wherever it was found.
        raise WrongResultError(sentence) if kind == WrongResultError.__name__ else error from None
    finally:
        backend.close()


def task_again(record: Record, operator: Operator, runner: str) -> Task:
    """A record's task: on the simulator for its own architecture, else for the GPU there is."""
    simulated = runner == MODELLED or (runner == "auto" and not has_gpu())
    target = cuda_target(record.arch) if simulated else None
    workload = record.workload
    return make_task(operator, workload.shape, workload.dtype, record.seed, target)


def _runner_for(record: Record) -> str:
    return record.runner if record.runner == "simulate" or has_gpu() else "simulate"
