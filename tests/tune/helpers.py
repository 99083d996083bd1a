"""Records and a small operator that the tests of this folder share."""

from __future__ import annotations

import dataclasses
from typing import Any

import tvm
from tvm import s_tir

from tvm_layout_ext import te
from tvm_layout_ext.tune.model.cost import Counters
from tvm_layout_ext.tune.records.log import Record
from tvm_layout_ext.tune.space.operator import Operator, find_operator
from tvm_layout_ext.tune.space.workload import Workload


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
