"""Trials of the tuner as schedules in the database that TVM reads."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import s_tir

from ...target import cuda_target
from ..space.candidate import traced
from ..space.functions import bare
from ..space.task import Task
from .database import Database
from .origin import Origin
from .record import Record

__all__ = ["archive"]


def archive(
    database: Database,
    task: Task,
    record: Record,
    *,
    sch: s_tir.Schedule | None = None,
    workload: tvm.IRModule | None = None,
) -> bool:
    """Add a trial that worked to a database; what is there already is not doubled.

    Where seconds stand, a modelled trial has its modelled cost in cycles: thousands, where seconds
    are thousandths, so that TVM too ranks it after all that were measured. The target's tag names
    the runner.

    Parameters
    ----------
    database : Database
    task : Task
    record : Record
        One of its trials.
    sch : tvm.s_tir.Schedule, optional
        The candidate's, with its trace; by default it is scheduled again.
    workload : tvm.IRModule, optional
        The same computation as somebody else wrote it, e.g. Relax, whose pass is to find it. It is
        left out, without an error, if the schedule cannot be replayed there.

    Returns
    -------
    bool
        Whether anything was added.

    Raises
    ------
    RecordError
        If it could not be written.
    """
    score = record.score
    if score is None:
        return False
    sch = sch or traced(task, record.config)
    seconds = list(record.times) if record.measured and record.times else [score]
    origin = Origin(
        str(record.versions.get("tvm")),
        str(record.versions.get("package")),
        record.runner,
        record.device,
    )
    target = cuda_target(record.arch)
    added = database.append(task.unscheduled, sch.trace, seconds, target, origin)
    if workload is not None and not tvm_ffi.structural_equal(workload, task.unscheduled):
        replayed = _replayed(workload, sch)
        if replayed is not None:
            added |= database.append(workload, replayed.trace, seconds, target, origin)
    return added


def _replayed(workload: tvm.IRModule, sch: s_tir.Schedule) -> s_tir.Schedule | None:
    other = s_tir.Schedule(workload)
    try:
        sch.trace.apply_to_schedule(other, remove_postproc=False)
    except (RuntimeError, ValueError):
        return None
    same = tvm_ffi.structural_equal(bare(other.mod["main"]), bare(sch.mod["main"]))
    return other if same else None
