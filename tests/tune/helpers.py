"""Records and a small operator that the tests of this folder share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tvm
from tvm import s_tir, tirx

from tests.programs.mapped import computed
from tvm_layout_ext import te
from tvm_layout_ext.tune.measure.backend import Measurement
from tvm_layout_ext.tune.measure.reference.problem import WrongResultError
from tvm_layout_ext.tune.model.cost import Counters
from tvm_layout_ext.tune.records.log import Record
from tvm_layout_ext.tune.space.knobs import Config
from tvm_layout_ext.tune.space.operator import Operator, Workload, find_operator
from tvm_layout_ext.tune.space.task import Task

#: Of the search, for runs that take few steps.
BRIEF = {"RANKED": 16, "POPULATION": 8, "GENERATIONS": 1}


def offset_cost(config: Config) -> float:
    """A cost that the default does not win: the larger the offset, the better."""
    return 100.0 - config["align_offset"] - config["threads"] / 1000


class FakeRunner:
    """Costs a function of the configuration, and keeps what it was asked; ``wrong`` ones are."""

    name, device = "simulate", "simulated GPU"

    def __init__(self, cost: Callable[[Config], float] = offset_cost) -> None:
        self.cost = cost
        self.ran: list[Config] = []
        self.wrong: list[Config] = []

    def run(self, _task: Task, config: Config) -> Measurement:
        self.ran.append(config)
        return Measurement(4224, make_model(self.cost(config)))

    def verify(self, task: Task, config: Config) -> str:
        if config in self.wrong:
            raise WrongResultError("3 of 9 elements differ.")
        return str(task.workload)


def doubled(count: int = 4096) -> tirx.PrimFunc:
    """``B = 2 * A``."""
    return computed((count,), lambda a, i: a[i] * 2.0).mod["main"]


def by_threads(sch: s_tir.Schedule, config: Config, block: str = "B") -> None:
    """Share the first loop of a block out to blocks of ``threads``, and bind both."""
    outer, inner = sch.split(sch.get_loops(sch.get_sblock(block))[0], [None, config["threads"]])
    sch.bind(outer, "blockIdx.x")
    sch.bind(inner, "threadIdx.x")


def make_model(cost: float) -> dict[str, float]:
    """The counters of a 64x64 float32 transpose in one block, at any cost."""
    counters = Counters(
        blocks=1, sampled=1, requests=64, sectors=1024, ideal_sectors=1024,
        wavefronts=256, bank_conflicts=0, barriers=1,
    )  # fmt: skip
    return counters.to_json() | {"cost": cost}


def make_record(**changes: Any) -> Record:
    """A trial of a small transpose, with any field changed."""
    fields: dict[str, Any] = {
        "time": "2026-11-21T03:14:00.000Z",
        "runner": "simulate",
        "device": "simulated GPU",
        "arch": "sm_90a",
        "versions": {"tvm": "0.27.0", "package": "0.1.0", "cuda": None},
        "workload": Workload("transpose", (64, 64), "float32"),
        "trial": 0,
        "config": {"tile_i": 32, "align_offset": 1},
        "status": "ok",
        "seed": 0,
        "conflict_model": make_model(cost=12.5),
        "smem_bytes": 4224,
    }
    return Record(**(fields | changes))


def transpose_from(**defaults: Any) -> Operator:
    """The transpose with other values in its default configuration."""
    operator = find_operator("transpose")
    knobs = tuple(
        dataclasses.replace(knob, default=defaults.get(knob.name, knob.default))
        for knob in operator.knobs
    )
    return dataclasses.replace(operator, knobs=knobs)


def transpose_schedule(extent: int, **config: Any) -> tuple[tvm.IRModule, s_tir.Schedule]:
    """A float32 transpose of ``extent`` squared: unscheduled, and scheduled as its default is."""
    operator = find_operator("transpose")
    tensors = operator.compute((extent, extent), "float32")
    function = te.create_prim_func(tensors).with_attr("global_symbol", "main")
    scheduled = operator.schedule(tensors, operator.default_config() | config)
    return tvm.IRModule({"main": function}), scheduled.to_schedule(tensors)
