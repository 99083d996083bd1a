"""A candidate as TVM's tuner knows one: a schedule whose trace samples every knob.

TVM replays a trace without the Python that made it, and so cannot change a schedule that depends on
its knobs through Python. So a candidate is scheduled by its Python function, and its trace then
samples each knob with all the probability on the value that was used: replayed or drawn again, it
gives the same candidate. Another one is scheduled anew by :mod:`.design`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import s_tir

from ...ir.annotations import KNOB_PREFIX
from .knobs import Config, Knob
from .task import Task

_SAMPLE, _ANNOTATE = "SampleCategorical", "Annotate"


def traced(task: Task, config: Config) -> s_tir.Schedule:
    """Schedule a candidate and sample its knobs in the trace.

    The values are annotated on the root block: an unused sample would be dropped as dead code.
    """
    sch = task.schedule(config)
    root = sch.get_sblock("root")
    for knob in task.operator.knobs:
        chosen = knob.values.index(knob.of(config))
        odds = [float(index == chosen) for index in range(len(knob.values))]
        drawn = sch.sample_categorical(list(range(len(odds))), odds, decision=chosen)
        sch.annotate(root, f"{KNOB_PREFIX}{knob.name}", drawn)
    return sch


def config_of(
    source: tvm.IRModule | s_tir.Schedule | s_tir.Trace, knobs: Sequence[Knob]
) -> dict[str, Any]:
    """The configuration that made a candidate of :func:`traced`; KeyError if none did."""
    if isinstance(source, s_tir.Schedule):
        source = source.mod
    noted = _in_trace(source) if isinstance(source, s_tir.Trace) else _in_module(source)
    chosen = {knob.name: noted.get(f"{KNOB_PREFIX}{knob.name}") for knob in knobs}
    known = {
        knob.name: knob.values[index] for knob in knobs if (index := chosen[knob.name]) is not None
    }
    return {knob.name: knob.of(known) for knob in knobs}


def _in_module(module: tvm.IRModule) -> dict[str, int]:
    ((_, function),) = module.functions_items()
    noted = function.body.block.annotations
    return {str(key): int(noted[key]) for key in noted if str(key).startswith(KNOB_PREFIX)}


def _in_trace(trace: s_tir.Trace) -> dict[str, int]:
    drawn: dict[Any, int] = {}
    noted: dict[str, int] = {}
    for inst in trace.insts:
        if inst.kind.name == _SAMPLE:
            drawn[inst.outputs[0]] = int(trace.decisions[inst])
        elif inst.kind.name == _ANNOTATE and str(inst.attrs[0]).startswith(KNOB_PREFIX):
            noted[str(inst.attrs[0])] = drawn[inst.inputs[1]]
    return noted


def program_of(trace: s_tir.Trace) -> str:
    """12 hexadecimal digits that tell traces apart, also one that was stored and replayed."""
    return hashlib.sha256(str(trace).encode()).hexdigest()[:12]


def without_knobs(trace: s_tir.Trace) -> s_tir.Trace:
    """Take out of a trace what :func:`traced` added to it: the samples of its knobs."""
    noted = [
        inst
        for inst in trace.insts
        if inst.kind.name == _ANNOTATE and str(inst.attrs[0]).startswith(KNOB_PREFIX)
    ]
    drawn = {inst.inputs[1] for inst in noted}
    kept = [
        inst
        for inst in trace.insts
        if inst not in noted and not (inst.kind.name == _SAMPLE and inst.outputs[0] in drawn)
    ]
    decisions = {inst: trace.decisions[inst] for inst in kept if inst in trace.decisions}
    return s_tir.Trace(kept, decisions)
