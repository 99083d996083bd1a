"""Explain the kernel of a record."""

from __future__ import annotations

import tvm

from ..target import cuda_target
from ..tune.model.costs import COUNTED_EXTENT, counted_inputs
from ..tune.records.log import Record
from ..tune.space.operator import Operator
from ..tune.space.task import Task, make_task
from .explain import Explanation, explain

__all__ = ["explain_record", "record_module"]


def explain_record(record: Record, operator: Operator | None = None) -> Explanation:
    """Build a record's kernel again and explain its memory accesses.

    Parameters
    ----------
    record : Record
    operator : Operator, optional
        By default the one of that name in ``schedules/``; for a function or a schedule of one's own
        :meth:`.Programs.operator` has it.

    Raises
    ------
    ScheduleError
        If the operator is unknown, or has other knobs now.
    """
    task, shape = _counted(record, operator)
    arrays = counted_inputs(task, shape)
    module = task.module(record.config, shape)
    return explain(module, arrays=arrays, target=cuda_target(record.arch))


def record_module(record: Record, operator: Operator | None = None) -> tvm.IRModule:
    """Schedule a record's kernel again, on a shape cut down as for counting.

    Raises
    ------
    ScheduleError
        If the operator is unknown, or has other knobs now.
    """
    task, shape = _counted(record, operator)
    return task.module(record.config, shape)


def _counted(record: Record, operator: Operator | None) -> tuple[Task, tuple[int, ...]]:
    """A record's task, and the shape at which its kernel is counted."""
    workload = record.workload
    chosen = operator or workload.operator
    target = cuda_target(record.arch)
    task = make_task(chosen, workload.shape, workload.dtype, record.seed, target)
    task.operator.check_config(record.config)
    return task, task.sub_shape(COUNTED_EXTENT, task.operator.parallel)
