"""Explain the kernel of a record."""

from __future__ import annotations

from dataclasses import replace

from ..target import cuda_target
from ..tune.model.costs import COUNTED_EXTENT, counted_inputs
from ..tune.records.log import Record
from ..tune.space.operator import Operator, Shape
from ..tune.space.task import Task, make_task
from .explain import Explanation, explain

#: Sums of a product are cut to this length, as all of their steps do the same: 16 tiles of 32, more
#: than any pipeline has stages. A block of a product of 16384 terms took 7 s, of 512 it takes 0.5.
_COUNTED_SUM = 512
#: Operations a byte from which on an operator counts as a product. Sums of rows are mapped by their
#: length and stay as they are.
_PRODUCT = 8


def explain_record(
    record: Record, operator: Operator | None = None, *, blocks: int = 4
) -> tuple[Explanation, Shape]:
    """Build a record's kernel again and explain its memory accesses; the shape that was counted.

    By default the operator is that of the record's name in ``schedules/``; for a function or a
    schedule of one's own :meth:`.Programs.operator` has it. The limit is of the whole shape.
    """
    task = task_of(record, operator)
    shape = counted_shape(task, record)
    target, arrays = cuda_target(record.arch), counted_inputs(task, shape)
    module = task.module(record.config, shape)
    found = explain(module, arrays=arrays, target=target, grid_sample=blocks)
    if shape != task.shape:
        found = replace(found, whole=task.module(record.config, task.shape))
    return found, shape


def task_of(record: Record, operator: Operator | None = None) -> Task:
    """What a record was a trial of."""
    workload = record.workload
    target = cuda_target(record.arch)
    task = make_task(
        operator or workload.operator, workload.shape, workload.dtype, record.seed, target
    )
    task.operator.check_config(record.config)
    return task


def counted_shape(task: Task, record: Record) -> Shape:
    """A smaller shape of which each block does what it does at the whole one."""
    operator, shape = task.operator, task.sub_shape(COUNTED_EXTENT, task.operator.parallel)
    flops, traffic = operator.flops(task.shape), operator.traffic(task.shape, task.dtype)
    if flops < _PRODUCT * traffic:
        return shape
    sums = [dim for dim in operator.dims if dim not in operator.parallel]
    short = task.sub_shape(_COUNTED_SUM, sums)
    both = tuple(map(min, shape, short))
    refused = operator.check(both, task.dtype, record.config, task.architecture)
    return shape if refused else both
