"""What tests of models share: fused functions, scheduled, simulated beside TVM's CPU code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relax, tirx
from tvm.s_tir import dlight

from tests.programs.host import CPU
from tvm_layout_ext import DefaultSchedule, cuda_target, device_program, simulate
from tvm_layout_ext.ir.device_program import DeviceProgram
from tvm_layout_ext.ir.evaluate import evaluate
from tvm_layout_ext.ir.ops import IS_SCHEDULED
from tvm_layout_ext.ir.queries import is_among
from tvm_layout_ext.models.default_schedule import FunctionChoice
from tvm_layout_ext.models.pipeline import lower_relax
from tvm_layout_ext.simulate.report import Report
from tvm_layout_ext.tune.space.functions import blocks_of

TARGET = cuda_target("sm_90a")
#: What stands for a symbolic size.
SIZE = 13


@dataclass(frozen=True)
class Scheduled:
    """A function before and after, and what the pass said of it."""

    name: str
    before: tirx.PrimFunc
    after: tirx.PrimFunc
    choice: FunctionChoice

    @cached_property
    def program(self) -> DeviceProgram:
        """What is simulated: lowered once, however often it is called."""
        return device_program(self.after.with_attr("global_symbol", "main"), target=TARGET)

    @cached_property
    def reference(self) -> Any:
        """TVM's code for the CPU of what was not scheduled."""
        main = self.before.with_attr("global_symbol", "main")
        return tvm.compile(tvm.IRModule({"main": main}), target=CPU)["main"]


def fused(mod: tvm.IRModule) -> tvm.IRModule:
    """A Relax module as the pipeline schedules it."""
    return lower_relax(mod, TARGET)


def scheduled(mod: tvm.IRModule, schedule: Any = None) -> list[Scheduled]:
    """Every function of a module of Relax or of functions, by the pass."""
    schedule = schedule or DefaultSchedule()
    if any(isinstance(one, relax.Function) for one in mod.functions.values()):
        mod = fused(mod)
    before = {gv.name_hint: one for gv, one in mod.functions.items()}
    with TARGET:
        after = schedule(mod)
    choices = {choice.name: choice for choice in schedule.choices}
    mistakes = [why for one in choices.values() for why in one.refused if "by a mistake" in why]
    assert not mistakes
    return [
        Scheduled(gv.name_hint, before[gv.name_hint], one, choices[gv.name_hint])
        for gv, one in after.functions.items()
        if isinstance(one, tirx.PrimFunc)
        if gv.name_hint in choices  # TVM writes some with a schedule.
    ]


def only(mod: tvm.IRModule, part: str = "") -> Scheduled:
    """The one function of a module, or the one whose name has a part."""
    (one,) = (each for each in scheduled(mod) if part in each.name)
    return one


def check(
    one: Scheduled, rule: str = "", change: Callable[[Any], Any] | None = None, **given: Any
) -> Report:
    """Fail unless a scheduled function launches kernels and gives what CPU code of it gives.

    ``given`` has values of parameters by name, where random ones would be illegal; others are drawn
    and changed.
    """
    assert one.after.attrs[IS_SCHEDULED]
    assert not rule or one.choice.rule == rule, one.choice.text
    rng = np.random.default_rng(0)
    written = [r.source for _, block in blocks_of(one.before) for r in block.writes]
    drawn = [(param.name, array_of(param, rng)) for param in one.before.params]
    change = change or (lambda array: array)
    arrays = [given[name] if name in given else change(array) for name, array in drawn]
    want = _called(one.reference, arrays)
    report = simulate(one.program, *arrays, progress=False)
    assert not report.hazards
    pairs = zip(one.before.params, want, strict=True)
    expected = [(str(param.name), value) for param, value in pairs if is_among(param, written)]
    for (name, value), output in zip(expected, report.outputs.values(), strict=True):
        _require_near(output, value, f"{one.name}, {name}")
    return report


def _called(function: Any, arrays: list[Any]) -> list[Any]:
    """Arguments after a call."""
    tensors = [tvm.runtime.tensor(a) if isinstance(a, np.ndarray) else a for a in arrays]
    function(*tensors)
    pairs = zip(tensors, arrays, strict=True)
    return [t.numpy() if isinstance(a, np.ndarray) else a for t, a in pairs]


def array_of(param: Any, rng: np.random.Generator) -> Any:
    """Random values of a tensor's type; :data:`SIZE` for what is no tensor."""
    if not hasattr(param, "shape"):
        return SIZE
    shape = tuple(extent_of(n) for n in param.shape)
    dtype = str(param.dtype)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if "int" in dtype:
        return rng.integers(0, 3, shape).astype(dtype)
    wide = rng.uniform(0.25, 1, shape).astype("float32")
    return wide.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def extent_of(extent: Any) -> int:
    """An extent with :data:`SIZE` in the place of what is symbolic."""
    if isinstance(extent, tirx.IntImm):
        return int(extent)
    return int(evaluate(extent, _Sizes()))


class _Sizes(dict[Any, int]):
    def get(self, key: Any, default: Any = None) -> int:
        return SIZE


def _require_near(got: Any, want: Any, what: str) -> None:
    eps = {2: 2e-2, 4: 1e-4}.get(got.dtype.itemsize, 1e-6) if got.dtype.kind != "i" else 0
    got, want = np.asarray(got, "float64"), np.asarray(want, "float64")
    np.testing.assert_allclose(got, want, rtol=eps, atol=eps, err_msg=what)


def bound_by_dlight(mod: tvm.IRModule) -> set[str]:
    """Names of the functions that dlight's rules bind to threads."""
    rules = (
        dlight.gpu.Matmul(),
        dlight.gpu.GEMV(),
        dlight.gpu.Reduction(),
        dlight.gpu.GeneralReduction(),
        dlight.gpu.Fallback(),
    )
    copy = tvm.IRModule(dict(mod.functions.items()))  # The pass writes into what it is given.
    with TARGET:
        done = dlight.ApplyDefaultSchedule(*rules)(copy)
    return {
        gv.name_hint
        for gv, one in done.functions.items()
        if isinstance(one, tirx.PrimFunc) and "threadIdx.x" in str(one)
    }
