"""Explain the kernel of a record."""

from __future__ import annotations

import numpy as np

from ..target import cuda_target
from ..tune.records import Record
from ..tune.search import make_task
from ..tune.simulated import COUNTED_EXTENT
from .explain import Explanation, explain

__all__ = ["explain_record"]


def explain_record(record: Record) -> Explanation:
    """Build a record's kernel again and explain its memory accesses.

    Parameters
    ----------
    record : Record
        Of an operator in ``schedules/``.
    """
    workload = record.workload
    task = make_task(workload.operator, workload.shape, workload.dtype, record.seed)
    task.operator.check_config(record.config)
    shape = task.sub_shape(COUNTED_EXTENT, task.operator.parallel)
    # No operator's addresses depend on values.
    arrays = [np.zeros(extents, workload.dtype) for extents in task.argument_shapes(shape)[:-1]]
    module = task.module(record.config, shape)
    return explain(module, arrays=arrays, target=cuda_target(record.arch))
