"""Which configuration a ready operator has at a shape: a recorded one, or its default."""

from __future__ import annotations

import logging
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..tune.apply.nearest import Nearest, distance
from ..tune.records.log import Log, Record
from ..tune.space.knobs import describe
from ..tune.space.task import Task

#: Records that come with the package.
LOGS = Path(__file__).parents[1] / "tuning_logs"
#: How far a recorded shape may be: one extent twice as large. Beyond, the default, which knows the
#: shape, is nearer to the best than a record of another.
_NEAR = 1.0
_log = logging.getLogger("tvm_layout_ext")


def chosen(task: Task, log: str | os.PathLike[str] | None) -> dict[str, Any]:
    """The configuration of the nearest record in a log, or in those of the package, else default.

    A record that lacks a knob is older than it, and older than what the default knows.
    """
    operator, work = task.operator, task.workload
    names = {knob.name for knob in operator.knobs}
    best = _best(Path(log) if log is not None else LOGS, task.architecture.name)
    near = sorted(
        (distance(one.workload.shape, task.shape), not one.measured, at)
        for at, one in enumerate(best)
        if (one.workload.operator, one.workload.dtype) == (work.operator, work.dtype)
        and set(one.config) == names
    )
    for apart, _, at in near:
        config = dict(best[at].config)
        legal = not operator.check(task.shape, task.dtype, config, task.architecture)
        if apart <= _NEAR and legal:
            _log.info("%s: %s, as record %s.", work, describe(config), best[at].id)
            return config
    config = task.space.default()
    _log.info("%s: %s, its default.", work, describe(config))
    return config


def _best(log: Path, arch: str) -> list[Record]:
    return _read(log, arch, Log(log).stamp())


@lru_cache(maxsize=8)
def _read(log: Path, arch: str, _changed: tuple[Any, ...]) -> list[Record]:
    return Nearest.of(Log(log).read().records, arch).records
