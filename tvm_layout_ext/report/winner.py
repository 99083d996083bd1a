"""Explain the kernel of a record."""

from __future__ import annotations

from typing import Any

import tvm

from ..target import cuda_target
from ..tune.model.costs import COUNTED_EXTENT, counted_inputs
from ..tune.records.log import Record
from ..tune.space.operator import Operator
from ..tune.space.task import make_task
from .explain import Explanation, explain


def explain_record(record: Record, operator: Operator | None = None) -> Explanation:
    """Build a record's kernel again and explain its memory accesses.

    By default the operator is that of the record's name in ``schedules/``; for a function or a
    schedule of one's own :meth:`.Programs.operator` has it.
    """
    module, arrays = schedule_record(record, operator)
    return explain(module, arrays=arrays, target=cuda_target(record.arch))


def schedule_record(
    record: Record, operator: Operator | None = None
) -> tuple[tvm.IRModule, list[Any]]:
    """Schedule a record's kernel again, on a shape cut down as for counting; its inputs, too."""
    workload = record.workload
    target = cuda_target(record.arch)
    chosen = operator or workload.operator
    task = make_task(chosen, workload.shape, workload.dtype, record.seed, target)
    task.operator.check_config(record.config)
    shape = task.sub_shape(COUNTED_EXTENT, task.operator.parallel)
    return task.module(record.config, shape), counted_inputs(task, shape)
