"""How well both models order the candidates of a sweep, against the times measured on its GPU."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sweep_file import Sweep, SweepEntry
from tvm_layout_ext.target import cuda_target
from tvm_layout_ext.tune.model.costs import costs
from tvm_layout_ext.tune.space.knobs import Config
from tvm_layout_ext.tune.space.task import Task, make_task

__all__ = ["correlations", "ranks", "spearman", "task_of"]


def ranks(values: Sequence[float]) -> np.ndarray:
    """Rank of each value, equal ones their mean.

    >>> ranks([3.0, 1.0, 3.0]).tolist()
    [1.5, 0.0, 1.5]
    """
    array = np.asarray(values, float)
    _, groups, counts = np.unique(array, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - counts + last - 1) / 2)[groups]


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Rank correlation; None where one side does not vary.

    >>> spearman([1.0, 2.0, 3.0], [10.0, 20.0, 15.0])
    0.5
    """
    a, b = ranks(one), ranks(other)
    if len(a) < 2 or not a.std() or not b.std():
        return None
    return round(float(np.corrcoef(a, b)[0, 1]), 4)


def task_of(sweep: Sweep) -> Task:
    """The task that a sweep is of, on its own architecture."""
    header = sweep.header
    workload = header.workload
    return make_task(
        sweep.operator, workload.shape, workload.dtype, target=cuda_target(header.arch)
    )


def correlations(path: Path, modelled: int, simulated: int, processes: int) -> dict[str, Any]:
    """Spearman's correlation of both models with the measured medians, on random samples.

    Parameters
    ----------
    path : Path
        A sweep's file.
    modelled, simulated : int
        Candidates for the closed-form latency, some 30 ms each, and for the simulator's cost,
        seconds each; fewer where fewer worked.
    processes : int
        That simulate at once.

    Returns
    -------
    dict
        ``latency`` and ``simulator``, each with ``candidates`` and ``spearman``; the latter is None
        where one side does not vary.
    """
    sweep = Sweep.read(path)
    task = task_of(sweep)
    worked = [entry for entry in sweep.entries if entry.seconds is not None]
    random.Random(0).shuffle(worked)
    some, few = worked[:modelled], worked[:simulated]
    forecasts = [costs(task, e.config).seconds for e in some]
    modelled_costs = _costs(path, task, [e.config for e in few], processes)
    return {
        "latency": {"candidates": len(some), "spearman": spearman(forecasts, _seconds(some))},
        "simulator": {"candidates": len(few), "spearman": spearman(modelled_costs, _seconds(few))},
    }


def _costs(path: Path, task: Task, configs: list[Config], processes: int) -> list[float]:
    """The simulator's cost of each; a process of its own takes 3 seconds to start."""
    if min(processes, len(configs)) <= 1:
        return [_simulated(task, config) for config in configs]
    with multiprocessing.get_context("spawn").Pool(min(processes, len(configs))) as pool:
        return pool.starmap(_cost, [(path, config) for config in configs], chunksize=1)


def _cost(path: Path, config: Config) -> float:
    return _simulated(_task(path), config)


def _simulated(task: Task, config: Config) -> float:
    return float(costs(task, config).model["cost"])


@cache
def _task(path: Path) -> Task:
    return task_of(Sweep.read(path))


def _seconds(entries: Sequence[SweepEntry]) -> list[float]:
    return [entry.seconds or 0.0 for entry in entries]
