"""Which configuration a ready operator has at a shape: a recorded one, or its default."""

from __future__ import annotations

import logging
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..tune.apply.nearest import Nearest
from ..tune.records.log import Log
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
    work, names = task.workload, {knob.name for knob in task.operator.knobs}
    folder = Path(log) if log is not None else LOGS
    nearest = _read(folder, task.architecture.name, Log(folder).stamp())
    for one in nearest.of_task(task):
        config = dict(one.record.config)
        if one.distance <= _NEAR and set(config) == names and one.is_legal():
            _log.info("%s: %s, as record %s.", work, describe(config), one.record.id)
            return config
    config = task.space.default()
    _log.info("%s: %s, its default.", work, describe(config))
    return config


@lru_cache(maxsize=8)
def _read(log: Path, arch: str, _changed: tuple[Any, ...]) -> Nearest:
    return Nearest.of(Log(log).read().records, arch)
