"""Explain the kernel of a record."""

from __future__ import annotations

import numpy as np
import tvm

from ..target import cuda_target
from ..tune.records import Record
from ..tune.search import make_task
from ..tune.simulated import COUNTED_EXTENT
from .explain import Explanation, explain

__all__ = ["explain_record", "record_module"]


def explain_record(record: Record) -> Explanation:
    """Build a record's kernel again and explain its memory accesses.

    Parameters
    ----------
    record : Record
        Of an operator in ``schedules/``.
    """
    module, shapes = record_module(record)
    # No operator's addresses depend on values.
    arrays = [np.zeros(extents, record.workload.dtype) for extents in shapes[:-1]]
    return explain(module, arrays=arrays, target=cuda_target(record.arch))


def record_module(record: Record) -> tuple[tvm.IRModule, list[tuple[int, ...]]]:
    """Schedule a record's kernel again, on a shape cut down as for counting.

    Returns
    -------
    tuple of IRModule and list
        The scheduled module, and the shapes of its arguments, the output last.

    Raises
    ------
    ScheduleError
        If the operator is unknown, or has other knobs now.
    """
    workload = record.workload
    target = cuda_target(record.arch)
    task = make_task(workload.operator, workload.shape, workload.dtype, record.seed, target)
    task.operator.check_config(record.config)
    shape = task.sub_shape(COUNTED_EXTENT, task.operator.parallel)
    return task.module(record.config, shape), task.argument_shapes(shape)
