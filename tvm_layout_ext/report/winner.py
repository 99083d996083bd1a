"""Explain the kernel of a record."""

from __future__ import annotations

import numpy as np

from ..target import cuda_target
from ..tune.records import Record
from ..tune.search import make_task
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
    # Addresses depend on no value; zeros of any size cost no memory until they are touched.
    arrays = [np.zeros(shape, workload.dtype) for shape in task.argument_shapes()[:-1]]
    return explain(task.module(record.config), arrays=arrays, target=cuda_target(record.arch))
