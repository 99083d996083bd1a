"""The records of a folder: JSON lines, which are the truth, and TVM's database made of them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TypeAlias

import tvm
import tvm_ffi
from tvm import s_tir
from tvm.s_tir import meta_schedule as ms

from ...checks import path_of
from ...errors import RecordError
from ...target import cuda_target
from ..space.candidate import traced
from ..space.functions import bare
from ..space.task import Task
from .database import RECORDS, Database
from .log import Log, Reading
from .record import Record
from .tvm_record import Provenance, TvmRecord, entry_of

Source: TypeAlias = "str | os.PathLike[str] | Log | Database | ms.database.Database"


class Records:
    """Where a run keeps its trials: both are written here, and nowhere else."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.log, self.database = Log(folder), Database(folder)

    def prepare(self) -> Reading[Record]:
        """Make the files and read the trials; RecordError if they cannot be made or written."""
        self.log.prepare()
        self.database.prepare()
        return self.log.read()

    def add(self, task: Task, record: Record, sch: s_tir.Schedule | None) -> None:
        """Write a trial down: its schedule, if it could be made, and its line, or RecordError."""
        if sch is not None:
            # First: a trial that has its line is not run again, so that the database would never
            # get what a process killed in between did not write.
            archive(self.database, task, record, sch=sch)
        self.log.append(record)


def archive(
    database: Database,
    task: Task,
    record: Record,
    *,
    sch: s_tir.Schedule | None = None,
    workload: tvm.IRModule | None = None,
) -> bool:
    """Add a trial that worked to a database, once; whether anything was added.

    A modelled trial has its modelled cost in cycles in place of seconds. ``workload`` is the same
    computation as somebody else wrote it, e.g. Relax, whose pass is to find it; it is left out if
    the schedule cannot be replayed there.
    """
    score = record.score
    if score is None:
        return False
    sch = sch or traced(task, record.config)
    seconds = list(record.times) if record.measured and record.times else [score]
    facts = seconds, cuda_target(record.arch), Provenance.of(record)
    added = database.append(task.unscheduled, sch.trace, *facts)
    if workload is not None and not tvm_ffi.structural_equal(workload, task.unscheduled):
        replayed = _replayed(workload, sch)
        if replayed is not None:
            added |= database.append(workload, replayed.trace, *facts)
    return added


def _replayed(workload: tvm.IRModule, sch: s_tir.Schedule) -> s_tir.Schedule | None:
    other = s_tir.Schedule(workload)
    try:
        sch.trace.apply_to_schedule(other, remove_postproc=False)
    except (RuntimeError, ValueError):
        return None
    same = tvm_ffi.structural_equal(bare(other.mod["main"]), bare(sch.mod["main"]))
    return other if same else None


@dataclass(frozen=True)
class Opened:
    """What a source holds: its name, trials as configurations and as traces, and broken lines."""

    name: str
    trials: Reading[Record] = field(default_factory=lambda: Reading([]))
    schedules: Reading[TvmRecord] = field(default_factory=lambda: Reading([]))

    @property
    def corrupt(self) -> int:
        """Lines that are no record."""
        return self.trials.corrupt + self.schedules.corrupt


def open_source(source: Source) -> Opened:
    """Read all records of a log's folder, with JSON lines, a database or both, or of an object.

    Records of a database object of TVM's own that name no versions count as made by those that are
    installed, for it was made or loaded here. RecordError if there is nothing, or something else.
    """
    if isinstance(source, ms.database.Database):
        return Opened("the database", schedules=Reading(_of_tvm(source)))
    if isinstance(source, Database):
        return Opened(str(source.folder), schedules=source.read())
    if isinstance(source, Log):
        return Opened(str(source.folder), source.read())
    if not isinstance(source, str | os.PathLike):  # callers may pass anything
        raise RecordError(
            f"Cannot read records from a {type(source).__name__}; a log's folder, a Log, a "
            "Database or a meta_schedule database is wanted."
        )
    folder = path_of("A log", source, RecordError)
    if not (folder / RECORDS).exists():
        return open_source(Log(folder))
    lines = Log(folder).read() if any(folder.glob("*.jsonl")) else Reading([])
    return Opened(str(folder), lines, Database(folder).read())


def _of_tvm(database: ms.database.Database) -> list[TvmRecord]:
    found = []
    for line, record in enumerate(database.get_all_tuning_records()):
        trace, seconds, target, arguments = entry_of(record)
        target = dict(target or {})
        if Provenance.from_tag(str(target.get("tag", ""))) is None:
            target["tag"] = Provenance.here("cuda", "").tag()
        found.append(TvmRecord(line, record.workload.mod, [trace, seconds, target, arguments]))
    return found
