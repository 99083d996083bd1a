"""The rule for what is left: TVM's own default schedules, in the order of its CUDA pipeline."""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import Schedule, dlight
from tvm.target import Target

from ..errors import ScheduleError
from .rule import Scheduled

_RULES = (
    dlight.gpu.Matmul,
    dlight.gpu.GEMV,
    dlight.gpu.Reduction,
    dlight.gpu.GeneralReduction,
    dlight.gpu.Fallback,
)


def by_dlight(func: tirx.PrimFunc, target: Target) -> Scheduled:
    """Take the schedule of the first of dlight's rules that has one."""
    for rule in _RULES:
        found = rule().apply(func, target, False)
        if isinstance(found, Schedule):
            return Scheduled(found, f"dlight's {rule.__name__}")
    raise ScheduleError("None of dlight's rules takes it.")
