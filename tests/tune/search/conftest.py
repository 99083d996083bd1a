"""Searches of these tests take few steps, and schedule each candidate once among them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tvm import s_tir

from tests.tune.helpers import BRIEF
from tvm_layout_ext.tune.measure.backend import config_key
from tvm_layout_ext.tune.search import cost_model, design, prepare, run
from tvm_layout_ext.tune.space.knobs import Config
from tvm_layout_ext.tune.space.operator import find_operator
from tvm_layout_ext.tune.space.task import Task

_KNOWN: dict[Any, Any] = {}


def _known(work: Callable[..., Any], task: Task, config: Config, *more: Any) -> Any:
    """What is worked out of a candidate of a ready operator, once."""
    if task.operator.judged_late or task.operator is not find_operator(task.operator.name):
        return work(task, config, *more)
    key = work, task.workload, task.architecture, config_key(config)
    if key not in _KNOWN:
        _KNOWN[key] = work(task, config, *more)
    return _KNOWN[key]


_traced, _fact = design.traced, cost_model.fact


def traced_once(task: Task, config: Config) -> s_tir.Schedule:
    return _known(_traced, task, config).copy()


def fact_once(task: Task, config: Config, sch: s_tir.Schedule) -> cost_model.Fact:
    values, seconds = _known(_fact, task, config, sch)
    return values.copy(), seconds


@pytest.fixture(autouse=True)
def brief(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(design, "traced", traced_once)
    monkeypatch.setattr(cost_model, "fact", fact_once)
    if "guided_search_learns" not in request.node.name:
        for name, value in BRIEF.items():
            monkeypatch.setattr(run if hasattr(run, name) else prepare, name, value)
